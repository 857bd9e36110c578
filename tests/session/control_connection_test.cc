// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/control_connection.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "peerlane/os/process.h"
#include "tests/os/child_process.h"
#include "tests/os/few_descriptors.h"

namespace peerlane {
namespace {

using std::chrono::milliseconds;

// One end, and what it was told.
struct End {
  std::unique_ptr<EventLoop> loop = EventLoop::create().value();
  std::unique_ptr<ControlConnection> connection;
  bool isAuthenticated = false;
  std::vector<ControlMessage> messages;
  std::vector<Status> ends;

  void open(Fd socket, Handshake::Role role, uint8_t name) {
    HandshakeOptions options;
    std::array<std::byte, 32> secret{};
    secret.fill(std::byte{7});
    options.secret = Secret(secret);
    std::array<std::byte, 16> self{};
    self.fill(std::byte{name});
    options.self = ContextId(self);
    auto made = ControlConnection::create(
        *loop, std::move(socket), false, role, std::move(options),
        {.authenticated = [this](const PeerIdentity&) { isAuthenticated = true; },
         .message = [this](ControlMessage message) { messages.push_back(std::move(message)); },
         .ended = [this](Status status) { ends.push_back(std::move(status)); }});
    ASSERT_TRUE(made.isOk()) << made.status().toString();
    connection = std::move(*made);
  }
};

class ControlConnections : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> sockets{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
    near.open(Fd(sockets[0]), Handshake::Role::kInitiator, 1);
    far.open(Fd(sockets[1]), Handshake::Role::kAcceptor, 2);
    for (int round = 0; round < 100 && !(near.isAuthenticated && far.isAuthenticated); ++round) {
      near.loop->waitOnce(milliseconds(1));
      far.loop->waitOnce(milliseconds(1));
    }
    ASSERT_TRUE(near.isAuthenticated && far.isAuthenticated);
  }
  // Until `count` messages came, or an end.
  void hear(End& end, size_t count) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (end.messages.size() < count && end.ends.empty() &&
           std::chrono::steady_clock::now() < limit) {
      near.loop->waitOnce(milliseconds(1));
      far.loop->waitOnce(milliseconds(1));
    }
    ASSERT_EQ(end.messages.size(), count)
        << (end.ends.empty() ? "nothing came" : end.ends.front().toString());
  }
  End near, far;
};

TEST_F(ControlConnections, WhatThePeerSaidBeforeItsEndIsReadThoughNothingCanBeSentAnyMore) {
  for (uint64_t beat = 0; beat < 3; ++beat)
    ASSERT_TRUE(far.connection->send(control::Heartbeat{beat, true}).isOk());
  ASSERT_TRUE(far.connection->sendLast(control::Bye{Code::kOk, "that is all"}).isOk());
  far.connection->close();
  ASSERT_TRUE(near.connection->send(control::Heartbeat{9, false}).isOk());
  EXPECT_FALSE(near.connection->flushed()) << "the socket took it, this test shows nothing";
  for (int round = 0; round < 100 && near.ends.empty(); ++round)
    near.loop->waitOnce(milliseconds(1));
  ASSERT_EQ(near.ends.size(), 1u);
  ASSERT_EQ(near.messages.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<control::Bye>(near.messages.back()));
  EXPECT_FALSE(near.connection->open());
}

TEST_F(ControlConnections, NothingIsSentBehindTheLastMessage) {
  ASSERT_TRUE(near.connection->sendLast(control::Bye{Code::kOk, ""}).isOk());
  EXPECT_EQ(near.connection->sendIfOpen(control::RevokeDone{1, Code::kOk}).code(), Code::kClosed);
  EXPECT_EQ(near.connection->send(control::Heartbeat{1, false}).code(), Code::kClosed);
  near.connection->close();
  for (int round = 0; round < 100 && far.ends.empty(); ++round) far.loop->waitOnce(milliseconds(1));
  ASSERT_EQ(far.ends.size(), 1u);
  EXPECT_EQ(far.messages.size(), 1u);
}

// --- Shortage here is nobody's lie ---

TEST_F(ControlConnections, AMessageThatFoundNoDescriptorLeavesTheStreamWhole) {
  {
    const FewDescriptors none(0);
    const int any = 0;
    const Status refused = near.connection->send(control::Heartbeat{1, true}, {&any, 1});
    EXPECT_EQ(refused.code(), Code::kUnavailable) << refused.toString();
    EXPECT_NE(refused.message().find("ulimit -n"), std::string_view::npos) << refused.toString();
  }
  ASSERT_TRUE(near.connection->send(control::Heartbeat{2, true}).isOk());
  hear(far, 1);
  EXPECT_EQ(std::get<control::Heartbeat>(far.messages.front()).sequence, 2u);
}

TEST_F(ControlConnections, ADescriptorThatFindsNoRoomCostsItsMessageAlone) {
  const int any = 0;
  ASSERT_TRUE(near.connection->send(control::Heartbeat{1, true}, {&any, 1}).isOk());
  {
    const FewDescriptors none(0);
    hear(far, 1);
  }
  const auto lost = far.connection->takeFds(1);
  EXPECT_EQ(lost.status().code(), Code::kUnavailable) << lost.status().toString();
  ASSERT_TRUE(near.connection->send(control::Heartbeat{2, true}, {&any, 1}).isOk());
  hear(far, 2);
  const auto taken = far.connection->takeFds(1);
  ASSERT_TRUE(taken.isOk()) << taken.status().toString();
  EXPECT_TRUE(taken->front());
}

// Those of one user under way are limited, and an administrator's are not.
TEST_F(ControlConnections, TooManyDescriptorsUnderWayDelayTheRest) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(1);
    rlimit most{};
    getrlimit(RLIMIT_NOFILE, &most);
    const rlimit few{.rlim_cur = 40, .rlim_max = most.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    const std::vector<int> files(kMaxPassedFds, 0);
    for (uint64_t i = 0; i < 4; ++i)
      if (!near.connection->send(control::Heartbeat{i, true}, files).isOk()) _exit(2);
    if (near.connection->flushed()) _exit(3);  // no limit was met: this shows nothing
    setrlimit(RLIMIT_NOFILE, &most);           // room for those that come
    hear(far, 4);
    _exit(far.messages.size() == 4 && near.ends.empty() && far.ends.empty() ? 0 : 4);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
}

TEST_F(ControlConnections, DescriptorsOfAStrangerAreNotTaken) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  End host;
  host.open(Fd(sockets[0]), Handshake::Role::kAcceptor, 3);
  const Fd stranger(sockets[1]);
  const std::vector<int> files(kMaxPassedFds, 0);
  const size_t before = openFileCount().value();
  for (const char letter : {'P', 'E', 'E', 'R'}) {
    const auto byte = static_cast<std::byte>(letter);
    ASSERT_TRUE(sendWithFds(stranger.get(), {&byte, 1}, files).isOk());
  }
  for (int round = 0; round < 10; ++round) host.loop->waitOnce(milliseconds(1));
  EXPECT_EQ(openFileCount().value(), before);
}

}  // namespace
}  // namespace peerlane
