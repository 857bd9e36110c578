// SPDX-License-Identifier: Apache-2.0
//
// ReceivedCounts: how many messages of each kind a lane has received, and the metric of their
// bytes. Its LaneReceiver owns it. The runner of the lane adds; any thread may read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/core/metrics.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class ReceivedCounts {
 public:
  uint64_t of(MessageKind kind) const {
    return received_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  }
  // `engine` is a literal.
  void add(PeerCore& peer, MessageKind kind, const char* engine, uint64_t bytes) {
    const auto index = static_cast<size_t>(kind);
    // One writer: a load and a store cost less than a locked addition.
    received_[index].store(received_[index].load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
    auto& [name, counter] = counters_[index];
    if (name != engine) {
      name = engine;
      counter = &peer.metrics().bytes(peer.link().traits().transport, engine, "recv");
    }
    counter->add(bytes);
  }

 private:
  std::array<std::atomic<uint64_t>, 8> received_{};  // by kind
  std::array<std::pair<const char*, Counter*>, 8> counters_{};
};

}  // namespace peerlane
