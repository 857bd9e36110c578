// SPDX-License-Identifier: Apache-2.0
//
// Writes the mailbox entries of a doorbell queue ahead of the time when they are rung: what CpuRun
// does when it gets to an op, for somebody else to launch. No state.
#pragma once

#include <cstdint>

#include "peerlane/channel/trigger/posted_work.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/program/cpu/open_puts.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/model/waker.h"

namespace peerlane {

// What of a mailbox may be under way when its next entry is rung. Entries of one verb take effect
// in order by themselves; a device of a network may begin a put before a get ahead of it has ended.
struct OpenEntries {
  enum class Kind : uint8_t { kNone, kPuts, kGets, kAdditions };  // the last of memory of users
  cpu::OpenPuts puts;
  Kind kind = Kind::kNone;
};

// Claims entries for the blocks that `work` moves, and fills them; `work` keeps their pieces. The
// number of entries. Claims nothing with an error: kTryAgain where the mailbox has no room.
Result<uint64_t> writeEntries(Mailbox& mailbox, PostedWork& work, bool isPut, OpenEntries& open);

// The same for an addition to a word of `memory`, after everything that was written before. It
// takes one entry. `waker`: of the peer's threads that wait for it, where the memory is mapped
// here; null: nobody. `isSignal`: no put or get touches the word.
Result<uint64_t> writeAddition(Mailbox& mailbox, const RemoteMemory& memory, uint64_t offset,
                               uint64_t value, const Waker* waker, bool isSignal,
                               OpenEntries& open);

}  // namespace peerlane
