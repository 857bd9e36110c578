// SPDX-License-Identifier: Apache-2.0
//
// DeviceSteps: a short program of waits, copies and stores, such as one side of a message, made
// ready to be launched on streams of a device again and again with other numbers, places and sizes.
// Names of regions: how a program finds memory that its peer names in a message.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/model/op.h"

namespace peerlane {

// Regions of a peer, by the names that messages use. Kernels look a name up and wait for one that
// is not there. One writer at a time.
class RegionNames {
 public:
  virtual ~RegionNames() = default;
  // kUnavailable when there is no more room.
  virtual Status add(uint64_t allocation, uint64_t generation, std::byte* base, uint64_t bytes) = 0;
  // Requires: no program that may ask for it is queued.
  virtual void remove(uint64_t allocation, uint64_t generation) = 0;
};

// What a device program is told beyond its ops.
struct StepRules {
  // Behind the first wait, the word at `place` must equal the value; else the copies are left out,
  // and the call's fault word is stored.
  struct Expected {
    Place place{};
  };
  std::vector<Expected> expected{};
  // Where late targets are: three words of a slot that the program has waited for name a region and
  // the offset in it.
  struct Lookup {
    Place slot{};
    uint32_t allocationAt = 0;
    uint32_t generationAt = 0;
    uint32_t offsetAt = 0;
    const RegionNames* names = nullptr;
    // Of a program whose copy stands for the pieces of a call: where they go is in the slot of this
    // ring (program/device/piece_names.h), and `regionsAt` of `slot` says how many regions it
    // names.
    Place list{};
    uint32_t regionsAt = 0;
  };
  Lookup lookup{};
  // The copy's source are the words that come with each call.
  bool copiesWords = false;
  // The store with this index is left out with the copies.
  static constexpr uint32_t kNoOp = ~uint32_t{0};
  uint32_t acceptingStore = kNoOp;
  // Behind the first wait, the word at `place` must have reached what was waited for; else the
  // call's fault word is stored. A place without a target: nothing is looked at.
  Place accepted{};
};

class DeviceSteps {
 public:
  virtual ~DeviceSteps() = default;
};

// Other values for one op of a call, by its index in the program; expected words are numbered on
// behind the ops.
struct StepPatch {
  uint32_t op = 0;
  std::byte* address = nullptr;  // copies: instead of the place in local memory
  uint64_t bytes = 0;            // copies
  int64_t value = 0;             // stores and expected words, where no cursor is used
};

// What goes to the place of the same number.
struct StepPiece {
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// One launch.
struct StepCall {
  const DeviceSteps* steps = nullptr;
  uint64_t cursor = 0;
  // In memory of the device, or null: what `cursor` is added to, and what grows by `advance` once
  // per execution.
  std::byte* cursorWord = nullptr;
  uint64_t advance = 0;
  static constexpr uint32_t kMostPatches = 6;
  std::array<StepPatch, kMostPatches> patches{};
  uint32_t patchCount = 0;
  const std::atomic<uint64_t>* abort = nullptr;  // borrowed words, both; waits look at this one
  std::atomic<uint64_t>* fault = nullptr;
  uint64_t faultValue = 0;
  // In memory of the device, or null: 0 until a wait of a call that names it is released; then
  // those behind, on any stream, do nothing for the peer.
  std::byte* ended = nullptr;
  // Instead of the copy's source, where the rules say so; the caller's until the call is posted.
  std::span<const StepPiece> pieces{};
  std::span<const uint64_t> words{};

  void patch(const StepPatch& patch) { patches[patchCount++] = patch; }
};

}  // namespace peerlane
