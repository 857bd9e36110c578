// SPDX-License-Identifier: Apache-2.0
//
// Refusals of a mailbox entry that a verbs link can give before any request is made for it. Inside
// serve(), or of works in the agent's hands.
#pragma once

#include "peerlane/program/model/mailbox.h"

namespace peerlane {

inline bool isWord(Verb verb) {
  return verb == Verb::kStore || verb == Verb::kAdd64;
}

// It brings bytes back, so an entry after it in its mailbox must wait for the answer.
inline bool readsBack(Verb verb) {
  return verb == Verb::kGet || verb == Verb::kAdd64 || verb == Verb::kFlush;
}

// kOk, or the refusal that this side can see before the peer's device does, which would break the
// pair: kInvalidArgument (outside the region, a word that is not aligned), kPermissionDenied.
Code refusalOf(const MailboxEntry& entry);

// The failure of the entries before this one in its mailbox, as far as it is known: one that is
// under way breaks the pair, if it fails, before the device gets to this one.
Code failureBefore(const AgentWork& work);

// One before it could not be made, which was not known when it came. It has that code then.
bool isInVain(AgentWork& work);

}  // namespace peerlane
