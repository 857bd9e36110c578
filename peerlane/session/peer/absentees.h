// SPDX-License-Identifier: Apache-2.0
//
// Absentees: peers whose connection ended without a goodbye, and whose processes may go on writing
// to the regions they imported. Of such a peer only that is kept, and the proof of its end: no
// link, no ring, no socket. Confined to the progress thread, but for isWaitedFor() and
// describe().
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/process.h"

namespace peerlane {

// Proof that nobody writes through a peer's mappings any more.
struct ProofOfEnd {
  std::optional<ProcessHandle> process;  // none: nothing will ever tell
  std::optional<AddressSpace> memory;    // ends earlier where the process calls exec
  bool given() const { return (process && !process->alive()) || (memory && memory->hasEnded()); }
};

class Absentees {
 public:
  using Number = RegionTable::PeerNumber;

  explicit Absentees(RegionTable& regions) : regions_(regions) {}

  // Returns the number that stands for the peer from now on: its own, an earlier one of the same
  // process, which takes its imports over, or 0 where it imports nothing, or has ended.
  Number add(EventLoop& loop, Number peer, ProofOfEnd proof);
  // Calls `done` once the end of the peer is proven. Requires: isWaitedFor(peer).
  void await(Number peer, std::function<void()> done) PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  bool isWaitedFor(Number peer) const;
  // Nothing is watched any more; no callback of await() will come.
  void stop() PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  // One line for each, for dumps.
  std::string describe() const;

 private:
  struct Absentee {
    Number peer = 0;
    ProofOfEnd proof;
    Watch end;  // progress thread, as the next
    std::vector<std::function<void()>> awaiting;
  };
  void look(EventLoop& loop) PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  void settle(std::list<Absentee>::iterator absentee);

  RegionTable& regions_;
  mutable Mutex mutex_;
  // The progress thread alone changes the list, under the lock, so it may read it without the lock:
  // await(), stop() and look() do, and are not analysed.
  std::list<Absentee> absentees_ PEERLANE_GUARDED_BY(mutex_);
  Timer lookTimer_;
  bool stopped_ = false;
};

}  // namespace peerlane
