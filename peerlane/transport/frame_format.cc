// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_format.h"

#include <limits>
#include <string>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint16_t kMagic = 0x4c50;  // "PL" as it lies in memory
constexpr uint8_t kLastFlag = 1;
constexpr uint8_t kTrailerFlag = 2;  // of the kinds that have data

// Which fields a kind uses; a field that it does not use must be zero. `sequence` is used by all.
struct KindRule {
  bool place;     // allocation, generation, offset
  bool payload;   // bytes follow, and `last` has a meaning
  uint64_t most;  // the largest `value`
};

constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMostCode = static_cast<uint64_t>(kLastCode);

// Indexed by kind; the first row is no kind.
constexpr KindRule kRules[] = {
    {false, false, 0},
    {true, true, 0},                                      // kPut
    {true, false, std::numeric_limits<uint32_t>::max()},  // kStore32
    {true, false, kAny},                                  // kStore64
    {true, false, kAny},                                  // kAdd64
    {false, false, 0},                                    // kFlush
    {true, false, kAny},                                  // kGetRequest
    {false, false, kMostCode},                            // kAck
    {false, true, 0},                                     // kGetData
    {false, false, kMostCode},                            // kGetRefused
    {false, false, kAny},                                 // kGetCancel
    {true, true, kFrameMaxBlocks},                        // kPutList
    {true, true, kFrameMaxBlocks},                        // kGetList
};
constexpr uint8_t kMostKind = std::size(kRules) - 1;

Status corrupt(const char* field, uint64_t value, const std::string& accepted) {
  return Status(Code::kCorrupt, std::string("frame ") + field + " is " + std::to_string(value) +
                                    "; accepted: " + accepted);
}

// The rules that concern several fields at once.
Status checkMeaning(const Frame& frame) {
  const char* kind = frameKindName(frame.kind);
  const KindRule& rule = kRules[static_cast<uint8_t>(frame.kind)];
  if (frame.sequence == 0) return corrupt("sequence", 0, "1 or more");
  const uint32_t mostPayload = rule.payload ? kFrameMaxPayload : 0;
  if (frame.payload > mostPayload)
    return corrupt("payload", frame.payload,
                   "at most " + std::to_string(mostPayload) + " in a " + kind + " frame");
  if (frame.last && (!rule.payload || frame.kind == FrameKind::kGetList))
    return corrupt("flags", kLastFlag, std::string("0 in a ") + kind + " frame");
  const bool isWord = frame.kind == FrameKind::kStore32 || frame.kind == FrameKind::kStore64 ||
                      frame.kind == FrameKind::kAdd64;
  if (frame.trailer && frame.payload == 0)
    return corrupt("flags", kTrailerFlag, "no trailer without a payload");
  if (frame.after != 0 && (!isWord || frame.after >= frame.sequence))
    return corrupt("flags, after", frame.after,
                   isWord ? "less than the sequence, " + std::to_string(frame.sequence)
                          : std::string("0 in a ") + kind + " frame");
  const bool mayBeEmpty = frame.kind == FrameKind::kPut && frame.last;
  if (rule.payload && frame.payload == 0 && !mayBeEmpty)
    return corrupt("payload", 0, std::string("1 or more in a ") + kind + " frame");
  if (!rule.place && (frame.allocation | frame.generation) != 0)
    return corrupt("allocation or generation", frame.allocation | frame.generation,
                   std::string("0 in a ") + kind + " frame");
  if (!rule.place && frame.kind != FrameKind::kGetData && frame.offset != 0)
    return corrupt("offset", frame.offset, std::string("0 in a ") + kind + " frame");
  if (frame.value > rule.most)
    return corrupt("value", frame.value,
                   "at most " + std::to_string(rule.most) + " in a " + kind + " frame");
  const bool isGetList = frame.kind == FrameKind::kGetList;
  const bool isList = isGetList || frame.kind == FrameKind::kPutList;
  const bool needsValue = isList || frame.kind == FrameKind::kGetRequest ||
                          frame.kind == FrameKind::kGetRefused ||
                          frame.kind == FrameKind::kGetCancel;
  if (needsValue && frame.value == 0)
    return corrupt("value", 0, std::string("1 or more in a ") + kind + " frame");
  if (isList && frame.offset != 0)
    return corrupt("offset", frame.offset, std::string("0 in a ") + kind + " frame");
  const uint64_t ofList = frame.value * (kFrameBlockBytes + (isGetList ? 0 : 1));
  if (isList && (frame.payload < ofList || (isGetList && frame.payload != ofList)))
    return corrupt("payload", frame.payload,
                   (isGetList ? "" : "at least ") + std::to_string(ofList) + " for " +
                       std::to_string(frame.value) + " blocks in a " + kind + " frame");
  if (frame.kind == FrameKind::kGetCancel && frame.value > frame.sequence)
    return corrupt(
        "value", frame.value,
        "at most the sequence, " + std::to_string(frame.sequence) + ", in a " + kind + " frame");
  return {};
}

}  // namespace

