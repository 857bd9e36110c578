// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: the input is a script of reads (first half) over a message (second half). Whatever
// is read, the reader stays inside, fails for good, and what it did read is written back as the
// same bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/core/wire.h"

namespace {

using peerlane::ByteReader;
using peerlane::ByteWriter;

// One field by its number; what a successful read returned goes to `writer`.
void copyField(uint8_t field, ByteReader& reader, ByteWriter& writer) {
  const uint32_t most = field >> 3;
  switch (field & 7) {
    case 0: {
      auto value = reader.u8();
      if (reader.ok()) writer.u8(value);
      break;
    }
    case 1: {
      auto value = reader.u16();
      if (reader.ok()) writer.u16(value);
      break;
    }
    case 2: {
      auto value = reader.u32();
      if (reader.ok()) writer.u32(value);
      break;
    }
    case 3: {
      auto value = reader.u64();
      if (reader.ok()) writer.u64(value);
      break;
    }
    case 4: {
      auto value = reader.raw(most);
      if (reader.ok()) writer.raw(value);
      break;
    }
    case 5: {
      auto value = reader.bytes(most);
      if (reader.ok()) writer.bytes(value, most);
      break;
    }
    case 6: {
      auto value = reader.string(UINT32_MAX);
      if (reader.ok()) writer.string(value, UINT32_MAX);
      break;
    }
    default: {
      std::vector<std::byte> value(most);
      reader.rawInto(value);
      if (reader.ok()) writer.raw(value);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const size_t fields = size / 2;
  const auto message = std::as_bytes(std::span(bytes + fields, size - fields));
  ByteReader reader(message);
  std::vector<std::byte> copy;
  ByteWriter writer(copy);
  size_t failedAt = SIZE_MAX;
  for (size_t i = 0; i < fields; ++i) {
    const size_t written = writer.size();
    copyField(bytes[i], reader, writer);
    PEERLANE_CHECK(reader.offset() + reader.remaining() == message.size());
    if (failedAt != SIZE_MAX)
      PEERLANE_CHECK(!reader.ok() && reader.offset() == failedAt && writer.size() == written);
    if (!reader.ok() && failedAt == SIZE_MAX) failedAt = reader.offset();
  }
  PEERLANE_CHECK(writer.ok());
  // A failing length-prefixed field has already consumed its length, which was not copied.
  PEERLANE_CHECK(copy.size() <= reader.offset());
  for (size_t i = 0; i < copy.size(); ++i) PEERLANE_CHECK(copy[i] == message[i]);
  const bool clean = reader.ok() && reader.remaining() == 0;
  PEERLANE_CHECK(reader.finish("fuzz").isOk() == clean);
  PEERLANE_CHECK(reader.finish("fuzz", peerlane::Trailing::kAllow).isOk() == reader.ok());
  return 0;
}
