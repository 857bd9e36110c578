// SPDX-License-Identifier: Apache-2.0
//
// RevokedImports: imported regions that the peer takes back. Each is confirmed once nothing of this
// side touches it any more. Posting threads do not tell when they let go of a region, because that
// would cost each post; so this looks, in turns and every millisecond. There may be thousands of
// such regions: a look is at a few of them, in rotation. Owned by PeerCore. turn() is called by the
// thread that has the turn; the rest is confined to the progress thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/import_cache.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/session/peer/imports.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class RevokedImports {
 public:
  RevokedImports(PeerEnvironment& env, const Imports& imports) : env_(env), imports_(imports) {}

  Status handle(control::Revoke& message);
  // True when something was confirmed.
  bool turn() { return count_.load(std::memory_order_relaxed) != 0 && lookInTurn(); }
  // The peer has left: nothing is confirmed any more.
  void stop() { timer_.cancel(); }

 private:
  struct Revoked {
    uint64_t request;
    uint64_t allocation;
    uint64_t generation;
    // By each link that attached it; none: only users that left it are waited for.
    std::vector<std::shared_ptr<ImportedRegion>> regions;
  };
  using Clock = std::chrono::steady_clock;
  void watch();
  bool lookInTurn();
  bool look(size_t most) PEERLANE_REQUIRES(mutex_);
  bool isLetGo(const Revoked& revoked) const;

  PeerEnvironment& env_;
  const Imports& imports_;
  Timer timer_;
  Mutex mutex_;
  // Until drained here; the one that was looked at longest ago is the first.
  std::deque<Revoked> revoked_ PEERLANE_GUARDED_BY(mutex_);
  Clock::time_point nextLook_ PEERLANE_GUARDED_BY(mutex_){};  // in a turn, not before
  std::atomic<uint32_t> count_{0};  // of revoked_, a hint for turns: worth taking the lock
};

}  // namespace peerlane
