// SPDX-License-Identifier: Apache-2.0
//
// LL packets of port channels: bytes that carry the proof of their arrival. A packet of 16 bytes
// carries 8: two words, each with four bytes and a flag, so that each word is valid by itself. A
// thread that finds the flag has the bytes: the sender needs no signal after them and no fence
// before a signal, and the packet crosses the link once. The price is twice the bytes, so packets
// are for small messages. The same source runs in CPU threads. The idea is that of NCCL's LL
// protocols.
//
// A flag must not be 0 and must differ from the one that lies there, so senders count them. A
// sender may write a place again only after the receiver has taken the packets, and the receiver
// must tell it so in some way (its answer does).
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/words/shared_word.h"

namespace peerlane::port {

inline constexpr uint64_t kPacketBytes = 16;
inline constexpr uint64_t kPacketDataBytes = 8;

// The bytes that the packets of so many payload bytes, a multiple of 8, need.
PEERLANE_DEVICE constexpr uint64_t packetRoom(uint64_t bytes) {
  return bytes / kPacketDataBytes * kPacketBytes;
}

// When it returns, every thread of the team may write `from` again. Requires: `to` aligned to 16
// bytes, `from` to 8, `bytes` a multiple of 8.
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

// Reads one packet; false when it is not there yet.
PEERLANE_DEVICE inline bool readPacket(const WordPair* packet, uint32_t* to, uint32_t flag) {
  const WordPair seen = loadPairAhead(packet);
  if (seen.first >> 32 != flag || seen.second >> 32 != flag) return false;
  to[0] = static_cast<uint32_t>(seen.first);
  to[1] = static_cast<uint32_t>(seen.second);
  return true;
}

}  // namespace peerlane::port
