// SPDX-License-Identifier: Apache-2.0
//
// SegmentName: what a P2pSegmentInfo holds here: which process registered which memory, where it
// lies there, and a key without which its owner tells nobody how to reach it (SegmentProof). Plain
// value.
//        0  u8      0xd0 and the version, 3
//        1  u8      rights of peers: 1 read, 2 write; 16: CUDA's memory, else the host's
//        2  u16     CRC-16 (0x1021, from 0xffff) of all the other bytes, in their order
//        4  u32     number, never used twice by a process: its lower 32 bits of 48
//        8  u8[8]   process: random, of the one that registered it
//       16  u8[16]  key, random
//       32  u64     address in that process
//       40  u64     bytes, 48 bits; above them the upper 16 bits of the number
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane::p2p {

// Tells processes apart, and proves nothing: two that drew the same are refused, never mixed up,
// because of the key.
using ProcessToken = std::array<uint8_t, 8>;
// So long that nobody finds it by trying, who has seen a hash of it.
using SegmentKey = std::array<uint8_t, 16>;

struct SegmentName {
  static constexpr size_t kEncodedBytes = 48;  // as many as the original's
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 48) - 1;
  static constexpr uint64_t kMostNumber = kMostBytes;

  ProcessToken process{};
  uint64_t number = 0;
  SegmentKey key{};
  uint64_t address = 0;
  uint64_t bytes = 0;
  Access access = Access::kLocal;
  DeviceKind kind = DeviceKind::kHost;

  bool operator==(const SegmentName&) const = default;
  // Requires: neither more bytes nor a greater number than the above.
  void encode(std::span<char, kEncodedBytes> out) const;
  // kCorrupt, saying what is wrong.
  static Result<SegmentName> decode(std::span<const char, kEncodedBytes> bytes);
};

}  // namespace peerlane::p2p
