// SPDX-License-Identifier: Apache-2.0
//
// TriggerSignals: how the programs of a mapped queue of a device add to signals of the peer. A
// device adds to no word of a host atomically; so the queue is lent a word of the counter line of
// each signal that it names, as the only one that stores to it, and its programs store totals. It
// has the word until no executor runs its programs any more. The poster's, but for giveBack().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/channel/trigger/trigger_stream.h"
#include "peerlane/core/status.h"
#include "peerlane/program/device/counter_lender.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/session/peer/peer_slab.h"

namespace peerlane {

// An addition that was posted.
struct TriggerAddition {
  uint32_t signal = 0;
  uint64_t add = 0;
};

class TriggerSignals {
 public:
  // Both outlive it. `stream`: null where threads of the CPU run the programs, which add by
  // themselves.
  TriggerSignals(PeerCore& peer, const std::unique_ptr<TriggerStream>& stream)
      : peer_(peer), stream_(stream) {}
  ~TriggerSignals();

  // The peer's slab, where the device reaches it. Errors: those of DeviceWindows.
  Result<std::byte*> window();
  // The word, by its offset in the slab, and the total that it must have once `addition`, and all
  // before it, were made. kUnavailable: no word is free, with their number.
  struct Store {
    uint64_t offset;
    uint64_t total;
  };
  Result<Store> add(const TriggerAddition& addition);
  // These were not enqueued, and nothing was posted after them.
  void takeBack(std::span<const TriggerAddition> additions);
  // Requires: nothing is posted any more, and no executor runs a program. Idempotent.
  void giveBack();

 private:
  PeerCore& peer_;
  const std::unique_ptr<TriggerStream>& stream_;
  std::array<LentCounter, slab::kSignals> lent_{};  // `total`: of all that was posted
};

}  // namespace peerlane
