// SPDX-License-Identifier: Apache-2.0
//
// ContextEnd: the end of one context. It closes the doors, says goodbye to every peer, waits until
// the peers have taken in what was sent to them, stops the progress thread, and keeps the memory
// that a peer without a goodbye may still write to. Farewell (farewell.h) is the list of all
// contexts of the process that calls it at exit().
//
// Threads: as each call says. In a forked child no call may be made: threads that do not exist
// there may hold the locks of the parts. No lock of its own. Owner: the context's state. The post
// of begin() does not keep it alive.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "peerlane/core/config.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class Absentees;
class Arrivals;
class Invitations;
class PeerTable;

// What one peer may still write to when a context is gone.
struct LentRegions {
  void add(const RegionRecord& record, bool isKept);

  size_t count = 0;
  size_t kept = 0;  // of them: their memory is no one's any more
  uint64_t bytes = 0;
  std::string first;
};

class ContextEnd {
 public:
  using Clock = std::chrono::steady_clock;
  // kContext waits until the peers let go of memory that was lent to them for good (the windows of
  // a port); with kProcess that memory goes.
  enum class Leaver : uint8_t { kContext, kProcess };

  struct Surroundings {
    const Config& config;
    Progress& progress;
    RegionTable& regions;
    PeerTable& peers;
    Absentees& absentees;
    Arrivals& arrivals;
    Invitations& invitations;
    std::function<void()> closeDoors;  // nobody comes in any more; progress thread
    std::weak_ptr<void> owner;         // the context's state
  };
  explicit ContextEnd(Surroundings around) : around_(std::move(around)) {}

  // Any thread. Returns at once; on the progress thread all goodbyes are said then, else soon. May
  // be called again.
  void begin();
  // Any thread; on the progress thread it returns at once. Waits until every peer has left, at most
  // for PEERLANE_PEER_TIMEOUT.
  void await(Clock::time_point deadline, Leaver leaver);
  // All of it, and the end of the progress thread. Not on that thread. Once.
  void finish();

 private:
  void closeAll();
  void letGoOfTheRest();
  std::map<RegionTable::PeerNumber, LentRegions> keepWhatIsLent();

  const Surroundings around_;
};

}  // namespace peerlane
