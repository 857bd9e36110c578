// SPDX-License-Identifier: Apache-2.0
//
// Signal: a 64-bit counter at this side to which one peer adds (Notify::signal, Plan, addSignal).
// It only grows. A connection has 64 of them, numbered alike on both sides. Thread-safe.
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

  // The sum that the peer has added so far. Acquire: the bytes of every put whose addition is in it
  // are visible.
  uint64_t value() const;
  // Waits until value() >= `value`. Errors: kTimeout, kPeerLost, kPeerSilent.
  Status wait(uint64_t value, std::chrono::nanoseconds timeout) const;
  // A descriptor for epoll, poll and select that is readable once value() >= `value`, or the peer
  // is silent or gone (wait() with a timeout of 0 says which). When the peer's CPU adds, it is
  // readable at once. When one of the peer's GPUs adds, which wakes no thread, it is readable
  // within a millisecond: for that the progress thread looks every millisecond as long as the value
  // is not reached. The result of one create() and its copies share one descriptor; each call moves
  // the value that it waits for, and makes it readable at once if that value is reached already. To
  // wait for two values at a time, create() two. Read nothing from it. Lifetime: until the last
  // copy of this Signal goes. An error means that the process has no descriptors left.
  Result<int> fd(uint64_t value) const;
  // Holds a GPU's stream until value() >= `value`; the call returns at once. Work that is enqueued
  // after it sees the bytes of every put whose addition is in the value. The transfer ends when the
  // stream has gone on: with OK; with kTimeout, kCancelled, kPeerLost or kPeerSilent when the
  // stream was released without that.
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

// Adds to the peer's signal, after everything posted to this peer that had ended before.
Result<Transfer> addSignal(const Peer& peer, uint32_t number, uint64_t value = 1);

}  // namespace peerlane
