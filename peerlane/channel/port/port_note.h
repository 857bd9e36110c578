// SPDX-License-Identifier: Apache-2.0
//
// PortNote: a control message (note) between two services about one semaphore. docs/wire.md has the
// bytes. Set-up path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"

namespace peerlane {

inline constexpr uint32_t kPortChannel = 0xffff'fffcu;

// A semaphore's line: where it lies in a region of the sender's.
struct LinePlace {
  bool isThere = false;
  RegionReference::Encoded region{};
  uint64_t offset = 0;
};

struct PortNote {
  enum class Kind : uint8_t {
    kHello = 1,   // I have such a semaphore; here is where you may signal me
    kReady = 2,   // I signal you at your line `usesHostLine`
    kEnded = 3,   // it is over: `code`, `text`
    kGone = 4,    // nothing here signals your line any more: it may serve another semaphore
    kGaveUp = 5,  // my hello is withdrawn, and nobody was met: `code`, `text`
  };
  static constexpr uint8_t kVersion = 1;
  static constexpr uint32_t kMaxText = 512;

  Kind kind = Kind::kHello;
  uint32_t tag = 0;
  uint64_t serial = 0;     // of the sender's semaphore: a tag may be used again
  LinePlace deviceLine{};  // kHello, as the next
  LinePlace hostLine{};
  bool usesHostLine = false;  // kReady, as the next
  uint64_t answers = 0;       // the serial of the hello in which that line was named
  Code code = Code::kOk;      // kEnded and kGaveUp, as the next
  std::string text{};

  std::vector<std::byte> encode() const;
  // kCorrupt naming what is wrong.
  static Result<PortNote> decode(std::span<const std::byte> bytes);
};

}  // namespace peerlane
