// SPDX-License-Identifier: Apache-2.0
//
// Notifications and the end of their connection, with the wire in the test's hand.
#include <future>

#include "peerlane/channel/signal/notification.h"
#include "tests/channel/fake_wire_pair.h"

namespace peerlane {
namespace {

Transfer send(const Peer& peer, uint32_t tag) {
  Notify what;
  what.message = std::span<const std::byte>();
  what.tag = tag;
  return MUST(notify(peer, what));
}

// Whether the peer confirms a credit is no business of who takes the message.
TEST(NotificationEnd, AMessageIsHadBeforeItsCreditIsConfirmed) {
  FakeWirePair pair;
  ASSERT_OK(send(pair.toB, 7).wait(kSoon));
  pair.hold();
  const auto taken = pollNotification(pair.toA);
  ASSERT_OK(taken.status());
  EXPECT_EQ(taken->tag, 7u);
}

// The goodbye is there, the link is not closed yet, and the last credit is still in its hands: what
// was sent before is had all the same.
TEST(NotificationEnd, WhatWasSentIsTakenWhileTheLinkIsBeingClosed) {
  std::promise<void> closing;
  std::promise<void> go;
  FakeLinkOptions forB;
  forB.beforeClose = [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    closing.set_value();
    go.get_future().wait_for(kSoon);
  };
  FakeWirePair pair({}, forB);
  constexpr uint32_t kCount = 10;
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_OK(send(pair.toB, i).wait(kSoon));
  pair.hold();
  EXPECT_OK(pollNotification(pair.toA).status());  // its credit stays under way
  pair.freeze();
  pair.toB.close();
  EXPECT_EQ(closing.get_future().wait_for(kSoon), std::future_status::ready);
  for (uint32_t i = 1; i < kCount; ++i) {
    const auto taken = waitNotification(pair.toA, kSoon);
    EXPECT_OK(taken.status());
    EXPECT_EQ(taken.isOk() ? taken->tag : kCount, i);
  }
  EXPECT_EQ(waitNotification(pair.toA, kSoon).status().code(), Code::kPeerLost);
  go.set_value();
}

}  // namespace
}  // namespace peerlane
