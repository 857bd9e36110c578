// SPDX-License-Identifier: Apache-2.0
//
// What two processes of one host give each other when they meet, where one of them is not honest.
#include "peerlane/transport/shm/shm_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "peerlane/os/process.h"
#include "peerlane/os/shm_segment.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

bool isReadable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, 0) == 1;
}

// One context with its peers, and the offers that are made.
class ShmTransportTest : public testing::Test {
 protected:
  std::unique_ptr<PendingLink> prepare(bool initiator) {
    PeerFacts facts;
    facts.unixSocket = true;
    facts.sameProcess = true;
    facts.initiator = initiator;
    facts.credentials.pid = getpid();
    facts.pidFd = process_.fd();
    return MUST(transport_->prepare(
        facts, {config_, *loop_, *readiness_, *bell_, regions_, nullptr, [this] { ++woken_; }}));
  }

  const Config config_;
  const ProcessHandle process_ = MUST(ProcessHandle::open(getpid()));
  FakeRegions regions_;
  std::unique_ptr<EventLoop> loop_ = MUST(EventLoop::create());
  std::unique_ptr<ReadinessSet> readiness_ = MUST(ReadinessSet::create());
  std::unique_ptr<Bell> bell_ = MUST(Bell::create());
  std::unique_ptr<Transport> transport_ = makeShmTransport();
  int woken_ = 0;
};

TEST_F(ShmTransportTest, ThePageOfTheCountCanBeMappedForReadingOnly) {
  Offer offer = prepare(true)->takeOffer();
  const auto written =
      SharedSegment::import(MUST(offer.fds[0].dup()), Bell::kPageBytes, 0, /*writable=*/true);
  EXPECT_EQ(written.status().code(), Code::kPermissionDenied) << written.status().toString();
  EXPECT_OK(SharedSegment::import(MUST(offer.fds[0].dup()), Bell::kPageBytes, 0, false).status());
  // Nor by another descriptor of the same file.
  const std::string path = "/proc/self/fd/" + std::to_string(offer.fds[0].get());
  Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again);
  EXPECT_FALSE(SharedSegment::import(std::move(again), Bell::kPageBytes, 0, true).isOk());
}

TEST_F(ShmTransportTest, WhatOnePeerReadsTakesNoWakeUpOfAnother) {
  const auto one = prepare(true);
  const auto two = prepare(true);
  Offer toOne = one->takeOffer();
  Offer toTwo = two->takeOffer();
  Offer fromTwo = prepare(false)->takeOffer();
  const auto link = MUST(two->complete(std::move(fromTwo)));
  knock(toTwo.fds[1].get());
  // The dishonest one takes whatever it can get.
  char bytes[64];
  EXPECT_LT(::read(toOne.fds[1].get(), bytes, sizeof bytes), 0);
  EXPECT_FALSE(isReadable(toOne.fds[1].get()));
  loop_->poll();
  EXPECT_EQ(woken_, 1);
  link->close(Code::kClosed);
}

TEST_F(ShmTransportTest, ADescriptorThatCouldBlockOrKillIsRefused) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ::close(pipe[0]);  // a write to it ends the process by SIGPIPE
  const auto mine = prepare(false);
  Offer theirs = prepare(true)->takeOffer();
  theirs.fds[1] = Fd(pipe[1]);
  const auto link = mine->complete(std::move(theirs));
  ASSERT_FALSE(link.isOk());
  EXPECT_EQ(link.status().code(), Code::kCorrupt);
  EXPECT_NE(link.status().message().find("not a Unix socket"), std::string_view::npos)
      << link.status().toString();
}

TEST_F(ShmTransportTest, AKnockAtADeadOrFullDoorReturnsAtOnce) {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  auto sockets = MUST(socketPair());
  ASSERT_EQ(::fcntl(sockets.first.get(), F_SETFL, 0), 0) << "let it block";
  for (int i = 0; i < 100'000; ++i) knock(sockets.first.get());  // far more than fits
  sockets.second.reset();
  knock(sockets.first.get());
  ::signal(SIGPIPE, before);
}

TEST_F(ShmTransportTest, TheRouteSaysThatAnotherProcessIsLetIn) {
  const auto mine = prepare(true);
  Offer theirs = prepare(false)->takeOffer();
  std::memset(theirs.blob.data() + 1, 0, 8);  // the nonce is nowhere
  theirs.blob.back() = std::byte{0};
  const auto link = MUST(mine->complete(std::move(theirs)));
  ASSERT_EQ(link->traits().refused.size(), 1u);
  EXPECT_NE(link->traits().refused[0].find("lets another one read it"), std::string::npos)
      << link->traits().refused[0];
  EXPECT_EQ(link->traits().agentEngine, "ring");
  link->close(Code::kClosed);
}

}  // namespace
}  // namespace peerlane
