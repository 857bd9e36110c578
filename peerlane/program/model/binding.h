// SPDX-License-Identifier: Apache-2.0
//
// Binding: what a program's targets are, for one executor in one process. The only place where an
// address meets a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/model/op.h"
#include "peerlane/program/model/waker.h"

namespace peerlane {

// One target. `address` set: loads and stores reach it. Else `remote` is set and an agent reaches
// it.
struct BoundTarget {
  std::byte* address = nullptr;
  uint64_t bytes = 0;  // of the target; ops outside are refused when the program is prepared
  const RemoteMemory* remote = nullptr;  // set for memory of a peer, mapped or not
  uint64_t remoteOffset = 0;             // where the target starts in that region
  const Waker* waker = nullptr;          // words that another process polls: wakes its threads
  // Mapped, and behind a file that another process may cut. A call of the kernel copies it, because
  // a plain access would end the process; a run that finds it cut ends with kRevoked.
  bool mayBeCut = false;
  // Memory of the library that lives as long as the run: an agent may read it plainly, and a put
  // out of it does not fail here. Else it is the program's, which may be gone when an agent comes.
  bool isOurs = false;

  // The whole of [offset, +bytes) of a region of the peer, mapped or not.
  static BoundTarget ofPeer(const RemoteMemory& memory, uint64_t offset, uint64_t bytes) {
    return {.address = memory.mapped == nullptr ? nullptr : memory.mapped + offset,
            .bytes = bytes,
            .remote = &memory,
            .remoteOffset = offset,
            .mayBeCut = memory.mayBeCut};
  }
};

class LateBinder {
 public:
  virtual ~LateBinder() = default;
  // The executor calls it once per run for each late target, when the program reaches the first op
  // that touches it: every wait before that op is satisfied. An error ends the run with that status
  // before the op. May set `bytes` to 0: copies from or to that target are then skipped (the other
  // side learns why by its own words).
  virtual Status bind(TargetId target, BoundTarget& out) = 0;
};

// Lifetime: everything pointed to must outlive the runs made with it.
struct Binding {
  std::vector<BoundTarget> targets;
  Mailbox* mailbox = nullptr;  // needed as soon as one target is reached by an agent
};

}  // namespace peerlane
