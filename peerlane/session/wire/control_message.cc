// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/control_message.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "peerlane/session/wire/control_generated.h"
#include "peerlane/session/wire/handshake.h"
#include "peerlane/session/wire/secure_channel.h"

namespace peerlane {
namespace {

using control::kMaxBlobBytes;
using control::kMaxDescriptors;
using control::kMaxLinks;
using control::kMaxPartBytes;
using control::kMaxPieces;
using control::kMaxTextBytes;
using control::kMaxWordsBytes;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr size_t kMaxMessageBytes = SecureChannel::kMaxPlaintextBytes;
// Deepest honest message: Envelope, Accepted, Refusal. Most tables: Envelope, Offers and its links.
constexpr flatbuffers::uoffset_t kMaxDepth = 8;
constexpr flatbuffers::uoffset_t kMaxTables = 64;

bool isControlCharacter(char c) {
  const auto code = static_cast<unsigned char>(c);
  return code < 0x20 || code == 0x7f;
}

std::string limitText(std::string_view field, size_t value, size_t limit) {
  return std::string(field) + " is " + std::to_string(value) + "; at most " +
         std::to_string(limit) + " is accepted";
}

// Builds one message. The first field that breaks a limit is kept in `status`.
struct Encoder {
  FlatBufferBuilder builder{256};
  Status status;
  uint64_t features = 0;  // of the peer

  uint8_t number(Code code) const { return static_cast<uint8_t>(toldAs(code, features)); }

