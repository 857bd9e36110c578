// SPDX-License-Identifier: Apache-2.0
//
// The bytes of frames: how one side of an agent link asks the other to put, get and write words.
// Plain values and two pure functions; frame_sender and frame_receiver decide when frames are sent.
// docs/wire.md, section Frames, is the specification.
//
// A frame is a header of 48 bytes, little endian, and `payload` bytes after it, with a trailer of 8
// bytes behind them where the flags say so:
//
//    0  u16  magic 0x4c50
//    2  u8   kind
//    3  u8   flags: bit 0 = last; bits 1 to 7 of a word: after; bit 1 of data: trailer
//    4  u32  payload
//    8  u64  sequence
//   16  u64  allocation
//   24  u64  generation
//   32  u64  offset
//   40  u64  value
//
// A field that a kind does not use is zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "peerlane/core/status.h"

namespace peerlane {

// Numbers are wire format.
enum class FrameKind : uint8_t {
  kPut = 1,         // payload -> region + offset; `last` ends entry `sequence`
  kStore32 = 2,     // region + offset = value
  kStore64 = 3,     //
  kAdd64 = 4,       // region + offset += value
  kFlush = 5,       // no effect, but the entry is answered in order
  kGetRequest = 6,  // `value` bytes of region + offset are wanted; `sequence` counts requests
  kAck = 7,         // entry `sequence` ended with code `value`, unanswered ones before it with OK
  kGetData = 8,     // payload = bytes at `offset` of request `sequence`; `last` ends it
  kGetRefused = 9,  // request `sequence` ended with code `value`
  kGetCancel = 10,  // requests `value` to `sequence` are wanted no more
  kPutList = 11,  // as kPut, for `value` blocks of one region: the payload begins with their table
  kGetList = 12,  // as kGetRequest, for `value` blocks of one region: the payload is their table
};

// What the peer's version knows: it is told no more.
struct FrameFeatures {
  bool revoked = true;   // the code kRevoked; one that does not know it is told kClosed
  bool trailers = true;  // Frame::trailer
  bool lending = true;   // the ring of shm carries records, and pages go through a pipe
};

struct Frame {
  FrameKind kind = FrameKind::kFlush;
  bool last = false;
  // A trailer follows the payload: it says whether the payload is what lay in the memory, for that
  // may be gone when a pipe comes to read it.
  bool trailer = false;
  // Of a store or add: it is refused if the entry so many numbers before it was. 0: in no case.
  uint8_t after = 0;
  uint32_t payload = 0;
  uint64_t sequence = 0;
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t offset = 0;
  uint64_t value = 0;

  friend bool operator==(const Frame&, const Frame&) = default;
};

inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr size_t kFrameTrailerBytes = 8;
inline constexpr uint8_t kFrameMostAfter = 127;
// A longer payload is a violation. Small enough that other frames do not wait long for the end of
// one.
inline constexpr uint32_t kFrameMaxPayload = 256 * 1024;
// One row of the table of a list, and the most rows: a receiver has all places at hand before the
// bytes come, and one call of the system scatters them.
struct FrameBlock {
  uint64_t offset = 0;  // in the region
  uint64_t bytes = 0;   // 1 or more
  friend bool operator==(const FrameBlock&, const FrameBlock&) = default;
};
inline constexpr size_t kFrameBlockBytes = 16;
inline constexpr size_t kFrameMaxBlocks = 64;
inline constexpr uint64_t kFrameMostOfList = uint64_t{1} << 62;
// The most entries (put, store, add, flush) and the most get requests that one side may have sent
// without an answer; they bound the memory that the other side needs for answers.
inline constexpr size_t kFrameMaxEntries = 1024;
inline constexpr size_t kFrameMaxRequests = 1024;

void encodeFrame(const Frame& frame, std::span<std::byte, kFrameHeaderBytes> out);

// The bytes may come from a stranger. Errors: kCorrupt naming the field, its value and the accepted
// values.
Result<Frame> parseFrame(std::span<const std::byte, kFrameHeaderBytes> bytes);

// kOk: the payload before it is good; else why it is not, and its bytes mean nothing.
void encodeTrailer(Code code, std::span<std::byte, kFrameTrailerBytes> out);
// Errors: kCorrupt.
Result<Code> parseTrailer(std::span<const std::byte, kFrameTrailerBytes> bytes);

// The table of a list, kFrameBlockBytes a block.
void encodeBlocks(std::span<const FrameBlock> blocks, std::span<std::byte> out);
// Fills the first `frame.value` of `out`. The bytes may come from a stranger. Errors: kCorrupt when
// the blocks of a put are not what the payload holds, or those of a get more than kFrameMostOfList.
Status parseBlocks(const Frame& frame, std::span<const std::byte> table, std::span<FrameBlock> out);

// "put", "ack", ...; for log lines.
const char* frameKindName(FrameKind kind);

}  // namespace peerlane
