// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/grant_message.h"

#include <utility>

namespace peerlane {

control::ImportReply replyWith(uint64_t request, const std::string& link, const Grant& grant) {
  const RegionGrant& region = grant.region;
  control::ImportReply reply;
  reply.request = request;
  reply.link = link;
  reply.place = static_cast<uint8_t>(region.kind.place);
  reply.exported = static_cast<uint8_t>(region.kind.exported);
  reply.shape = static_cast<uint8_t>(region.kind.shape);
  reply.kindName = region.kind.name();
  reply.bytes = region.bytes;
  reply.access = static_cast<uint8_t>(region.access);
  reply.allocation = region.allocation;
  reply.generation = region.generation;
  reply.device = region.device.index;
  reply.owner = region.owner;
  reply.linkPart = grant.own.blob;
  reply.fdCount = grant.own.fd ? 1 : 0;
  return reply;
}

Result<Grant> grantIn(const control::ImportReply& message, ControlConnection& connection) {
  if (message.access > 3 || message.fdCount > 1)
    return Status(Code::kCorrupt, "a grant with access " + std::to_string(message.access) +
                                      " and " + std::to_string(message.fdCount) + " descriptors");
  PEERLANE_ASSIGN(auto fds, connection.takeFds(message.fdCount));
  const auto kind = MemoryKind::of(message.place, message.exported, message.shape);
  if (!kind)
    return Status(Code::kNotSupported,
                  "the region is '" + message.kindName + "' (place " +
                      std::to_string(message.place) + ", export " +
                      std::to_string(message.exported) + ", shape " +
                      std::to_string(message.shape) +
                      "), a kind of memory that this version of the library does not know");
  Grant grant;
  grant.region.allocation = message.allocation;
  grant.region.generation = message.generation;
  grant.region.bytes = message.bytes;
  grant.region.kind = *kind;
  grant.region.access = static_cast<Access>(message.access);
  if (isCuda(*kind)) grant.region.device = {DeviceKind::kCuda, message.device};
  grant.region.owner = message.owner;
  grant.own.blob = message.linkPart;
  if (!fds.empty()) grant.own.fd = std::move(fds.front());
  return grant;
}

}  // namespace peerlane
