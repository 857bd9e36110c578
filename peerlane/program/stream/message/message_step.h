// SPDX-License-Identifier: Apache-2.0
//
// Steps: the ops of a message's side with their targets resolved. What has a kernel of its own is
// recognised by them. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/program/kernel/message/named_region.h"

namespace peerlane::stream {

// base + offset; with slots > 0: base + ((cursor + slotDelta) mod slots) * strideBytes + offset.
// `late`: the place that LateSource finds, + offset; only for copies.
struct StepPlace {
  std::byte* base = nullptr;
  uint64_t offset = 0;
  uint32_t slots = 0;
  uint32_t strideBytes = 0;
  int64_t slotDelta = 0;
  bool late = false;
};

enum class StepCode : uint8_t {
  kWait,   // until (int64)(word `to` - value) >= 0
  kCopy,   // `bytes` from `from` to `to`
  kStore,  // word `to` = value, a system-wide release of everything before it
  // The word `to` must equal value; else the kernel stores the call's fault word and leaves out the
  // copies.
  kExpect,
};

struct Step {
  StepCode code = StepCode::kWait;
  StepPlace to{};
  StepPlace from{};
  uint64_t bytes = 0;
  int64_t delta = 0;  // the value: delta, or cursor + delta
  bool byCursor = false;
  // kCopy: the waits before it do not guard the source, so the kernel may read it before they are
  // satisfied. Saves a round trip to memory.
  bool early = false;
  // kStore: tells only that this side has read the bytes; the peer that sees the word must not rely
  // on any earlier write. Saves a fence.
  bool readsOnly = false;
};

// How a kernel finds late places: three words of an envelope name a region and an offset in it.
struct LateSource {
  StepPlace envelope;
  uint32_t allocationAt = 0, generationAt = 0, offsetAt = 0;  // bytes in the envelope
};

// A step, and the properties of its op on which patches and matching depend.
struct LoweredStep {
  Step step;
  bool isLocalTo = false;  // the word or destination is this side's
  bool packets = false;    // copies into or out of LL packets, and waits for them
};

}  // namespace peerlane::stream
