// SPDX-License-Identifier: Apache-2.0
//
// PairNote: what the two ends of a communicator tell each other over the control connection: who
// they are, once, or that they wait for the other no longer; and how registered memory is reached,
// when it is asked for. Specified in docs/wire.md. Plain value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/p2p/segment/segment_proof.h"

namespace peerlane::p2p {

// Message channel of these notes, beyond those of users and of communicators.
inline constexpr uint32_t kPairChannel = 0xffff'fffdu;

struct PairNote {
  enum class Type : uint8_t { kHello = 1, kAsk = 2, kTell = 3, kGaveUp = 4 };
  static constexpr size_t kMostWords = 512;  // of `why`

  Type type = Type::kHello;
  // kHello
  uint8_t kind = 0;   // P2pKind
  uint8_t link = 0;   // P2pLink
  bool sends = true;  // messages are wanted
  ProcessToken process{};
  // kAsk, kTell
  uint64_t segment = 0;
  SegmentProof proof{};                  // kAsk
  Code code = Code::kOk;                 // kTell
  RegionReference::Encoded reference{};  // kTell, OK
  std::string why;                       // kTell, not OK

  std::vector<std::byte> encode() const;
  // kCorrupt.
  static Result<PairNote> decode(std::span<const std::byte> bytes);
};

}  // namespace peerlane::p2p
