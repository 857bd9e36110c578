// SPDX-License-Identifier: Apache-2.0
//
// FakeWire: two byte pipes joined in memory, with faults on command: partial progress, delay, loss,
// freezing. What it does is decided by its seed and its calls alone, not by time. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/transport/frame_pipe.h"

namespace peerlane {

class FakeWire {
 public:
  // `capacity` bytes are under way per direction at most.
  explicit FakeWire(uint64_t seed, size_t capacity = 64 * 1024);
  ~FakeWire();

  // The pipe of side 0 or 1. May outlive the wire.
  std::unique_ptr<FramePipe> end(int side);

  // Each call moves 1 to `most` bytes, by the seed. 0: as many as fit.
  void setPartial(size_t most);
  // What `from` writes is taken, but arrives only after release().
  void hold(int from);
  // Lets `bytes` more of it arrive, or everything and what follows.
  void release(int from, size_t bytes);
  void releaseAll(int from);
  // The side stands still: it takes no byte and hands none out, as a stopped process.
  void freeze(int side);
  void thaw(int side);
  // The wire ends, for both sides, when `bytes` more of `from` have arrived. 0: now.
  void loseAfter(int from, uint64_t bytes);

  // As if threads attended at the side, or did not (FramePipe::mayOwe).
  void setMayOwe(int side, bool may);
  // What the side said last (FramePipe::setOwing).
  bool owes(int side) const;

  // Bytes that `from` has written so far.
  uint64_t written(int from) const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace peerlane
