// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_mover.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {

namespace {

bool isOfHost(const MemoryKind& kind) {
  return kind.place == MemoryPlace::kHost;
}

bool isOfHost(const RemoteRegion& remote) {
  return remote.reference().device.kind == DeviceKind::kHost;
}

LocalMemory localMemory(const BlockList& blocks, DeviceStream stream) {
  LocalMemory memory;
  for (const auto& local : blocks.locals)
    (isOfHost(local->memory.kind) ? memory.ofHost : memory.ofDevice) = local->memory.kind;
  if (!blocks.empty()) memory.place = blocks.locals.front()->memory.device;
  // Of host memory alone nothing is done on a stream.
  memory.onStream = stream && (memory.ofDevice ||
                               !std::all_of(blocks.remotes.begin(), blocks.remotes.end(),
                                            [](const auto& remote) { return isOfHost(remote); }));
  return memory;
}

// Null: not imported yet.
const RemoteMemory* importedMemory(const RemoteRegion& remote) {
  const ImportSlot& slot = *remote.slot();
  const bool isThere = slot.state.load(std::memory_order_acquire) == ImportSlot::State::kReady;
  return isThere && slot.region ? &slot.region->memory : nullptr;
}

// Over the link that attached it, once one has.
LinkRoute routeTo(const RemoteRegion& remote, const LinkSet& links, const LocalMemory& local) {
  const RemoteMemory* const memory = importedMemory(remote);
  return memory != nullptr ? links.routeOver(*memory, local)
                           : links.route(remote.reference(), local);
}

// Agents of links that were asked whether they take all memory of this side: one walk for each.
class AskedAgents {
 public:
  AskedAgents(const BlockList& blocks, const LocalMemory& local)
      : blocks_(blocks), takesAll_(!local.ofDevice) {}

  std::string whyNotTaken(const Link& link) {
    if (takesAll_ || std::find(asked_.begin(), asked_.end(), &link) != asked_.end()) return {};
    asked_.push_back(&link);
    for (const auto& local : blocks_.locals)
      if (std::string why = peerlane::whyNotTaken(link, *local); !why.empty()) return why;
    return {};
  }

 private:
  const BlockList& blocks_;
  const bool takesAll_;  // it is a host's
  std::vector<const Link*> asked_;
};

}  // namespace

std::string whyStaged(const BlockList& blocks, const PeerCore& peer, DeviceStream stream) {
  const LocalMemory local = localMemory(blocks, stream);
  AskedAgents agents(blocks, local);
  for (const RemoteRegion& remote : blocks.remotes) {
    const LinkRoute route = routeTo(remote, peer.links(), local);
    if (route.by == LinkRoute::By::kNothing) {
      std::string why = peer.links().whyStaged(remote.reference(), local);
      return why.empty() ? "it came over a link that does not reach this side's memory" : why;
    }
    if (route.by != LinkRoute::By::kAgent) continue;
    // One of both ends may not take it, though others of its kind are taken.
    std::string why = whyNotGranted(remote.reference(), *remote.slot(), peer.links());
    if (why.empty()) why = agents.whyNotTaken(*route.link);
    if (!why.empty()) return why;
  }
  return {};
}

Result<DeviceExecutor*> executorFor(const BlockList& blocks, const PeerCore& peer,
                                    DeviceStream stream) {
  const LocalMemory here = localMemory(blocks, stream);
  const auto byAgent =
      std::count_if(blocks.remotes.begin(), blocks.remotes.end(), [&](const auto& remote) {
        return routeTo(remote, peer.links(), here).by == LinkRoute::By::kAgent;
      });
  const bool isAll = byAgent == static_cast<std::ptrdiff_t>(blocks.remotes.size());
  if (byAgent != 0 && isAll) return nullptr;
  if (byAgent != 0 && here.ofDevice)
    return Status(Code::kNotSupported,
                  "remote memory that the agent of a link copies, and other that a GPU copies, in "
                  "one post; make two");
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
    return Status(Code::kRevoked,
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
