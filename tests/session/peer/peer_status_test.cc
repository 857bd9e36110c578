// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer_status.h"

#include <gtest/gtest.h>

namespace peerlane {
namespace {

TEST(PeerStatus, WhatIsToldIsNeverBehindTheFailure) {
  PeerStatus status;
  EXPECT_EQ(status.told(), PeerState::kConnecting);
  status.setReady();
  EXPECT_EQ(status.told(), PeerState::kReady);
  status.setSilent(Status(Code::kPeerSilent, "nothing was heard"));
  EXPECT_EQ(status.told(), PeerState::kSilent);
  status.setHeard();
  EXPECT_EQ(status.told(), PeerState::kReady);
  // The end comes in two steps.
  status.setFailure(Status(Code::kPeerLost, "it ended"));
  EXPECT_EQ(status.state(), PeerState::kReady);
  EXPECT_EQ(status.told(), PeerState::kLost);
  status.setOver(PeerState::kLost);
  EXPECT_EQ(status.told(), PeerState::kLost);
}

TEST(PeerStatus, APeerThatNeverConnectedIsToldAsItEnded) {
  PeerStatus lost, closed;
  lost.setFailure(Status(Code::kUnavailable, "nobody is there"));
  EXPECT_EQ(lost.told(), PeerState::kConnecting);
  lost.setOver(PeerState::kLost);
  EXPECT_EQ(lost.told(), PeerState::kLost);
  closed.setFailure(Status(Code::kClosed, "closed by this side"));
  EXPECT_EQ(closed.told(), PeerState::kClosed);
}

}  // namespace
}  // namespace peerlane
