// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/grant_message.h"

#include <string>
#include <utility>

namespace peerlane {

control::ImportReply replyWith(uint64_t request, const Grant& grant) {
  control::ImportReply reply;
  reply.request = request;
  reply.memoryKind = static_cast<uint8_t>(grant.region.kind);
  reply.base = grant.region.base;
  reply.bytes = grant.region.bytes;
  reply.fdOffset = grant.region.fdOffset;
  reply.fdCount = grant.fd ? 1 : 0;
  reply.access = static_cast<uint8_t>(grant.region.access);
  reply.allocation = grant.region.allocation;
  reply.generation = grant.region.generation;
  reply.device = grant.region.device.index;
  reply.backingBytes = grant.region.backingBytes;
  reply.identity = grant.region.identity;
  reply.handle = grant.region.handle;
  reply.isKept = grant.region.isKept;
  return reply;
}

Result<Grant> grantIn(const control::ImportReply& message, ControlConnection& connection) {
  if (message.memoryKind > static_cast<uint8_t>(kLastMemoryKind) || message.access > 3 ||
      message.fdCount > 1)
    return Status(Code::kCorrupt, "a grant with memory kind " + std::to_string(message.memoryKind) +
                                      ", access " + std::to_string(message.access) + ", " +
                                      std::to_string(message.fdCount) + " descriptors");
  Grant grant;
  grant.region.allocation = message.allocation;
  grant.region.generation = message.generation;
  grant.region.base = message.base;
  grant.region.bytes = message.bytes;
  grant.region.fdOffset = message.fdOffset;
  grant.region.kind = static_cast<MemoryKind>(message.memoryKind);
  grant.region.access = static_cast<Access>(message.access);
  if (isCuda(grant.region.kind)) grant.region.device = {DeviceKind::kCuda, message.device};
  grant.region.backingBytes = message.backingBytes;
  grant.region.identity = message.identity;
  grant.region.handle = message.handle;
  grant.region.isKept = message.isKept;
  PEERLANE_ASSIGN(auto fds, connection.takeFds(message.fdCount));
  if (!fds.empty()) grant.fd = std::move(fds.front());
  return grant;
}

}  // namespace peerlane