void encodeFrame(const Frame& frame, std::span<std::byte, kFrameHeaderBytes> out) {
  ByteWriter writer(out);
  writer.u16(kMagic);
  writer.u8(static_cast<uint8_t>(frame.kind));
  writer.u8(static_cast<uint8_t>(frame.after << 1 | (frame.last ? kLastFlag : 0) |
                                 (frame.trailer ? kTrailerFlag : 0)));
  writer.u32(frame.payload);
  writer.u64(frame.sequence);
  writer.u64(frame.allocation);
  writer.u64(frame.generation);
  writer.u64(frame.offset);
  writer.u64(frame.value);
  PEERLANE_CHECK(writer.ok() && writer.size() == kFrameHeaderBytes);
}

Result<Frame> parseFrame(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  ByteReader reader(bytes);
  const uint16_t magic = reader.u16();
  const uint8_t kind = reader.u8();
  const uint8_t flags = reader.u8();
  if (magic != kMagic) return corrupt("magic", magic, std::to_string(kMagic));
  if (kind == 0 || kind > kMostKind)
    return corrupt("kind", kind, "1 to " + std::to_string(kMostKind));
  Frame frame;
  frame.kind = static_cast<FrameKind>(kind);
  frame.last = (flags & kLastFlag) != 0;
  const bool hasData = frame.kind == FrameKind::kPut || frame.kind == FrameKind::kPutList ||
                       frame.kind == FrameKind::kGetData;
  frame.trailer = hasData && (flags & kTrailerFlag) != 0;
  frame.after = static_cast<uint8_t>((frame.trailer ? flags & ~kTrailerFlag : flags) >> 1);
  frame.payload = reader.u32();
  frame.sequence = reader.u64();
  frame.allocation = reader.u64();
  frame.generation = reader.u64();
  frame.offset = reader.u64();
  frame.value = reader.u64();
  PEERLANE_RETURN_IF_ERROR(reader.finish("frame"));
  PEERLANE_RETURN_IF_ERROR(checkMeaning(frame));
  return frame;
}

void encodeTrailer(Code code, std::span<std::byte, kFrameTrailerBytes> out) {
  ByteWriter writer(out);
  writer.u64(static_cast<uint64_t>(code));
  PEERLANE_CHECK(writer.ok());
}

Result<Code> parseTrailer(std::span<const std::byte, kFrameTrailerBytes> bytes) {
  ByteReader reader(bytes);
  const uint64_t code = reader.u64();
  if (code > kMostCode) return corrupt("trailer", code, "at most " + std::to_string(kMostCode));
  return static_cast<Code>(code);
}

void encodeBlocks(std::span<const FrameBlock> blocks, std::span<std::byte> out) {
  ByteWriter writer(out);
  for (const FrameBlock& block : blocks) {
    writer.u64(block.offset);
    writer.u64(block.bytes);
  }
  PEERLANE_CHECK(writer.ok());
}

Status parseBlocks(const Frame& frame, std::span<const std::byte> table,
                   std::span<FrameBlock> out) {
  ByteReader reader(table.first(frame.value * kFrameBlockBytes));
  const bool isPut = frame.kind == FrameKind::kPutList;
  uint64_t left = isPut ? frame.payload - frame.value * kFrameBlockBytes : kFrameMostOfList;
  for (FrameBlock& block : out.first(frame.value)) {
    block.offset = reader.u64();
    block.bytes = reader.u64();
    if (block.bytes == 0 || block.bytes > left)
      return corrupt("block's bytes", block.bytes,
                     std::string("1 to the rest of the ") + (isPut ? "payload, " : "most, ") +
                         std::to_string(left));
    left -= block.bytes;
  }
  if (isPut && left != 0) return corrupt("payload after the blocks", left, "0 bytes");
  return reader.finish("table of a list");
}

const char* frameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kPut: return "put";
    case FrameKind::kStore32: return "store32";
    case FrameKind::kStore64: return "store64";
    case FrameKind::kAdd64: return "add64";
    case FrameKind::kFlush: return "flush";
    case FrameKind::kGetRequest: return "get request";
    case FrameKind::kAck: return "ack";
    case FrameKind::kGetData: return "get data";
    case FrameKind::kGetRefused: return "get refused";
    case FrameKind::kGetCancel: return "get cancel";
    case FrameKind::kPutList: return "put list";
    case FrameKind::kGetList: return "get list";
  }
  return "unknown";
}

}  // namespace peerlane