  void require(bool condition, Code code, std::string message) {
    if (!condition && status.isOk()) status = Status(code, std::move(message));
  }
  void limit(std::string_view field, size_t value, size_t most) {
    if (value > most) require(false, Code::kInvalidArgument, limitText(field, value, most));
  }
  Offset<flatbuffers::String> text(std::string_view field, const std::string& value) {
    limit(std::string(field) + " length", value.size(), kMaxTextBytes);
    if (std::any_of(value.begin(), value.end(), isControlCharacter)) {
      require(false, Code::kInvalidArgument, std::string(field) + " contains a control character");
    }
    return builder.CreateString(value.data(), std::min(value.size(), kMaxTextBytes));
  }
  Offset<flatbuffers::String> reason(std::string value) {
    if (value.size() > kMaxTextBytes) value.resize(kMaxTextBytes);
    std::replace_if(value.begin(), value.end(), isControlCharacter, '?');
    return builder.CreateString(value);
  }
  Offset<flatbuffers::Vector<uint8_t>> blob(std::string_view field,
                                            const std::vector<std::byte>& value,
                                            size_t most = kMaxBlobBytes) {
    limit(std::string(field) + " length", value.size(), most);
    return builder.CreateVector(reinterpret_cast<const uint8_t*>(value.data()),
                                std::min(value.size(), most));
  }
};

// One overload per message: the union's type and the table's place.
using Built = std::pair<schema::Message, Offset<void>>;

Built build(Encoder& to, const control::Offers& message) {
  to.limit("Offers.links count", message.links.size(), kMaxLinks);
  std::vector<Offset<schema::LinkOffer>> links;
  for (const control::LinkOffer& link : message.links) {
    to.limit("Offers.links.fdCount", link.fdCount, kMaxDescriptors);
    const auto transport = to.text("Offers.links.transport", link.transport);
    const auto blob = to.blob("Offers.links.blob", link.blob);
    links.push_back(schema::CreateLinkOffer(to.builder, transport, blob, link.fdCount));
    if (!to.status.isOk()) break;
  }
  const auto list = to.builder.CreateVector(links);
  return {schema::Message::Offers,
          schema::CreateOffers(to.builder, list, message.more, message.devices).Union()};
}

Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> names(
    Encoder& to, std::string_view field, const std::vector<std::string>& all) {
  to.limit(std::string(field) + " count", all.size(), kMaxLinks);
  std::vector<Offset<flatbuffers::String>> built;
  for (const std::string& name : all) {
    if (!to.status.isOk()) break;
    built.push_back(to.text(field, name));
  }
  return to.builder.CreateVector(built);
}

Built build(Encoder& to, const control::Accepted& message) {
  to.limit("Accepted.refused count", message.refused.size(), kMaxLinks);
  std::vector<Offset<schema::Refusal>> refused;
  for (const control::Refusal& refusal : message.refused) {
    const auto name = to.text("Accepted.refused.transport", refusal.transport);
    const auto reason = to.reason(refusal.reason);
    refused.push_back(schema::CreateRefusal(to.builder, name, reason));
    if (!to.status.isOk()) break;
  }
  const auto list = to.builder.CreateVector(refused);
  const auto links = names(to, "Accepted.links", message.links);
  return {schema::Message::Accepted, schema::CreateAccepted(to.builder, links, list).Union()};
}

Built build(Encoder& to, const control::Ready&) {
  return {schema::Message::Ready, schema::CreateReady(to.builder).Union()};
}

Built build(Encoder& to, const control::Heartbeat& message) {
  return {schema::Message::Heartbeat,
          schema::CreateHeartbeat(to.builder, message.sequence, message.reply).Union()};
}

Built build(Encoder& to, const control::Bye& message) {
  const auto reason = to.reason(message.reason);
  return {schema::Message::Bye,
          schema::CreateBye(to.builder, to.number(message.code), reason).Union()};
}

Built build(Encoder& to, const control::ImportRequest& message) {
  const auto links = names(to, "ImportRequest.links", message.links);
  return {schema::Message::ImportRequest,
          schema::CreateImportRequest(to.builder, message.request, message.allocation,
                                      message.generation, message.wantedAccess, links)
              .Union()};
}

Built build(Encoder& to, const control::ImportReply& message) {
  to.limit("ImportReply.fdCount", message.fdCount, kMaxDescriptors);
  const auto reason = to.reason(message.reason);
  const auto link = to.text("ImportReply.link", message.link);
  const auto kindName = to.text("ImportReply.kindName", message.kindName);
  const bool isLent = std::any_of(message.owner.begin(), message.owner.end(),
                                  [](uint8_t byte) { return byte != 0; });
  const auto owner =
      to.builder.CreateVector(message.owner.data(), isLent ? message.owner.size() : size_t{0});
  const auto part = to.blob("ImportReply.linkPart", message.linkPart, kMaxPartBytes);
  return {schema::Message::ImportReply,
          schema::CreateImportReply(
              to.builder, message.request, to.number(message.code), reason, link, message.place,
              message.exported, message.shape, kindName, message.bytes, message.access,
              message.allocation, message.generation, message.device, owner, part, message.fdCount)
              .Union()};
}

Built build(Encoder& to, const control::Release& message) {
  return {schema::Message::Release,
          schema::CreateRelease(to.builder, message.allocation, message.generation).Union()};
}

Built build(Encoder& to, const control::Revoke& message) {
  return {schema::Message::Revoke,
          schema::CreateRevoke(to.builder, message.request, message.allocation, message.generation,
                               message.freed)
              .Union()};
}

Built build(Encoder& to, const control::RevokeDone& message) {
  return {schema::Message::RevokeDone,
          schema::CreateRevokeDone(to.builder, message.request, to.number(message.code)).Union()};
}

Built build(Encoder& to, const control::UserMessage& message) {
  const auto content = to.blob("UserMessage.content", message.content);
  return {schema::Message::UserMessage,
          schema::CreateUserMessage(to.builder, message.channel, content).Union()};
}

Built build(Encoder& to, const control::MessagesTaken& message) {
  return {schema::Message::MessagesTaken,
          schema::CreateMessagesTaken(to.builder, message.channel, message.count).Union()};
}

Built build(Encoder& to, const control::LinkEnded& message) {
  const auto transport = to.text("LinkEnded.transport", message.transport);
  const auto reason = to.reason(message.reason);
  return {schema::Message::LinkEnded,
          schema::CreateLinkEnded(to.builder, transport, reason).Union()};
}

Built build(Encoder& to, const control::LinkMessage& message) {
  const auto transport = to.text("LinkMessage.transport", message.transport);
  const auto words = to.blob("LinkMessage.words", message.words, kMaxWordsBytes);
  return {schema::Message::LinkMessage,
          schema::CreateLinkMessage(to.builder, transport, words).Union()};
}

Built build(Encoder& to, const control::TransferFault& message) {
  to.require(message.code != Code::kOk, Code::kInvalidArgument,
             "TransferFault.code is OK; the fault's code is expected");
  const auto reason = to.reason(message.reason);
  return {schema::Message::TransferFault,
          schema::CreateTransferFault(to.builder, message.lane, to.number(message.code), reason)
              .Union()};
}

Built build(Encoder& to, const control::ChunkRequest& message) {
  to.limit("ChunkRequest.count", message.count, kMaxDescriptors);
  return {schema::Message::ChunkRequest,
          schema::CreateChunkRequest(to.builder, message.request, message.allocation,
                                     message.generation, message.first, message.count)
              .Union()};
}

Built build(Encoder& to, const control::ChunkReply& message) {
  to.limit("ChunkReply.count", message.count, kMaxDescriptors);
  to.limit("ChunkReply.fdCount", message.fdCount, kMaxDescriptors);
  const auto reason = to.reason(message.reason);
  const auto handles = to.blob("ChunkReply.handles", message.handles);
  return {schema::Message::ChunkReply,
          schema::CreateChunkReply(to.builder, message.request, to.number(message.code), reason,
                                   message.first, message.count, message.fdCount, handles)
              .Union()};
}

Built build(Encoder& to, const control::StagingRequest& message) {
  return {schema::Message::StagingRequest,
          schema::CreateStagingRequest(to.builder, message.request, message.bytes).Union()};
}

Built build(Encoder& to, const control::StagingReply& message) {
  const auto reason = to.reason(message.reason);
  return {schema::Message::StagingReply,
          schema::CreateStagingReply(to.builder, message.request, to.number(message.code), reason,
                                     message.allocation, message.generation, message.bytes)
              .Union()};
}

Built build(Encoder& to, const control::StagedMove& message) {
  to.limit("StagedMove.pieces count", message.pieces.size(), kMaxPieces);
  std::vector<schema::StagedPiece> pieces;
  for (const control::StagedPiece& piece : message.pieces) {
    if (!to.status.isOk()) break;
    pieces.emplace_back(piece.allocation, piece.generation, piece.offset, piece.bytes);
  }
  const auto list = to.builder.CreateVectorOfStructs(pieces);
  return {schema::Message::StagedMove,
          schema::CreateStagedMove(to.builder, message.request, message.outOfStaging,
                                   message.offset, list)
              .Union()};
}

Built build(Encoder& to, const control::StagedMoveDone& message) {
  const auto reason = to.reason(message.reason);
  return {schema::Message::StagedMoveDone,
          schema::CreateStagedMoveDone(to.builder, message.request, to.number(message.code), reason)
              .Union()};
}

Built build(Encoder& to, const control::UnknownMessage& message) {
  to.require(
      false, Code::kInvalidArgument,
      "a control message of unknown type " + std::to_string(message.type) + " cannot be encoded");
  return {schema::Message::NONE, Offset<void>()};
}

// Takes the fields of one verified table. The first that breaks a limit is kept in `status`.
struct Decoder {
  Status status;

