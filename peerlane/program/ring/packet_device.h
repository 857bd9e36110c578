// SPDX-License-Identifier: Apache-2.0
//
// Packets: bytes that say by themselves that they are there. 16 bytes carry 8: two words, each with
// four of them and a flag, so that each word is whole by itself. Whoever finds the flag has the
// bytes: no signal behind them, no fence before it, one way over the link. For the price of twice
// the bytes, so for small ones. The same source runs in CPU threads. The idea is that of NCCL's LL
// protocols.
//
// A flag is not 0 and not the one that lies there: count them. A place may be written again once
// its packets were taken, which the other side has to say in some way (its answer does).
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/words/shared_word.h"

namespace peerlane::port {

inline constexpr uint64_t kPacketBytes = 16;
inline constexpr uint64_t kPacketDataBytes = 8;

// Where the packets of so many bytes, a multiple of 8, need room.
PEERLANE_DEVICE constexpr uint64_t packetRoom(uint64_t bytes) {
  return bytes / kPacketDataBytes * kPacketBytes;
}

// Nobody of the team goes on before `from` may be written. Requires: `to` on 16 bytes, `from` on 8,
// `bytes` a multiple of 8.
template <class Team>
PEERLANE_DEVICE void writePackets(const Team& team, std::byte* to, const std::byte* from,
                                  uint64_t bytes, uint32_t flag) {
  team.sync();
  auto* const packets = reinterpret_cast<WordPair*>(to);
  const auto* const words = reinterpret_cast<const uint32_t*>(from);
  const uint64_t mark = uint64_t{flag} << 32;
  for (uint64_t i = team.rank(); i < bytes / kPacketDataBytes; i += team.size())
    storePairRelaxed(packets + i, {mark | words[2 * i], mark | words[2 * i + 1]});
  team.sync();
}

// One packet, if it is there.
PEERLANE_DEVICE inline bool readPacket(const WordPair* packet, uint32_t* to, uint32_t flag) {
  const WordPair seen = loadPairAhead(packet);
  if (seen.first >> 32 != flag || seen.second >> 32 != flag) return false;
  to[0] = static_cast<uint32_t>(seen.first);
  to[1] = static_cast<uint32_t>(seen.second);
  return true;
}

}  // namespace peerlane::port
