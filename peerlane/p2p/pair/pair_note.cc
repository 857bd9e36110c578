// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_note.h"

#include <algorithm>
#include <cstring>

#include "peerlane/core/wire.h"

namespace peerlane::p2p {

std::vector<std::byte> PairNote::encode() const {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u8(static_cast<uint8_t>(type));
  switch (type) {
    case Type::kHello:
      writer.u8(kind);
      writer.u8(link);
      writer.u8(wantsMessages ? 1 : 0);
      writer.raw(std::as_bytes(std::span(process)));
      break;
    case Type::kAsk:
      writer.u64(segment);
      writer.raw(proof);
      break;
    case Type::kAnswer:
      writer.u64(segment);
      writer.u8(static_cast<uint8_t>(code));
      if (code == Code::kOk)
        writer.raw(reference);
      else
        writer.string(std::string_view(why).substr(0, kMostWords), kMostWords);
      break;
    case Type::kGaveUp: break;
  }
  PEERLANE_CHECK(writer.ok());
  return bytes;
}

// A later version may add fields after the last one; they are skipped.
Result<PairNote> PairNote::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  PairNote note;
  note.type = static_cast<Type>(reader.u8());
  switch (note.type) {
    case Type::kHello: {
      note.kind = reader.u8();
      note.link = reader.u8();
      note.wantsMessages = reader.u8() != 0;
      const auto process = reader.raw(note.process.size());
      if (reader.ok()) std::memcpy(note.process.data(), process.data(), process.size());
      break;
    }
    case Type::kAsk: {
      note.segment = reader.u64();
      const auto proof = reader.raw(note.proof.size());
      if (reader.ok()) std::copy(proof.begin(), proof.end(), note.proof.begin());
      break;
    }
    case Type::kAnswer: {
      note.segment = reader.u64();
      note.code = static_cast<Code>(reader.u8());
      if (note.code > kLastCode) note.code = Code::kInternal;  // a code of a later version
      if (note.code != Code::kOk) {
        note.why = reader.string(kMostWords);
        break;
      }
      const auto reference = reader.raw(note.reference.size());
      if (reader.ok()) std::copy(reference.begin(), reference.end(), note.reference.begin());
      break;
    }
    case Type::kGaveUp: break;
    default:
      return Status(Code::kCorrupt, "a note between communicators of type " +
                                        std::to_string(static_cast<int>(note.type)));
  }
  if (!reader.ok()) return Status(Code::kCorrupt, "a note between communicators is too short");
  return note;
}

}  // namespace peerlane::p2p