  void limit(std::string_view field, size_t value, size_t most) {
    if (value > most && status.isOk())
      status = Status(Code::kCorrupt, limitText(field, value, most));
  }
  std::string text(std::string_view field, const flatbuffers::String* value) {
    if (value == nullptr) return {};
    limit(std::string(field) + " length", value->size(), kMaxTextBytes);
    if (!status.isOk()) return {};
    std::string text(value->c_str(), value->size());
    if (std::any_of(text.begin(), text.end(), isControlCharacter)) {
      status = Status(Code::kCorrupt, std::string(field) + " contains a control character");
    }
    return text;
  }
  std::vector<std::byte> blob(std::string_view field, const flatbuffers::Vector<uint8_t>* value,
                              size_t most = kMaxBlobBytes) {
    if (value == nullptr) return {};
    limit(std::string(field) + " length", value->size(), most);
    if (!status.isOk()) return {};
    const auto bytes = std::as_bytes(std::span(value->data(), value->size()));
    return {bytes.begin(), bytes.end()};
  }
  uint32_t descriptors(std::string_view field, uint32_t value) {
    limit(field, value, kMaxDescriptors);
    return value;
  }
};

// A later minor may append codes; none of them can mean success.
Code codeOf(uint8_t number) {
  return number <= static_cast<uint8_t>(kLastCode) ? static_cast<Code>(number) : Code::kInternal;
}

control::Offers read(Decoder& from, const schema::Offers& table) {
  control::Offers message;
  message.more = table.more();
  message.devices = table.devices();
  if (table.links() == nullptr) return message;
  from.limit("Offers.links count", table.links()->size(), kMaxLinks);
  for (flatbuffers::uoffset_t i = 0; from.status.isOk() && i < table.links()->size(); ++i) {
    const schema::LinkOffer& link = *table.links()->Get(i);
    message.links.push_back({from.text("Offers.links.transport", link.transport()),
                             from.blob("Offers.links.blob", link.blob()),
                             from.descriptors("Offers.links.fdCount", link.fd_count())});
  }
  return message;
}

std::vector<std::string> namesIn(
    Decoder& from, std::string_view field,
    const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* all) {
  std::vector<std::string> names;
  if (all == nullptr) return names;
  from.limit(std::string(field) + " count", all->size(), kMaxLinks);
  for (flatbuffers::uoffset_t i = 0; from.status.isOk() && i < all->size(); ++i)
    names.push_back(from.text(field, all->Get(i)));
  return names;
}

control::Accepted read(Decoder& from, const schema::Accepted& table) {
  control::Accepted message{namesIn(from, "Accepted.links", table.links()), {}};
  if (table.refused() == nullptr) return message;
  from.limit("Accepted.refused count", table.refused()->size(), kMaxLinks);
  for (flatbuffers::uoffset_t i = 0; from.status.isOk() && i < table.refused()->size(); ++i) {
    const schema::Refusal& refusal = *table.refused()->Get(i);
    message.refused.push_back({from.text("Accepted.refused.transport", refusal.transport()),
                               from.text("Accepted.refused.reason", refusal.reason())});
  }
  return message;
}

control::Ready read(Decoder&, const schema::Ready&) {
  return {};
}

control::Heartbeat read(Decoder&, const schema::Heartbeat& table) {
  return {table.sequence(), table.reply()};
}

control::Bye read(Decoder& from, const schema::Bye& table) {
  return {codeOf(table.code()), from.text("Bye.reason", table.reason())};
}

control::ImportRequest read(Decoder& from, const schema::ImportRequest& table) {
  return {table.request(), table.allocation(), table.generation(), table.wanted_access(),
          namesIn(from, "ImportRequest.links", table.links())};
}

control::ImportReply read(Decoder& from, const schema::ImportReply& table) {
  control::ImportReply message;
  message.request = table.request();
  message.code = codeOf(table.code());
  message.reason = from.text("ImportReply.reason", table.reason());
  message.link = from.text("ImportReply.link", table.link());
  message.place = table.place();
  message.exported = table.exported();
  message.shape = table.shape();
  message.kindName = from.text("ImportReply.kindName", table.kind_name());
  message.bytes = table.bytes();
  message.fdCount = from.descriptors("ImportReply.fdCount", table.fd_count());
  message.access = table.access();
  message.allocation = table.allocation();
  message.generation = table.generation();
  message.device = table.device();
  if (table.owner() != nullptr && table.owner()->size() != 0) {
    if (table.owner()->size() != message.owner.size())
      from.status =
          Status(Code::kCorrupt, "ImportReply.owner has " + std::to_string(table.owner()->size()) +
                                     " bytes; expected none or 16");
    else
      std::copy(table.owner()->begin(), table.owner()->end(), message.owner.begin());
  }
  message.linkPart = from.blob("ImportReply.linkPart", table.link_part(), kMaxPartBytes);
  return message;
}

control::Release read(Decoder&, const schema::Release& table) {
  return {table.allocation(), table.generation()};
}

control::Revoke read(Decoder&, const schema::Revoke& table) {
  return {table.request(), table.allocation(), table.generation(), table.freed()};
}

control::RevokeDone read(Decoder&, const schema::RevokeDone& table) {
  return {table.request(), codeOf(table.code())};
}

control::UserMessage read(Decoder& from, const schema::UserMessage& table) {
  return {table.channel(), from.blob("UserMessage.content", table.content())};
}

control::MessagesTaken read(Decoder& /*from*/, const schema::MessagesTaken& table) {
  return {table.channel(), table.count()};
}

control::LinkEnded read(Decoder& from, const schema::LinkEnded& table) {
  return {from.text("LinkEnded.transport", table.transport()),
          from.text("LinkEnded.reason", table.reason())};
}

control::LinkMessage read(Decoder& from, const schema::LinkMessage& table) {
  return {from.text("LinkMessage.transport", table.transport()),
          from.blob("LinkMessage.words", table.words(), kMaxWordsBytes)};
}

control::TransferFault read(Decoder& from, const schema::TransferFault& table) {
  if (table.code() == 0) from.status = Status(Code::kCorrupt, "TransferFault.code is OK");
  return {table.lane(), codeOf(table.code()), from.text("TransferFault.reason", table.reason())};
}

control::ChunkRequest read(Decoder& from, const schema::ChunkRequest& table) {
  from.limit("ChunkRequest.count", table.count(), kMaxDescriptors);
  return {table.request(), table.allocation(), table.generation(), table.first(), table.count()};
}

control::ChunkReply read(Decoder& from, const schema::ChunkReply& table) {
  from.limit("ChunkReply.count", table.count(), kMaxDescriptors);
  return {table.request(),
          codeOf(table.code()),
          from.text("ChunkReply.reason", table.reason()),
          table.first(),
          table.count(),
          from.descriptors("ChunkReply.fdCount", table.fd_count()),
          from.blob("ChunkReply.handles", table.handles())};
}

control::StagingRequest read(Decoder&, const schema::StagingRequest& table) {
  return {table.request(), table.bytes()};
}

control::StagingReply read(Decoder& from, const schema::StagingReply& table) {
  return {
      table.request(),    codeOf(table.code()), from.text("StagingReply.reason", table.reason()),
      table.allocation(), table.generation(),   table.bytes()};
}

control::StagedMove read(Decoder& from, const schema::StagedMove& table) {
  control::StagedMove message{table.request(), table.out_of_staging(), table.offset(), {}};
  if (table.pieces() == nullptr) return message;
  from.limit("StagedMove.pieces count", table.pieces()->size(), kMaxPieces);
  // The verifier does not check the alignment of vectors of structs. An empty one may lie anywhere.
  const auto place = reinterpret_cast<uintptr_t>(table.pieces()->Data());
  if (from.status.isOk() && table.pieces()->size() != 0 &&
      place % alignof(schema::StagedPiece) != 0)
    from.status = Status(Code::kCorrupt, "StagedMove.pieces does not lie on an 8-byte boundary");
  if (!from.status.isOk()) return message;
  for (const schema::StagedPiece* piece : *table.pieces())
    message.pieces.push_back(
        {piece->allocation(), piece->generation(), piece->offset(), piece->bytes()});
  return message;
}

control::StagedMoveDone read(Decoder& from, const schema::StagedMoveDone& table) {
  return {table.request(), codeOf(table.code()),
          from.text("StagedMoveDone.reason", table.reason())};
}

template <typename Table>
Result<ControlMessage> readAs(const void* table) {
  Decoder decoder;
  ControlMessage message(read(decoder, *static_cast<const Table*>(table)));
  if (!decoder.status.isOk()) return decoder.status;
  return message;
}

Result<ControlMessage> readUnion(schema::Message type, const void* table) {
  switch (type) {
    case schema::Message::NONE: break;  // refused by the caller
    case schema::Message::Offers: return readAs<schema::Offers>(table);
    case schema::Message::Accepted: return readAs<schema::Accepted>(table);
    case schema::Message::Ready: return readAs<schema::Ready>(table);
    case schema::Message::Heartbeat: return readAs<schema::Heartbeat>(table);
    case schema::Message::Bye: return readAs<schema::Bye>(table);
    case schema::Message::ImportRequest: return readAs<schema::ImportRequest>(table);
    case schema::Message::ImportReply: return readAs<schema::ImportReply>(table);
    case schema::Message::Release: return readAs<schema::Release>(table);
    case schema::Message::Revoke: return readAs<schema::Revoke>(table);
    case schema::Message::RevokeDone: return readAs<schema::RevokeDone>(table);
    case schema::Message::UserMessage: return readAs<schema::UserMessage>(table);
    case schema::Message::TransferFault: return readAs<schema::TransferFault>(table);
    case schema::Message::ChunkRequest: return readAs<schema::ChunkRequest>(table);
    case schema::Message::ChunkReply: return readAs<schema::ChunkReply>(table);
    case schema::Message::StagingRequest: return readAs<schema::StagingRequest>(table);
    case schema::Message::StagingReply: return readAs<schema::StagingReply>(table);
    case schema::Message::StagedMove: return readAs<schema::StagedMove>(table);
    case schema::Message::StagedMoveDone: return readAs<schema::StagedMoveDone>(table);
    case schema::Message::MessagesTaken: return readAs<schema::MessagesTaken>(table);
    case schema::Message::LinkEnded: return readAs<schema::LinkEnded>(table);
    case schema::Message::LinkMessage: return readAs<schema::LinkMessage>(table);
  }
  return ControlMessage(control::UnknownMessage{static_cast<uint8_t>(type)});
}

// The schema's accessors read words in place, so the bytes must lie on an 8-byte boundary, as those
// of a record do; bytes from elsewhere are moved there first.
Result<ControlMessage> decodeAligned(std::span<const std::byte> bytes) {
  const auto* start = reinterpret_cast<const uint8_t*>(bytes.data());
  flatbuffers::Verifier verifier(start, bytes.size(), kMaxDepth, kMaxTables);
  if (!schema::VerifyEnvelopeBuffer(verifier)) {
    return Status(Code::kCorrupt,
                  "control message of " + std::to_string(bytes.size()) +
                      " bytes is malformed: an offset, length or count does not verify");
  }
  const schema::Envelope& envelope = *schema::GetEnvelope(start);
  if (envelope.message_type() == schema::Message::NONE || envelope.message() == nullptr) {
    return Status(Code::kCorrupt, "Envelope.message is missing");
  }
  return readUnion(envelope.message_type(), envelope.message());
}

}  // namespace

std::string_view controlName(const ControlMessage& message) {
  constexpr std::array<std::string_view, std::variant_size_v<ControlMessage>> kNames = {
      "Offers",        "Accepted",      "Ready",          "Heartbeat",     "Bye",
      "ImportRequest", "ImportReply",   "Release",        "Revoke",        "RevokeDone",
      "UserMessage",   "TransferFault", "ChunkRequest",   "ChunkReply",    "StagingRequest",
      "StagingReply",  "StagedMove",    "StagedMoveDone", "MessagesTaken", "LinkEnded",
      "LinkMessage",   "UnknownMessage"};
  return kNames[message.index()];
}

Result<std::vector<std::byte>> encodeControl(const ControlMessage& message, uint64_t features) {
  Encoder encoder;
  encoder.features = features;
  const auto [type, table] =
      std::visit([&](const auto& alternative) { return build(encoder, alternative); }, message);
  if (!encoder.status.isOk()) return encoder.status;
  encoder.builder.Finish(schema::CreateEnvelope(encoder.builder, type, table));
  if (encoder.builder.GetSize() > kMaxMessageBytes) {
    return Status(Code::kInvalidArgument,
                  limitText(std::string(controlName(message)) + " message length",
                            encoder.builder.GetSize(), kMaxMessageBytes));
  }
  const auto* start = reinterpret_cast<const std::byte*>(encoder.builder.GetBufferPointer());
  return std::vector<std::byte>(start, start + encoder.builder.GetSize());
}

Result<ControlMessage> decodeControl(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kMaxMessageBytes) {
    return Status(Code::kCorrupt, "control message of " + std::to_string(bytes.size()) +
                                      " bytes; 1 to " + std::to_string(kMaxMessageBytes) +
                                      " are accepted");
  }
  constexpr size_t kAlignment = 8;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0) return decodeAligned(bytes);
  const std::vector<std::byte> moved(bytes.begin(), bytes.end());
  return decodeAligned(moved);
}

}  // namespace peerlane
