// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/notify_protocol.h"

#include <utility>

namespace peerlane {
namespace {

const Operand kThisMessage{.cursor = 0, .delta = 1};

Target notifyRing(const char* name, Side side, uint32_t slots, uint32_t strideBytes) {
  return {.name = name, .side = side, .cursor = 0, .slots = slots, .strideBytes = strideBytes};
}

}  // namespace

Program notifySender(const NotifyShape& shape, PutPayload payload) {
  ProgramBuilder program("notify");
  program.cursor(1);
  program.local("header");
  program.local("message");
  program.target(notifyRing("inbox", Side::kRemote, shape.slots, shape.inboxStrideBytes));
  program.target(notifyRing("credits", Side::kLocal, shape.slots, kNotifyCreditStrideBytes));
  declarePayload(program, payload);
  // The payload needs no slot: it goes first, and the receiver may meanwhile free one.
  if (!payload.targets.empty()) movePayload(program, std::move(payload));
  program
      .wait({.target = kNotifySenderCredits},
            {.cursor = 0, .delta = 1 - static_cast<int64_t>(shape.slots)})
      .copy({.target = kNotifySenderInbox, .offset = kNotifyHeaderOffset},
            {.target = kNotifySenderHeader}, kNotifyHeaderBytes);
  if (shape.messageBytes > 0)
    program.copy({.target = kNotifySenderInbox, .offset = kNotifyMessageOffset},
                 {.target = kNotifySenderMessage}, shape.messageBytes);
  program.store({.target = kNotifySenderInbox}, kThisMessage, Order::kRelease);
  return program.build();
}

Program notifyReceiver(const NotifyShape& shape) {
  ProgramBuilder program("notify-take");
  program.cursor(1);
  program.target(notifyRing("inbox", Side::kLocal, shape.slots, shape.inboxStrideBytes));
  program.target({.name = "message", .side = Side::kLocal, .late = true});
  program.target(notifyRing("credits", Side::kRemote, shape.slots, kNotifyCreditStrideBytes));
  program.wait({.target = kNotifyReceiverInbox}, kThisMessage)
      .copy({.target = kNotifyReceiverMessage},
            {.target = kNotifyReceiverInbox, .offset = kNotifyHeaderOffset},
            uint64_t{kNotifyHeaderBytes} + shape.messageBytes)
      .store({.target = kNotifyReceiverCredits}, kThisMessage, Order::kRelease);
  return program.build();
}

}  // namespace peerlane
