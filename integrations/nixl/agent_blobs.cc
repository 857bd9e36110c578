// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/agent_blobs.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>
#include <utility>

namespace peerlane::nixl {
namespace {

constexpr std::string_view kMagic = "PLNX";
constexpr char kVersion = 1;
constexpr size_t kHead = 8;
constexpr size_t kMostTicket = 4096;

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, "metadata of another agent: " + why);
}

std::string encodeTicket(char kind, const std::string& ticket) {
  std::string bytes(kMagic);
  bytes += kVersion;
  bytes += kind;
  appendLength(bytes, ticket.size());
  return bytes + ticket;
}

// Context::connect also takes "-", "@FILE" and "env:NAME", which no other agent may make it read.
bool isTicket(std::string_view text) {
  return text.starts_with("pl") && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '-' || c == '_';
         });
}

// Returns the ticket; what comes after it stays in `bytes`.
Result<std::string> takeTicket(char kind, std::string_view& bytes) {
  if (bytes.size() < kHead || !bytes.starts_with(kMagic))
    return corrupt(std::to_string(bytes.size()) + " bytes that Peerlane did not make");
  if (bytes[4] != kVersion)
    return Status(Code::kNotSupported, "metadata of another agent has version " +
                                           std::to_string(static_cast<unsigned char>(bytes[4])) +
                                           "; this side has version " + std::to_string(kVersion));
  if (bytes[5] != kind) return corrupt("not of the kind that was asked for");
  const size_t length = lengthAt(bytes, 6);
  if (length > kMostTicket || length > bytes.size() - kHead)
    return corrupt("a ticket of " + std::to_string(length) + " bytes in " +
                   std::to_string(bytes.size()));
  std::string ticket(bytes.substr(kHead, length));
  if (!ticket.empty() && !isTicket(ticket)) return corrupt("its ticket is none of Peerlane");
  bytes.remove_prefix(kHead + length);
  return ticket;
}

}  // namespace

void appendLength(std::string& bytes, size_t length) {
  bytes += static_cast<char>(length & 0xff);
  bytes += static_cast<char>(length >> 8);
}

size_t lengthAt(std::string_view bytes, size_t at) {
  return static_cast<unsigned char>(bytes[at]) |
         static_cast<size_t>(static_cast<unsigned char>(bytes[at + 1])) << 8;
}

std::string ConnectionInfo::encode() const {
  return encodeTicket('C', ticket);
}

Result<ConnectionInfo> ConnectionInfo::decode(const std::string& bytes) {
  std::string_view rest = bytes;
  PEERLANE_ASSIGN(std::string ticket, takeTicket('C', rest));
  if (ticket.empty()) return corrupt("no ticket");
  if (!rest.empty()) return corrupt(std::to_string(rest.size()) + " bytes too many");
  return ConnectionInfo{std::move(ticket)};
}

std::string PublicData::encode() const {
  std::string bytes = encodeTicket('M', ticket);
  if (reference) bytes.append(reinterpret_cast<const char*>(reference->data()), reference->size());
  return bytes;
}

Result<PublicData> PublicData::decode(const std::string& bytes) {
  std::string_view rest = bytes;
  PublicData data;
  PEERLANE_ASSIGN(data.ticket, takeTicket('M', rest));
  if (rest.empty()) return data;
  RegionReference::Encoded reference;
  if (rest.size() != reference.size())
    return corrupt(std::to_string(rest.size()) + " bytes; need the " +
                   std::to_string(reference.size()) + " of a region");
  std::memcpy(reference.data(), rest.data(), reference.size());
  PEERLANE_RETURN_IF_ERROR(RegionReference::decode(reference).status());
  data.reference = reference;
  return data;
}

}  // namespace peerlane::nixl
