// SPDX-License-Identifier: Apache-2.0
//
// Notify: a put that carries a message of up to 4 KiB, visible only after the put's bytes. Several
// threads may notify, each execution with a cursor of its own: words belong to slots, so messages
// become visible in any order and are taken in the order of their numbers. Thread-safe: no state.
//
//   at the receiver  inbox[slot]    {u64 sequence; u32 bytes; u32 tag; message}
//   at the sender    credits[slot]  {u64 sequence}
#pragma once

#include "peerlane/channel/protocol/signal_protocol.h"

namespace peerlane {

inline constexpr uint32_t kNotifyHeaderBytes = 8;  // u32 bytes, u32 tag
inline constexpr uint32_t kNotifyHeaderOffset = 8;
inline constexpr uint32_t kNotifyMessageOffset = kNotifyHeaderOffset + kNotifyHeaderBytes;
inline constexpr uint32_t kNotifyCreditStrideBytes = 64;
inline constexpr uint32_t kNotifyMaxMessageBytes = 4096;

enum NotifySenderTarget : TargetId {
  kNotifySenderHeader,    // local, 8 bytes
  kNotifySenderMessage,   // local
  kNotifySenderInbox,     // remote ring
  kNotifySenderCredits,   // local ring of words
  kNotifySenderFirstData  // PutPayload::targets from here on
};
enum NotifyReceiverTarget : TargetId {
  kNotifyReceiverInbox,    // local ring
  kNotifyReceiverMessage,  // local, late (the header says how large): header, then message
  kNotifyReceiverCredits,  // remote ring of words
};

struct NotifyShape {
  uint32_t slots = 0;
  uint32_t inboxStrideBytes = kNotifyMessageOffset + kNotifyMaxMessageBytes;
  uint32_t messageBytes = 0;  // sender: exactly; receiver: the largest. 0: the header alone
};

// Requires: messageBytes + kNotifyMessageOffset <= inboxStrideBytes. `payload` without targets: the
// message alone.
Program notifySender(const NotifyShape& shape, PutPayload payload);
Program notifyReceiver(const NotifyShape& shape);

}  // namespace peerlane
