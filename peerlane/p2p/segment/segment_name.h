// SPDX-License-Identifier: Apache-2.0
//
// SegmentName: the contents of a P2pSegmentInfo: the process that registered the memory, where the
// memory lies in that process, and a key. The owner tells only a peer that proves to have the key
// how the memory is reached (SegmentProof). Plain value; any thread.
//        0  u8      0xd0 and the version, 3
//        1  u8      rights of peers: 1 read, 2 write; 16: CUDA's memory, else the host's
//        2  u16     CRC-16 (0x1021, from 0xffff) of all the other bytes, in their order
//        4  u32     number, which a process never uses twice: the lower 32 bits of 48
//        8  u8[8]   process that registered it: random
//       16  u8[16]  key, random
//       32  u64     address in that process
//       40  u64     bytes, 48 bits; above them the upper 16 bits of the number
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane::p2p {

// Tells processes apart, and proves nothing. Two processes that drew the same token are refused and
// never mixed up, because their segments have different keys.
using ProcessToken = std::array<uint8_t, 8>;
// So long that a peer that has seen a hash of it cannot find it by trying.
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
  // Whether all of the range lies in the segment. The address is one of the segment's process.
  bool holds(uint64_t rangeAddress, uint64_t rangeBytes) const {
    return rangeAddress >= address && rangeAddress - address <= bytes &&
           rangeBytes <= bytes - (rangeAddress - address);
  }
  // Requires: bytes <= kMostBytes, number <= kMostNumber.
  void encode(std::span<char, kEncodedBytes> out) const;
  // kCorrupt, saying what is wrong.
  static Result<SegmentName> decode(std::span<const char, kEncodedBytes> bytes);
};

// For sentences: [0x7f0000001000, +4096).
std::string rangeText(uint64_t address, uint64_t bytes);

}  // namespace peerlane::p2p
