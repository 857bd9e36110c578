// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/host_allocations.h"

#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

namespace peerlane::p2p {
namespace {

constexpr std::chrono::seconds kFreePatience{10};

// All memory of the machine. The system promises more, and ends a process that touches the first
// page that is missing.
uint64_t machineBytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Result<void*> HostAllocations::allocate(uint64_t bytes, std::optional<int> numaNode) {
  if (const uint64_t most = machineBytes(); bytes > most)
    return Status(Code::kOutOfMemory, "size is " + std::to_string(bytes) +
                                          " bytes; this machine has " + std::to_string(most) +
                                          " bytes of memory in all");
  PEERLANE_ASSIGN(auto context, contexts_.any(std::nullopt));
  MemoryOptions options;
  options.numaNode = numaNode;
  options.access = Access::kLocal;
  PEERLANE_ASSIGN(Region region, context->allocate(bytes, options));
  void* const memory = region.data();
  auto name =
      segments_.add(context, region.data(), bytes, Access::kRemoteReadWrite, DeviceKind::kHost);
  if (!name.isOk()) {
    (void)context->unregister(region);
    return name.status();
  }
  const MutexLock lock(mutex_);
  allocations_[memory] = {std::move(context), std::move(region), *name};
  return memory;
}

Status HostAllocations::release(Allocation& allocation) {
  const SegmentName& name = allocation.name;
  if (const auto other = segments_.overlapping(name))
    return Status(Code::kUnavailable, "the memory " + rangeText(name.address, name.bytes) +
                                          " is still registered, as the segment " +
                                          rangeText(other->address, other->bytes) +
                                          "; call P2PUnregisterMem first");
  // Nothing: an earlier free() has removed the segment, and could not unregister the region.
  PEERLANE_RETURN_IF_ERROR(segments_.remove(name, kFreePatience).value_or(Status::ok()));
  return allocation.context->unregister(allocation.region, kFreePatience);
}

std::optional<Status> HostAllocations::free(void* memory) {
  Allocation gone;
  {
    const MutexLock lock(mutex_);
    auto taken = allocations_.extract(memory);
    if (taken.empty()) return std::nullopt;
    gone = std::move(taken.mapped());
  }
  Status status = release(gone);
  if (status.isOk()) return status;
  const MutexLock lock(mutex_);
  allocations_.emplace(memory, std::move(gone));
  return status;
}

}  // namespace peerlane::p2p
