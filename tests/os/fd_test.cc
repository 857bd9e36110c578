// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

// Exit code of `what` in a forked child.
template <typename What>
int inChild(const What& what) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(what());
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool isNull(int fd) {
  struct stat file {};
  struct stat null {};
  return ::fstat(fd, &file) == 0 && ::stat("/dev/null", &null) == 0 && file.st_rdev == null.st_rdev;
}

TEST(KeptDescriptors, AreNullInChildrenAndNothingElseIs) {
  const Fd kept = makeEventFd().value();
  const Fd given = makeEventFd().value();
  Fd released = makeEventFd().value();
  for (const Fd* each : {&kept, &static_cast<const Fd&>(released)}) keepFromChildren(each->get());
  const Fd again(released.release());
  {
    Fd closed = makeEventFd().value();
    keepFromChildren(closed.get());
  }
  const Fd reused = makeEventFd().value();  // has the number of the one that was closed
  const Fd copy = kept.dup().value();
  EXPECT_EQ(inChild([&] {
              return (isNull(kept.get()) ? 0 : 1) + (isNull(given.get()) ? 2 : 0) +
                     (isNull(again.get()) ? 4 : 0) + (isNull(reused.get()) ? 8 : 0) +
                     (isNull(copy.get()) ? 0 : 16);
            }),
            0);
  EXPECT_FALSE(isNull(kept.get())) << "the parent's is gone";
  signalEventFd(kept.get());
  EXPECT_TRUE(isReadable(kept.get()));
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
