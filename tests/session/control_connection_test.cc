// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/control_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <utility>
#include <variant>
#include <vector>

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

}  // namespace
}  // namespace peerlane
