// SPDX-License-Identifier: Apache-2.0
//
// PairNote: one message between the two ends of a communicator over the control connection. Each
// end sends one hello, which names its process and its kind, or says that it waits for the other's
// hello no longer. Later, one end asks how a segment of the other is reached, and the other
// answers. docs/wire.md specifies the bytes. Plain value.
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

// The message channel of these notes, above those of users and of communicators.
inline constexpr uint32_t kPairChannel = 0xffff'fffdu;

struct PairNote {
  enum class Type : uint8_t { kHello = 1, kAsk = 2, kAnswer = 3, kGaveUp = 4 };
  static constexpr size_t kMostWords = 512;  // bytes of `why`

  Type type = Type::kHello;
  // kHello
  uint8_t kind = 0;  // P2pKind
  uint8_t link = 0;  // P2pLink
  bool wantsMessages = true;
  ProcessToken process{};
  // kAsk, kAnswer
  uint64_t segment = 0;
  SegmentProof proof{};                  // kAsk
  Code code = Code::kOk;                 // kAnswer
  RegionReference::Encoded reference{};  // kAnswer, OK
  std::string why;                       // kAnswer, not OK

  std::vector<std::byte> encode() const;
  // kCorrupt: too short, or of an unknown type.
  static Result<PairNote> decode(std::span<const std::byte> bytes);
};

}  // namespace peerlane::p2p
