// SPDX-License-Identifier: Apache-2.0
//
// StepList: a short program of waits, copies and stores, such as one side of a message, lowered to
// the arguments of launches. The executor launches it on streams of a device again and again with
// other numbers, places and sizes. RegionNames: how a program finds memory that its peer names in a
// message.
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
// is not there yet. One writer at a time.
class RegionNames {
 public:
  virtual ~RegionNames() = default;
  // kUnavailable when the table is full.
  virtual Status add(uint64_t allocation, uint64_t generation, std::byte* base, uint64_t bytes) = 0;
  // Requires: no queued program may look it up.
  virtual void remove(uint64_t allocation, uint64_t generation) = 0;
};

// Rules of a step list that its ops do not express.
struct StepRules {
  // After the first wait, the word at `place` must equal the value; else the kernel leaves out the
  // copies and stores the call's fault word.
  struct Expected {
    Place place{};
  };
  std::vector<Expected> expected{};
  // How a kernel finds a late target: three words of a slot that the program has waited for name a
  // region and the offset in it.
  struct Lookup {
    Place slot{};
    uint32_t allocationAt = 0;
    uint32_t generationAt = 0;
    uint32_t offsetAt = 0;
    const RegionNames* names = nullptr;
    // For a program whose copy stands for the pieces of a call: the slot of this ring holds their
    // places (program/device/piece_names.h), and the word at `regionsAt` of `slot` says how many
    // regions it names.
    Place list{};
    uint32_t regionsAt = 0;
  };
  Lookup lookup{};
  // The copy reads the words that come with each call.
  bool copiesWords = false;
  // When the kernel leaves out the copies, it leaves out the store with this index, too.
  static constexpr uint32_t kNoOp = ~uint32_t{0};
  uint32_t acceptingStore = kNoOp;
  // After the first wait, the word at `place` must have reached the awaited number; else the kernel
  // stores the call's fault word. A place without a target means no check.
  Place accepted{};
};

class StepList {
 public:
  virtual ~StepList() = default;
};

// Other values for one op of a call, by its index in the program; the expected words have the
// indices after the ops.
struct StepPatch {
  uint32_t op = 0;
  std::byte* address = nullptr;  // copies: instead of the place in local memory
  uint64_t bytes = 0;            // copies
  int64_t value = 0;             // stores and expected words, where no cursor is used
};

// The local bytes that go to the place of the same number.
struct StepPiece {
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// One launch.
struct StepCall {
  const StepList* steps = nullptr;
  uint64_t cursor = 0;
  // A cursor in memory of the device, or null: `cursor` is added to it, and each execution adds
  // `advance` to it.
  std::byte* cursorWord = nullptr;
  uint64_t advance = 0;
  static constexpr uint32_t kMostPatches = 6;
  std::array<StepPatch, kMostPatches> patches{};
  uint32_t patchCount = 0;
  const std::atomic<uint64_t>* abort = nullptr;  // the abort word; borrowed, as the next
  std::atomic<uint64_t>* fault = nullptr;
  uint64_t faultValue = 0;
  // In memory of the device, or null: 0 until a wait of a call that names it is released. Calls
  // that name it and run after that, on any stream, do nothing for the peer.
  std::byte* ended = nullptr;
  // Replace the copy's source where the rules say so. The caller must keep both arrays until the
  // call is posted.
  std::span<const StepPiece> pieces{};
  std::span<const uint64_t> words{};

  void patch(const StepPatch& patch) { patches[patchCount++] = patch; }
};

}  // namespace peerlane
