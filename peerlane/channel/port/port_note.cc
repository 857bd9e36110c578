// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/port/port_note.h"

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

void write(ByteWriter& writer, const LinePlace& line) {
  writer.u8(line.isThere ? 1 : 0);
  if (!line.isThere) return;
  writer.raw(line.region);
  writer.u64(line.offset);
}

LinePlace readLine(ByteReader& reader) {
  LinePlace line;
  line.isThere = reader.u8() != 0;
  if (!line.isThere) return line;
  reader.rawInto(line.region);
  line.offset = reader.u64();
  return line;
}

}  // namespace

std::vector<std::byte> PortNote::encode() const {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(kind));
  writer.u32(tag);
  writer.u64(serial);
  if (kind == Kind::kHello) {
    write(writer, deviceLine);
    write(writer, hostLine);
  } else if (kind == Kind::kReady) {
    writer.u8(usesHostLine ? 1 : 0);
    writer.u64(answers);
  } else if (kind == Kind::kEnded || kind == Kind::kGaveUp) {
    writer.u8(static_cast<uint8_t>(code));
    writer.string(std::string_view(text).substr(0, kMaxText), kMaxText);
  }
  return bytes;
}

Result<PortNote> PortNote::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  PortNote note;
  reader.require(reader.u8() == kVersion, "a note about a semaphore of another version");
  const uint8_t kind = reader.u8();
  reader.require(kind >= 1 && kind <= 5, "an unknown kind of note about a semaphore");
  note.kind = static_cast<Kind>(kind);
  note.tag = reader.u32();
  note.serial = reader.u64();
  if (note.kind == Kind::kHello) {
    note.deviceLine = readLine(reader);
    note.hostLine = readLine(reader);
  } else if (note.kind == Kind::kReady) {
    note.usesHostLine = reader.u8() != 0;
    note.answers = reader.u64();
  } else if (note.kind == Kind::kEnded || note.kind == Kind::kGaveUp) {
    const uint8_t code = reader.u8();
    reader.require(code <= static_cast<uint8_t>(kLastCode), "an unknown code");
    note.code = static_cast<Code>(code);
    note.text = reader.string(kMaxText);
  }
  PEERLANE_RETURN_IF_ERROR(reader.finish("a note about a semaphore", Trailing::kAllow));
  return note;
}

}  // namespace peerlane
