// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: which memory messages may use, and what has to be done once before a GPU reaches it.
#include <string>

#include "peerlane/channel/message/stream/device_lane.h"

namespace peerlane {
namespace {

// Of messages that the other side reaches.
std::string nameOf(const DeviceLane::Item& item) {
  if (item.list != nullptr) return "a list that is received";
  return std::string(item.isSend ? "a send by get" : "a receive") + " of more than " +
         std::to_string(DeviceArea::kEagerBytes) + " bytes";
}

}  // namespace

Status DeviceLane::check(const Item& item) const {
  if (!item.isReached()) return Status::ok();
  if (!allows(item.region->access, item.isSend ? Access::kRemoteRead : Access::kRemoteWrite))
    return Status(Code::kPermissionDenied, std::string("the region grants ") +
                                               accessName(item.region->access) + "; " +
                                               nameOf(item) + " on a stream needs remote " +
                                               (item.isSend ? "read" : "write"));
  const std::string why = peer_->links().whyOutOfReach(item.region->memory);
  return why.empty() ? Status::ok() : outOfReach(item, why);
}

Status DeviceLane::outOfReach(const Item& item, const std::string& why) const {
  const RegionRecord& region = *item.region;
  const std::string other =
      item.list != nullptr
          ? ""
          : std::string(". By ") + (item.isSend ? "put" : "get") +
                ", where both sides name that, any memory will do here, and the other side's is "
                "reached";
  const std::string name =
      item.list == nullptr && !item.isSend
          ? "a receive by put of more than " + std::to_string(DeviceArea::kEagerBytes) + " bytes"
          : nameOf(item);
  return Status(Code::kNotSupported,
                "the GPU of rank " + std::to_string(rank_) + " cannot reach region " +
                    std::to_string(region.allocation) + ", memory of " +
                    region.memory.device.toString() + ": " + why + ". A" + name.substr(1) +
                    " needs memory that is exported: Context::allocate, memfd, cudaMalloc, VMM "
                    "memory and pools made for export as a descriptor" +
                    other);
}

Status DeviceLane::open(RegionRecord& region, DeviceExecutor& executor) {
  const Device owner = region.memory.device, device = executor.device();
  if (owner == device) return Status::ok();
  const auto named = [&](const Status& status) {
    return status.isOk() ? status
                         : status.withContext("region " + std::to_string(region.allocation));
  };
  if (owner.kind == DeviceKind::kHost)
    return named(region.pin.ensure([&] { return executor.pin(region.base, region.bytes); }));
  if (region.isOpenTo(device)) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(named(executor.open(region.memory, region.base)));
  region.setOpenTo(device);
  return Status::ok();
}

// Of the other side, as it was imported.
Status DeviceLane::openImport(ImportedRegion& region) const {
  const RemoteMemory& memory = region.memory;
  if (isCuda(memory.grant.kind)) return Status::ok();
  if (memory.mapped == nullptr)
    return Status(Code::kNotSupported, "region " + std::to_string(memory.grant.allocation) +
                                           " of rank " + std::to_string(rank_) +
                                           " is not mapped here, so no GPU can reach it");
  return region.pin.ensure([&] { return executor().pin(memory.mapped, memory.grant.bytes); });
}

// Why the other side could not reach a region that this side has announced.
Status DeviceLane::whyNotReached(const LaneNote& note) const {
  std::string text = "rank " + std::to_string(rank_) + " cannot reach region " +
                     std::to_string(note.area.allocation) + " of this side";
  const auto record = peer_->regions().find(note.area.allocation, note.area.generation);
  if (record.isOk()) text += " (" + (*record)->memory.text + ")";
  return Status(note.code, text + "; its messages on streams say why");
}

}  // namespace peerlane
