// SPDX-License-Identifier: Apache-2.0
//
// The slab: memory that each side of a connection keeps for the other to write: signal counters and
// the inbox of notifications. An ordinary region (one memfd per peer, so that no peer reaches
// another's), granted when the link is made. This is its byte map; docs/wire.md has the same as a
// specification.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerlane::slab {

inline constexpr uint32_t kWordStrideBytes = 64;  // one counter per cache line

inline constexpr uint32_t kSignals = 64;
inline constexpr uint64_t kSignalsOffset = 0;

// Credits for notifications this side sent: a word per slot, written by the peer.
inline constexpr uint32_t kNotifySlots = 16;
inline constexpr uint64_t kCreditsOffset = kSignalsOffset + uint64_t{kSignals} * kWordStrideBytes;

// Notifications of the peer: {u64 sequence, u32 bytes, u32 tag, message}, padded to cache lines.
inline constexpr uint32_t kNotifyMaxMessageBytes = 4096;
inline constexpr uint32_t kInboxStrideBytes = 64 + kNotifyMaxMessageBytes;
inline constexpr uint64_t kInboxOffset = kCreditsOffset + uint64_t{kNotifySlots} * kWordStrideBytes;

inline constexpr uint64_t kBytes = kInboxOffset + uint64_t{kNotifySlots} * kInboxStrideBytes;
static_assert(kCreditsOffset % 64 == 0 && kInboxOffset % 64 == 0 && kInboxStrideBytes % 64 == 0);
static_assert(kBytes <= 72 * 1024,
              "a peer costs this much address space, and memory only where used");

}  // namespace peerlane::slab
