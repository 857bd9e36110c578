// SPDX-License-Identifier: Apache-2.0
#include "tools/file/file_exchange.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "peerlane-file-1";

std::vector<std::byte> bytesOfJson(Json json) {
  json["format"] = kFormat;
  // File names need not be UTF-8.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Status notUnderstood(const std::string& why) {
  return Status(Code::kCorrupt, "the other side does not exchange files with this version: " + why);
}

Result<Json> parseJson(std::span<const std::byte> message) {
  const auto* text = reinterpret_cast<const char*>(message.data());
  Json json = Json::parse(text, text + message.size(), nullptr, false);
  if (!json.is_object()) return notUnderstood("its message is no JSON object");
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat)
    return notUnderstood(std::string("the message has no format \"") + kFormat + "\"");
  return json;
}

Result<uint64_t> numberIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned())
    return notUnderstood(std::string("no number \"") + key + "\"");
  return found->get<uint64_t>();
}

Result<std::string> textIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string())
    return notUnderstood(std::string("no text \"") + key + "\"");
  return found->get<std::string>();
}

Result<bool> truthIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_boolean())
    return notUnderstood(std::string("no true or false \"") + key + "\"");
  return found->get<bool>();
}

template <size_t kSize>
Status hexInto(const Json& json, const char* key, std::array<std::byte, kSize>& out) {
  PEERLANE_ASSIGN(const std::string text, textIn(json, key));
  const auto bytes = decodeHex(text);
  if (!bytes.isOk() || bytes->size() != kSize)
    return notUnderstood(std::string("\"") + key + "\" is not " + std::to_string(kSize) +
                         " bytes in hexadecimal");
  std::copy(bytes->begin(), bytes->end(), out.begin());
  return Status::ok();
}

void putStatus(Json& json, const Status& status) {
  json["code"] = static_cast<unsigned>(status.code());
  json["message"] = std::string(status.message().substr(0, 1024));
}

Status statusInto(const Json& json, Status& out) {
  PEERLANE_ASSIGN(const uint64_t code, numberIn(json, "code"));
  PEERLANE_ASSIGN(std::string message, textIn(json, "message"));
  if (code > static_cast<uint64_t>(kLastCode))
    return notUnderstood("unknown code " + std::to_string(code));
  if (code != 0) out = Status(static_cast<Code>(code), std::move(message));
  return Status::ok();
}

}  // namespace

std::vector<std::byte> FileOffer::encode() const {
  return bytesOfJson({{"name", name.substr(0, 512)},
                      {"bytes", bytes},
                      {"slot_bytes", slotBytes},
                      {"slots", slots}});
}

Result<FileOffer> FileOffer::decode(std::span<const std::byte> message) {
  PEERLANE_ASSIGN(const Json json, parseJson(message));
  FileOffer offer;
  PEERLANE_ASSIGN(offer.name, textIn(json, "name"));
  PEERLANE_ASSIGN(offer.bytes, numberIn(json, "bytes"));
  PEERLANE_ASSIGN(offer.slotBytes, numberIn(json, "slot_bytes"));
  PEERLANE_ASSIGN(offer.slots, numberIn(json, "slots"));
  if (offer.slots == 0 || offer.slotBytes == 0) return notUnderstood("a ring without slots");
  return offer;
}

std::vector<std::byte> FileAnswer::encode() const {
  Json json = {{"slot_bytes", slotBytes},
               {"slots", slots},
               {"ring", encodeHex(ring)},
               {"took_another", tookAnother}};
  putStatus(json, refused);
  return bytesOfJson(std::move(json));
}

Result<FileAnswer> FileAnswer::decode(std::span<const std::byte> message) {
  PEERLANE_ASSIGN(const Json json, parseJson(message));
  FileAnswer answer;
  PEERLANE_RETURN_IF_ERROR(statusInto(json, answer.refused));
  PEERLANE_ASSIGN(answer.slotBytes, numberIn(json, "slot_bytes"));
  PEERLANE_ASSIGN(answer.slots, numberIn(json, "slots"));
  PEERLANE_RETURN_IF_ERROR(hexInto(json, "ring", answer.ring));
  PEERLANE_ASSIGN(answer.tookAnother, truthIn(json, "took_another"));
  if (answer.refused.isOk() && !answer.tookAnother && (answer.slots == 0 || answer.slotBytes == 0))
    return notUnderstood("a ring without slots");
  return answer;
}

std::vector<std::byte> FileOutcome::encode() const {
  Json json = {{"bytes", bytes}, {"hash", encodeHex(hash)}};
  putStatus(json, status);
  return bytesOfJson(std::move(json));
}

Result<FileOutcome> FileOutcome::decode(std::span<const std::byte> message) {
  PEERLANE_ASSIGN(const Json json, parseJson(message));
  FileOutcome outcome;
  PEERLANE_RETURN_IF_ERROR(statusInto(json, outcome.status));
  PEERLANE_ASSIGN(outcome.bytes, numberIn(json, "bytes"));
  PEERLANE_RETURN_IF_ERROR(hexInto(json, "hash", outcome.hash));
  return outcome;
}

// index, bytes (little-endian, 8 bytes each), hash.
std::vector<std::byte> FilePiece::encode() const {
  std::vector<std::byte> message(16 + hash.size());
  for (size_t i = 0; i < 8; ++i) {
    message[i] = static_cast<std::byte>(index >> (8 * i));
    message[8 + i] = static_cast<std::byte>(bytes >> (8 * i));
  }
  std::copy(hash.begin(), hash.end(), message.begin() + 16);
  return message;
}

Result<FilePiece> FilePiece::decode(std::span<const std::byte> message) {
  FilePiece piece;
  if (message.size() != 16 + piece.hash.size())
    return notUnderstood("a piece is announced by " + std::to_string(message.size()) + " bytes");
  for (size_t i = 0; i < 8; ++i) {
    piece.index |= static_cast<uint64_t>(message[i]) << (8 * i);
    piece.bytes |= static_cast<uint64_t>(message[8 + i]) << (8 * i);
  }
  std::copy(message.begin() + 16, message.end(), piece.hash.begin());
  return piece;
}

}  // namespace peerlane
