// SPDX-License-Identifier: Apache-2.0
//
// Op: the seven things the library ever does. A protocol is a short list of ops. An executor runs
// them: a CPU thread, a stream, a kernel, or a NIC whose doorbell is a store. Plain values, no
// addresses: places are (target, offset), and the executor resolves them. The idea of a small
// address-free program that the wire hands to any device is PeerDirect Async's (2017).
#pragma once

#include <cstdint>

namespace peerlane {

enum class OpCode : uint8_t {
  kCopy,      // `bytes` from `from` to `to`
  kCopyList,  // every segment of list `list`
  kStore,     // write the word `to` = operand
  kAdd64,     // add operand to the 64-bit counter `to`, atomically
  kWait,      // do not go on before the word `to` satisfies `compare` with operand
  kFence,     // earlier writes are visible, within `scope`, before later ones
  kFlush,     // earlier writes to the peer of target `to` are visible there
};

enum class Width : uint8_t { k32 = 4, k64 = 8 };

// kRelease: a thread that reads the word with acquire sees everything that this program wrote
// before.
enum class Order : uint8_t { kRelaxed, kRelease };

// kGreaterEqual compares as CUDA does: (int64)(word - operand) >= 0. Shipped protocols use only it.
enum class Compare : uint8_t { kGreaterEqual, kEqual, kAnd, kNor };

enum class Scope : uint8_t { kDevice, kSystem };

// Releases every `>=` wait. Counters stay below it, so a value at or above it means that the wait
// was released and not satisfied. 2^62 and not the largest value, because the signed comparison
// above would wrap.
inline constexpr uint64_t kPoison = uint64_t{1} << 62;

// A launch stores this value to its fault word when one of its waits was released and it therefore
// left its work out. For a fault of its own it stores another value.
inline constexpr uint64_t kReleasedFault = ~uint64_t{0};

// The size of an LL packet (Target::packets): payload bytes, then the number that a copy gives
// them, both in one store. A receiver waits for the numbers themselves, so the sender needs no word
// after the bytes and no fence before such a word (NCCL's LL protocol has the idea).
inline constexpr uint32_t kPacketBytes = 16;
inline constexpr uint32_t kPacketPayloadBytes = 8;

using TargetId = uint16_t;
using CursorId = uint8_t;
inline constexpr TargetId kNoTarget = 0xffff;
inline constexpr CursorId kNoCursor = 0xff;

// A place inside a target. Where the target is a ring (Target::slots), the slot is (cursor +
// slotDelta) mod slots.
struct Place {
  TargetId target = kNoTarget;
  int32_t slotDelta = 0;
  uint64_t offset = 0;
};

// The value of an operand: `delta` alone when cursor == kNoCursor, else the value of that cursor +
// delta. Cursors make a replayed program right: a wait for a constant `>= n` would pass at once the
// second time, and the program would read stale data.
struct Operand {
  CursorId cursor = kNoCursor;
  int64_t delta = 0;
};

struct Op {
  OpCode code = OpCode::kFence;
  Width width = Width::k64;
  Order order = Order::kRelaxed;
  Compare compare = Compare::kGreaterEqual;
  Scope scope = Scope::kSystem;
  uint32_t list = 0;  // kCopyList: index into Program::lists
  Place to{};    // Copy: destination; Store, Add64, Wait: the word; Flush: any place at the peer
  Place from{};  // Copy: source
  uint64_t bytes = 0;  // Copy; Wait for LL packets: all packets of so many payload bytes
  Operand operand{};   // Store, Add64, Wait; Copy into LL packets: their number
};

}  // namespace peerlane
