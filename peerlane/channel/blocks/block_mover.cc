// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_mover.h"

#include <algorithm>
#include <optional>

#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {

std::string whyStaged(const BlockList& blocks, const PeerCore& peer) {
  const bool byDevice =
      std::any_of(blocks.locals.begin(), blocks.locals.end(),
                  [](const auto& local) { return local->memory.device.kind != DeviceKind::kHost; });
  for (const RemoteRegion& remote : blocks.remotes)
    if (std::string why = peer.links().whyStaged(remote.reference(), byDevice); !why.empty())
      return why;
  return {};
}

Result<DeviceExecutor*> executorFor(const BlockList& blocks, const PeerCore& peer,
                                    DeviceStream stream) {
  std::optional<Device> found;
  for (const auto& local : blocks.locals) {
    const Device& device = local->memory.device;
    if (device.kind == DeviceKind::kHost) continue;
    if (found && *found != device)
      return Status(Code::kNotSupported, "local memory of " + found->toString() + " and of " +
                                             device.toString() + " in one post; make two");
    found = device;
  }
  if (found) return peer.executor(*found);
  const bool fromDevice = std::any_of(
      blocks.remotes.begin(), blocks.remotes.end(),
      [](const auto& remote) { return remote.reference().device.kind != DeviceKind::kHost; });
  if (!fromDevice) return nullptr;
  if (stream) return peer.executorOf(stream);
  if (peer.devices().empty())
    return Status(Code::kNotSupported,
                  "the peer's memory is a GPU's, and this context was made without one: name a GPU "
                  "in ContextOptions::devices, or let the peer post the transfer");
  return peer.devices().front().get();
}

Status pinFor(DeviceExecutor& executor, const BlockList& blocks) {
  for (const auto& local : blocks.locals) {
    if (local->memory.device.kind != DeviceKind::kHost) continue;
    PEERLANE_RETURN_IF_ERROR(
        local->pin.ensure([&] { return executor.pin(local->base, local->bytes); }));
  }
  for (const RemoteRegion& remote : blocks.remotes) {
    const std::shared_ptr<ImportedRegion>& region = remote.slot()->region;
    const RemoteMemory& memory = region->memory;
    if (isCuda(memory.grant.kind)) continue;
    if (memory.mapped == nullptr)
      return Status(Code::kNotSupported,
                    "a GPU cannot reach the peer's region " +
                        std::to_string(memory.grant.allocation) +
                        ", which is not mapped here: it is private memory, or on another host; "
                        "Context::allocate and memfd give memory that peers can map");
    PEERLANE_RETURN_IF_ERROR(
        region->pin.ensure([&] { return executor.pin(memory.mapped, memory.grant.bytes); }));
  }
  return Status::ok();
}

Status checkIdentity(const BlockList& blocks) {
  for (const auto& local : blocks.locals) {
    if (local->memory.device.kind != DeviceKind::kCuda) continue;
    if (cuda::identityOf(local->base) == local->memory.identity) continue;
    return Status(Code::kInvalidArgument,
                  "region " + std::to_string(local->allocation) + " of " +
                      local->memory.device.toString() +
                      " was freed without being unregistered; its memory is gone or another's");
  }
  return Status::ok();
}

const char* engineOf(const BlockList& blocks) {
  if (blocks.remotes.empty()) return "mapped";
  const auto& region = blocks.remotes.front().slot()->region;
  return region ? region->memory.engine : "";
}

}  // namespace peerlane
