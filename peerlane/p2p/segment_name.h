// SPDX-License-Identifier: Apache-2.0
//
// SegmentName: what a P2pSegmentInfo holds here: which process registered which memory, where it
// lies there, and a key without which its owner tells nobody how to reach it (SegmentProof). Plain
// value.
//        0  u8[4]   "PLSG"
//        4  u8      version, 2
//        5  u8      rights of peers: 1 read, 2 write; 16: CUDA's memory, else the host's
//        6  u16     CRC-16 (0x1021, from 0xffff) of all the other bytes, in their order
//        8  u8[16]  process: random, of the one that registered it
//       24  u64     number, never used twice by a process
//       32  u8[16]  key, random
//       48  u64     address in that process
//       56  u64     bytes
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane::p2p {

using ProcessToken = std::array<uint8_t, 16>;
// So long that nobody finds it by trying, who has seen a hash of it.
using SegmentKey = std::array<uint8_t, 16>;

struct SegmentName {
  static constexpr size_t kEncodedBytes = 64;

  ProcessToken process{};
  uint64_t number = 0;
  SegmentKey key{};
  uint64_t address = 0;
  uint64_t bytes = 0;
  Access access = Access::kLocal;
  DeviceKind kind = DeviceKind::kHost;

  void encode(std::span<char, kEncodedBytes> out) const;
  // kCorrupt, saying what is wrong.
  static Result<SegmentName> decode(std::span<const char, kEncodedBytes> bytes);
};

}  // namespace peerlane::p2p
