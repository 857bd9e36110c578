// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <limits>
#include <utility>

namespace peerlane {
namespace {

bool isOpen(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

bool isReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Fd, ClosesOnceAtTheEndOfItsScope) {
  int number = -1;
  {
    auto fd = makeEventFd();
    ASSERT_TRUE(fd.isOk());
    number = fd->get();
    EXPECT_TRUE(isOpen(number));
  }
  EXPECT_FALSE(isOpen(number));
}

TEST(Fd, MovingLeavesNothingBehind) {
  Fd first = makeEventFd().value();
  int number = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the claim
  EXPECT_EQ(second.get(), number);
  Fd third = makeEventFd().value();
  int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(isOpen(replaced));
  EXPECT_TRUE(isOpen(number));
  int released = third.release();
  EXPECT_FALSE(third);
  EXPECT_TRUE(isOpen(released));
  third.reset(released);
  third.reset();
  EXPECT_FALSE(isOpen(released));
}

TEST(Fd, DuplicateLivesOnItsOwnAndIsCloseOnExec) {
  Fd first = makeEventFd().value();
  Fd copy = first.dup().value();
  signalEventFd(first.get());
  first.reset();
  EXPECT_TRUE(isReadable(copy.get()));
  EXPECT_NE(::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(Fd().dup().status().code(), Code::kSystem);
}

TEST(Fd, NonBlockingIsSetAndTakenBack) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  Fd reader(pipes[0]);
  Fd writer(pipes[1]);
  EXPECT_TRUE(reader.setNonBlocking().isOk());
  EXPECT_NE(::fcntl(reader.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_TRUE(reader.setNonBlocking(false).isOk());
  EXPECT_EQ(::fcntl(reader.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_FALSE(Fd().setNonBlocking().isOk());
}

TEST(EventFd, SignalsAddUpAndDrainOnce) {
  Fd fd = makeEventFd().value();
  EXPECT_FALSE(isReadable(fd.get()));
  signalEventFd(fd.get());
  signalEventFd(fd.get());
  EXPECT_TRUE(isReadable(fd.get()));
  EXPECT_EQ(drainEventFd(fd.get()), 2u);
  EXPECT_FALSE(isReadable(fd.get()));
  EXPECT_EQ(drainEventFd(fd.get()), 0u);
}

TEST(EventFd, FullCounterDoesNotBlock) {
  Fd fd = makeEventFd().value();
  uint64_t full = std::numeric_limits<uint64_t>::max() - 1;
  ASSERT_EQ(::write(fd.get(), &full, sizeof full), static_cast<ssize_t>(sizeof full));
  signalEventFd(fd.get());
  EXPECT_EQ(drainEventFd(fd.get()), full);
}

}  // namespace
}  // namespace peerlane
