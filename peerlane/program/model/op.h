// SPDX-License-Identifier: Apache-2.0
//
// Op: the seven things the library ever does. A protocol is a short list of them; whoever can run
// them (a CPU thread, a stream, a kernel, a NIC that is rung by a store) is an executor. Plain
// values, no addresses: places are (target, offset) and are resolved by the executor. The idea of a
// small address-free program that the wire hands to any device is PeerDirect Async's (2017).
#pragma once

#include <cstdint>

namespace peerlane {

enum class OpCode : uint8_t {
  kCopy,      // `bytes` from `from` to `to`
  kCopyList,  // every segment of list `list`
  kStore,     // write the word `to` = operand
  kAdd64,     // add operand to the 64-bit counter `to`, atomically
  kWait,      // do not go on before the word `to` satisfies `compare` with operand
  kFence,     // what was written before is visible, within `scope`, before what comes after
  kFlush,     // what was written to the peer of target `to` is visible there
};

enum class Width : uint8_t { k32 = 4, k64 = 8 };

// kRelease: everything this program wrote before is visible to whoever reads the word with acquire.
enum class Order : uint8_t { kRelaxed, kRelease };

// kGreaterEqual compares as CUDA does: (int64)(word - operand) >= 0. Shipped protocols use only it.
enum class Compare : uint8_t { kGreaterEqual, kEqual, kAnd, kNor };

enum class Scope : uint8_t { kDevice, kSystem };

// Releases every `>=` wait: counters stay below it, and above it a released wait is told from a
// satisfied one. 2^62 and not the largest value, because the signed comparison above would wrap.
inline constexpr uint64_t kPoison = uint64_t{1} << 62;

// In the fault word of a launch: a wait of it was released, so it did nothing of what it was for. A
// fault of its own stores something else.
inline constexpr uint64_t kReleasedFault = ~uint64_t{0};

// Numbered memory (Target::numbered) is in units of this size: bytes, and behind them the number
// that a copy gave them, stored at once. So whoever waits for the numbers needs no word behind the
// bytes, and whoever copies no fence before one (NCCL's LL protocol has the idea).
inline constexpr uint32_t kUnitBytes = 16;
inline constexpr uint32_t kUnitPayloadBytes = 8;

using TargetId = uint16_t;
using LaneId = uint8_t;
inline constexpr TargetId kNoTarget = 0xffff;
inline constexpr LaneId kNoLane = 0xff;

// A place inside a target. Where the target is a ring (TargetShape), the slot is (cursor +
// slotDelta) mod slots.
struct Place {
  TargetId target = kNoTarget;
  int32_t slotDelta = 0;
  uint64_t offset = 0;
};

// A word: `delta` alone when lane == kNoLane, else the lane's cursor + delta. Cursors are what make
// a program right when it is replayed: a baked-in `>= n` would pass at once the second time and
// read stale data.
struct Operand {
  LaneId lane = kNoLane;
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
  uint64_t bytes = 0;  // Copy; Wait for numbered memory: all units of so many bytes
  Operand operand{};   // Store, Add64, Wait; Copy into numbered memory: the number of its units
};

}  // namespace peerlane
