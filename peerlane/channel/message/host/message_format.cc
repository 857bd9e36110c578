// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_format.h"

#include <string>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint32_t kMagic = 0x4d'43'4c'50;  // "PLCM"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kMaxKind = static_cast<uint8_t>(LaneNote::Kind::kHeard);
constexpr uint8_t kMaxCode = static_cast<uint8_t>(kLastCode);

bool namesDeviceMemory(LaneNote::Kind kind) {
  return kind == LaneNote::Kind::kDeviceArea || kind == LaneNote::Kind::kDeviceRegion ||
         kind == LaneNote::Kind::kDeviceReady || kind == LaneNote::Kind::kDeviceWaits;
}

}  // namespace

bool LaneNote::isOfStreams() const {
  return namesDeviceMemory(kind) || kind == Kind::kDeviceEnd;
}

std::vector<std::byte> LaneNote::encode() const {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(kMagic);
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(kind));
  writer.u8(static_cast<uint8_t>(code));
  writer.u8(static_cast<uint8_t>(area.access));
  writer.u64(number);
  if (namesDeviceMemory(kind)) {
    writer.u64(area.allocation);
    writer.u64(area.generation);
    writer.u64(area.bytes);
  }
  if (kind == Kind::kHello) {
    writer.u32(rank);
    writer.u32(otherRank);
    writer.u32(ranks);
    writer.u32(eagerBytes);
    writer.u32(LaneArea::kSlots);
    writer.u32(0);
    writer.u64(area.allocation);
    writer.u64(area.generation);
    writer.u64(area.bytes);
  }
  return bytes;
}

Result<LaneNote> LaneNote::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  reader.require(reader.u32() == kMagic, "does not begin with \"PLCM\"");
  reader.require(reader.u8() == kVersion, "is of an unknown version");
  const uint8_t kind = reader.u8();
  const uint8_t code = reader.u8();
  const uint8_t access = reader.u8();
  reader.require(kind >= 1 && kind <= kMaxKind, "is of an unknown kind");
  reader.require(code <= kMaxCode, "has an unknown code");
  reader.require(access <= 3, "has an unknown access");
  LaneNote note;
  note.kind = static_cast<Kind>(kind);
  note.code = static_cast<Code>(code);
  note.area.access = static_cast<Access>(access);
  note.number = reader.u64();
  if (reader.ok() && namesDeviceMemory(note.kind)) {
    note.area.allocation = reader.u64();
    note.area.generation = reader.u64();
    note.area.bytes = reader.u64();
  }
  if (reader.ok() && note.kind == Kind::kHello) {
    note.rank = reader.u32();
    note.otherRank = reader.u32();
    note.ranks = reader.u32();
    note.eagerBytes = reader.u32();
    reader.require(reader.u32() == LaneArea::kSlots, "has another number of slots");
    reader.u32();
    note.area.allocation = reader.u64();
    note.area.generation = reader.u64();
    note.area.bytes = reader.u64();
    reader.require(note.eagerBytes <= LaneArea::kMaxEagerBytes, "has too large eager messages");
    reader.require(note.area.bytes >= LaneArea::bytes(note.eagerBytes), "has too small an area");
  }
  PEERLANE_RETURN_IF_ERROR(reader.finish("note of a communicator"));
  return note;
}

}  // namespace peerlane
