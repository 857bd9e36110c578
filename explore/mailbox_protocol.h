// SPDX-License-Identifier: Apache-2.0
//
// The mailbox as programs: what a poster and an agent do to one mailbox, written in the ops of the
// waist so that the explorer can run every interleaving of it. The mailbox itself (mailbox.h)
// follows it word by word but is not made of it: it is what programs need before they can run.
// Thread-safe: no state.
//
//   shared  entries[slot]  one MailboxEntry (64 bytes)
//           doorbell       counter: entries rung, written by the poster
//           completion     counter: entries performed, written by the agent
//
// One poster and one serving agent at a time: both words are counters of the whole mailbox, and
// entries take effect in order. Cursor 0 is the number of the entry, on both sides.
#pragma once

#include "peerlane/program/model/program.h"

namespace peerlane {

inline constexpr uint32_t kMailboxEntryBytes = 64;

enum MailboxPosterTarget : TargetId {
  kPosterEntry,       // local: what to post
  kPosterEntries,     // remote ring
  kPosterDoorbell,    // remote counter
  kPosterCompletion,  // local counter
};
enum MailboxAgentTarget : TargetId {
  kAgentEntries,     // local ring
  kAgentWork,        // local: the entry in the agent's hands
  kAgentDoorbell,    // local counter
  kAgentCompletion,  // remote counter
};

// Claims a slot, fills it, rings. Does not wait for the completion: several entries may be in
// flight.
Program mailboxPost(uint32_t slots);
// Waits until the entry with the cursor's number was performed. Entries are awaited in any order.
Program mailboxAwait(uint32_t slots);
// Takes the next entry. Between this and mailboxComplete the agent performs it.
Program mailboxTake(uint32_t slots);
// Tells that it was performed: what the agent wrote before is visible to the poster.
Program mailboxComplete(uint32_t slots);

}  // namespace peerlane
