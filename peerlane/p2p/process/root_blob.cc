// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/root_blob.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "peerlane/core/wire.h"

namespace peerlane::p2p {
namespace {

constexpr std::string_view kMagic{"PLP2PRT\1", 8};
constexpr size_t kTicketAt = 16;

// FNV-1a: finds accidents. The ticket's secret is what guards against malice.
uint32_t checksumOf(std::string_view text) {
  uint32_t sum = 2166136261u;
  for (const char c : text) sum = (sum ^ static_cast<uint8_t>(c)) * 16777619u;
  return sum;
}

Status corrupt(const char* why) {
  return Status(Code::kCorrupt, std::string("the root info ") + why +
                                    "; pass the bytes of P2PGetRootInfo, all of them");
}

}  // namespace

Status encodeRoot(std::string_view ticket, std::span<char> blob) {
  if (ticket.size() > blob.size() - kTicketAt)
    return Status(Code::kInvalidArgument,
                  "the addresses of this host have " + std::to_string(ticket.size()) +
                      " bytes, a root info has room for " +
                      std::to_string(blob.size() - kTicketAt) + "; name one by P2P_IF_IP");
  std::fill(blob.begin(), blob.end(), '\0');
  ByteWriter writer(std::as_writable_bytes(blob));
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.u32(static_cast<uint32_t>(ticket.size()));
  writer.u32(checksumOf(ticket));
  writer.raw(std::as_bytes(std::span(ticket)));
  return writer.finish("root info");
}

Result<std::string> decodeRoot(std::span<const char> blob) {
  ByteReader reader(std::as_bytes(blob));
  const auto magic = reader.raw(kMagic.size());
  if (!reader.ok() || std::memcmp(magic.data(), kMagic.data(), kMagic.size() - 1) != 0)
    return corrupt("was not made by P2PGetRootInfo");
  if (magic.back() != static_cast<std::byte>(kMagic.back()))
    return corrupt("is of another version of this library");
  const uint32_t bytes = reader.u32();
  const uint32_t checksum = reader.u32();
  if (bytes > blob.size() - kTicketAt) return corrupt("is damaged (its length)");
  const auto text = reader.raw(bytes);
  const std::string ticket(reinterpret_cast<const char*>(text.data()), text.size());
  if (!reader.ok() || checksumOf(ticket) != checksum) return corrupt("is damaged (its checksum)");
  return ticket;
}

}  // namespace peerlane::p2p
