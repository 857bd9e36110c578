// SPDX-License-Identifier: Apache-2.0
//
// The shapes of the emitted programs: the ids and op indices that callers bind and change.
#include "peerlane/channel/protocol/protocols.h"

#include <gtest/gtest.h>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "peerlane/channel/protocol/staged_protocol.h"

namespace peerlane {
namespace {

constexpr MessageLane kLane{.slots = 4, .inboxStrideBytes = kInboxPayloadOffset + 256};

TEST(Protocols, SenderTargetsAreInTheirOrder) {
  for (const Program& program :
       {eagerSender({.lane = kLane, .payloadBytes = 8}), rendezvousPutSender({kLane, 8})}) {
    ASSERT_EQ(program.targets.size(), size_t{kSenderTargets});
    EXPECT_STREQ(program.targets[kSenderEnvelope].name, "envelope");
    EXPECT_STREQ(program.targets[kSenderPayload].name, "payload");
    EXPECT_STREQ(program.targets[kSenderInbox].name, "inbox");
    EXPECT_STREQ(program.targets[kSenderAnswers].name, "answers");
    EXPECT_STREQ(program.targets[kSenderAnswer].name, "answer");
    EXPECT_STREQ(program.targets[kSenderFree].name, "free");
    EXPECT_STREQ(program.targets[kSenderPeerBuffer].name, "buffer");
    EXPECT_STREQ(program.targets[kSenderPeerDone].name, "done");
    EXPECT_TRUE(program.targets[kSenderPeerBuffer].late);
    EXPECT_EQ(program.targets[kSenderInbox].side, Side::kRemote);
    EXPECT_EQ(program.targets[kSenderInbox].strideBytes, kLane.inboxStrideBytes);
    EXPECT_EQ(program.targets[kSenderAnswers].side, Side::kLocal);
    EXPECT_EQ(program.cursorAdvance, std::vector<uint32_t>{1});
  }
}

TEST(Protocols, ReceiverTargetsAreInTheirOrder) {
  for (const Program& program :
       {eagerReceiver({.lane = kLane, .payloadBytes = 8}), rendezvousGetReceiver({kLane, 8}),
        rendezvousPutReceiver({kLane, 8})}) {
    ASSERT_EQ(program.targets.size(), size_t{kReceiverTargets});
    EXPECT_STREQ(program.targets[kReceiverInbox].name, "inbox");
    EXPECT_STREQ(program.targets[kReceiverBuffer].name, "buffer");
    EXPECT_STREQ(program.targets[kReceiverPeerPayload].name, "payload");
    EXPECT_STREQ(program.targets[kReceiverAnswer].name, "answer");
    EXPECT_STREQ(program.targets[kReceiverPeerAnswers].name, "answers");
    EXPECT_STREQ(program.targets[kReceiverDone].name, "done");
    EXPECT_TRUE(program.targets[kReceiverBuffer].late);
    EXPECT_TRUE(program.targets[kReceiverPeerPayload].late);
    EXPECT_TRUE(program.targets[kReceiverAnswer].late);
    EXPECT_EQ(program.targets[kReceiverPeerAnswers].side, Side::kRemote);
  }
}

TEST(Protocols, PayloadOpsAreWhereTheHeadersSay) {
  constexpr uint64_t kBytes = 123;
  const auto bytesAt = [](const Program& program, size_t op) { return program.ops[op].bytes; };
  const EagerShape eager{.lane = kLane, .payloadBytes = kBytes};
  EXPECT_EQ(bytesAt(eagerReceiver(eager), kEagerReceiverPayloadOp), kBytes);
  EXPECT_EQ(bytesAt(rendezvousGetReceiver({kLane, kBytes}), kRendezvousGetReceiverPayloadOp),
            kBytes);
  EXPECT_EQ(bytesAt(rendezvousPutSender({kLane, kBytes}), kRendezvousPutSenderPayloadOp), kBytes);

  const NotifyShape notify{.slots = 4, .messageBytes = kBytes};
  PutPayload payload;
  EXPECT_EQ(bytesAt(notifySender(notify, payload), 2), kBytes);
  payload.targets = {{.name = "place", .side = Side::kRemote}, {.name = "source"}};
  payload.layout.segments = {
      {kNotifySenderFirstData, kNotifySenderFirstData + 1, 0, 0, 64},
  };
  const Program put = notifySender(notify, payload);
  EXPECT_EQ(bytesAt(put, 3), kBytes);
  // One segment needs no list.
  EXPECT_EQ(put.ops[0].code, OpCode::kCopy);
  EXPECT_STREQ(put.targets[put.ops[0].to.target].name, "place");
  payload.layout.segments.push_back(payload.layout.segments[0]);
  EXPECT_EQ(notifySender(notify, payload).ops[0].code, OpCode::kCopyList);
}

TEST(Protocols, EmptyMessagesHaveNoPayloadOp) {
  const Program sender = eagerSender({.lane = kLane});
  EXPECT_TRUE(sender.check()) << sender.check().toString();
  EXPECT_EQ(sender.ops.size(), eagerSender({.lane = kLane, .payloadBytes = 1}).ops.size() - 1);
  const Program notify = notifySender({.slots = 2}, {});
  EXPECT_TRUE(notify.check()) << notify.check().toString();
}

TEST(Protocols, TheLastChunkMayBeShorter) {
  const Program program =
      stagedSender({.slots = 2, .chunkBytes = 64, .chunks = 3, .lastChunkBytes = 10});
  EXPECT_EQ(program.ops[1].bytes, 64u);
  EXPECT_EQ(program.ops[7].bytes, 10u);
  EXPECT_EQ(program.cursorAdvance, std::vector<uint32_t>{3});
}

TEST(Protocols, ReadWell) {
  EXPECT_EQ(rendezvousGetReceiver({kLane, 4096}).toString(),
            "rendezvous-get-recv:\n"
            "  wait  inbox[cursor0+0] >= cursor0+1\n"
            "  copy  buffer <- peer.payload, 4096 bytes\n"
            "  copy  peer.answers[cursor0+0]+8 <- answer, 56 bytes\n"
            "  store peer.answers[cursor0+0] = cursor0+1 (release)\n");
}

}  // namespace
}  // namespace peerlane
