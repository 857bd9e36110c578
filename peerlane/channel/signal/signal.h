// SPDX-License-Identifier: Apache-2.0
//
// Signal: a 64-bit counter at this side that one peer adds to (Notify::signal, Plan, addSignal). It
// only grows; 64 per connection, numbered alike on both sides. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class SignalWatch;

class Signal {
 public:
  static constexpr uint32_t kCount = 64;

  // kInvalidArgument when `number` is not below kCount.
  static Result<Signal> create(const Peer& peer, uint32_t number);

  // What the peer added so far. Acquire: the bytes of every put whose addition is in it are
  // visible.
  uint64_t value() const;
  // Until value() >= `value`. kTimeout, kPeerLost, kPeerSilent.
  Status wait(uint64_t value, std::chrono::nanoseconds timeout) const;
  // A descriptor for epoll, poll and select that is readable once value() >= `value`, or the peer
  // is silent or gone (wait() with a timeout of 0 says which). When the peer's CPU adds it is
  // readable at once; when one of its GPUs does, which wakes nobody, within a millisecond: for that
  // the progress thread looks every millisecond as long as the value is not reached. One descriptor
  // for what create() returned and its copies; each call moves the value it waits for, and is told
  // at once of one that is reached already. To wait for two values at a time, create() two. Read
  // nothing from it. Lifetime: until the last copy of this Signal goes. An error when the process
  // has no descriptors left.
  Result<int> fd(uint64_t value) const;
  // Holds a GPU's stream until then; the call returns at once. What is enqueued behind it sees the
  // bytes of every put whose addition is in the value. The transfer ends when the stream has gone
  // on: OK; kTimeout, kCancelled, kPeerLost or kPeerSilent when it was let go without that.
  // On a stream that is being captured into a graph the wait is a part of the graph: the first
  // replay waits for `value`, each later one for `perReplay` more. It has no timeout; losing the
  // peer lets the stream go on, and the transfer says so (PostOptions::deviceStream).
  Result<Transfer> waitOn(DeviceStream stream, uint64_t value,
                          std::chrono::nanoseconds timeout = std::chrono::hours(24),
                          uint64_t perReplay = 1) const;

 private:
  struct Watched;  // ends the watch with the last copy
  Signal(Peer peer, const std::byte* word);
  uint64_t word() const;
  Peer peer_;
  const std::byte* word_;
  std::shared_ptr<Watched> watched_;
};

// Adds to the peer's signal, after everything of this peer that had ended before.
Result<Transfer> addSignal(const Peer& peer, uint32_t number, uint64_t value = 1);

}  // namespace peerlane
