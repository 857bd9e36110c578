// SPDX-License-Identifier: Apache-2.0
//
// SignalWatch: makes Signal::fd() readable. It is a task that looks at the signal's word whenever
// the context takes a turn: after every ring of a producer's bell, and every millisecond while a
// device's stores are expected. The engine has it only while there is something to wait for.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/os/readiness.h"
#include "peerlane/program/words/counter_line.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// The sum that the peer has added to the signal with this word.
inline uint64_t signalValue(const PeerCore& peer, const std::byte* word) {
  // Devices of the peer add to words of their own.
  return peer.links().devicesAdd() ? CounterLine::value(word) : loadWord(word, Width::k64);
}

class SignalWatch final : public Task, public std::enable_shared_from_this<SignalWatch> {
 public:
  // `word`: in the peer's slab of this side.
  SignalWatch(std::shared_ptr<PeerCore> peer, const std::byte* word)
      : peer_(std::move(peer)), word_(word) {}
  ~SignalWatch() override;

  // Readable once the signal has reached `value`, or the peer is gone.
  Result<int> fd(uint64_t value);
  // Closes the descriptor: no caller will look at it any more.
  void abandon();

  Turn turn() override;
  std::string describe() const override;

 private:
  uint64_t value() const { return signalValue(*peer_, word_); }
  void lookLocked() PEERLANE_REQUIRES(mutex_);
  bool isOver() const;

  const std::shared_ptr<PeerCore> peer_;
  const std::byte* const word_;
  mutable Mutex mutex_;
  Readiness readiness_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t wanted_ PEERLANE_GUARDED_BY(mutex_) = 0;
  bool wasReached_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool active_ PEERLANE_GUARDED_BY(mutex_) = false;   // a task of the engine
  bool expects_ PEERLANE_GUARDED_BY(mutex_) = false;  // stores of a device
  bool abandoned_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
