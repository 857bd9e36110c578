// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment/segment_book.h"

#include <algorithm>
#include <string>

#include "peerlane/os/process.h"

namespace peerlane::p2p {
namespace {

// As P2PRegisterHostMem was told.
const char* permissionsName(Access access) {
  switch (access) {
    case Access::kRemoteRead: return "P2P_SEGMENT_READ_ONLY";
    case Access::kRemoteWrite: return "P2P_SEGMENT_WRITE_ONLY";
    default: return "P2P_SEGMENT_READ_WRITE";
  }
}

bool holds(const SegmentName& name, uint64_t address, uint64_t bytes) {
  return address >= name.address && address - name.address <= name.bytes &&
         bytes <= name.bytes - (address - name.address);
}

}  // namespace

std::string rangeText(uint64_t address, uint64_t bytes) {
  char text[64];
  (void)std::snprintf(text, sizeof text, "[0x%llx, +%llu)",
                      static_cast<unsigned long long>(address),
                      static_cast<unsigned long long>(bytes));
  return text;
}

Result<Region> SegmentBook::regionOf(Own& own, const std::shared_ptr<Context>& context) {
  for (const Own::Registered& known : own.registered)
    if (known.context == context) return known.region;
  PEERLANE_ASSIGN(Region region, context->registerRegion(reinterpret_cast<void*>(own.name.address),
                                                         own.name.bytes, own.name.access));
  own.registered.push_back({context, region});
  return region;
}

Result<SegmentName> SegmentBook::add(const std::shared_ptr<Context>& context, std::byte* base,
                                     uint64_t bytes, Access access, DeviceKind kind) {
  if (bytes > SegmentName::kMostBytes)
    return Status(Code::kInvalidArgument, "size is " + std::to_string(bytes) + "; accepted: 1 to " +
                                              std::to_string(SegmentName::kMostBytes));
  Own own;
  own.name.process = process_;
  own.name.address = reinterpret_cast<uint64_t>(base);
  own.name.bytes = bytes;
  own.name.access = access;
  own.name.kind = kind;
  PEERLANE_RETURN_IF_ERROR(fillRandom(std::as_writable_bytes(std::span(own.name.key))));
  PEERLANE_ASSIGN(const Region region, regionOf(own, context));
  if (region.device().kind != kind) {
    (void)context->unregister(region);
    return Status(Code::kInvalidArgument,
                  kind == DeviceKind::kHost
                      ? "this is memory of " + region.device().toString() +
                            "; register it by P2PRegisterDeviceMem"
                      : "this is not memory of a GPU; register it by P2PRegisterHostMem");
  }
  const std::lock_guard lock(ownMutex_);
  PEERLANE_CHECK(next_ <= SegmentName::kMostNumber);  // a million a second, for nine years
  own.name.number = next_++;
  const SegmentName name = own.name;
  own_.emplace(name.number, std::move(own));
  ownCount_.store(own_.size(), std::memory_order_release);
  return name;
}

Result<Region> SegmentBook::regionFor(uint64_t number, const SegmentProof& proof,
                                      const AskEnds& ends,
                                      const std::shared_ptr<Context>& context) {
  const std::lock_guard lock(ownMutex_);
  const auto found = own_.find(number);
  if (found == own_.end() || found->second.isLeaving ||
      !isProof(proof, number, found->second.name.key, ends))
    return Status(Code::kInvalidArgument,
                  "segment " + std::to_string(number) + " is not registered there (any more)");
  return regionOf(found->second, context);
}

std::optional<Region> SegmentBook::hostRegion(const std::byte* address, uint64_t bytes,
                                              Access access,
                                              const std::shared_ptr<Context>& context) {
  if (ownCount_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::optional<Region> lesser;
  const std::lock_guard lock(ownMutex_);
  for (auto& [number, own] : own_) {
    if (own.isLeaving || own.name.kind != DeviceKind::kHost ||
        !holds(own.name, reinterpret_cast<uint64_t>(address), bytes))
      continue;
    auto region = regionOf(own, context);
    if (!region.isOk()) continue;
    if (allows(own.name.access, access)) return *region;
    lesser = *region;
  }
  return lesser;
}

std::optional<SegmentName> SegmentBook::overlapping(const SegmentName& name) {
  const std::lock_guard lock(ownMutex_);
  for (const auto& [number, own] : own_)
    if (number != name.number && own.name.address < name.address + name.bytes &&
        name.address < own.name.address + own.name.bytes)
      return own.name;
  return std::nullopt;
}

std::optional<Status> SegmentBook::remove(const SegmentName& name,
                                          std::chrono::nanoseconds timeout) {
  std::vector<Own::Registered> registered;
  {
    const std::lock_guard lock(ownMutex_);
    const auto found = own_.find(name.number);
    if (name.process != process_ || found == own_.end() || found->second.name.key != name.key)
      return std::nullopt;
    found->second.isLeaving = true;  // no context registers it from now on
    registered = found->second.registered;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const Own::Registered& each : registered) {
    const auto left = std::max<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    if (Status status = each.context->unregister(each.region, left); !status.isOk()) return status;
  }
  const std::lock_guard lock(ownMutex_);
  own_.erase(name.number);
  ownCount_.store(own_.size(), std::memory_order_release);
  return Status::ok();
}

Status SegmentBook::import(const SegmentName& name) {
  const std::unique_lock lock(importMutex_);
  Imports& imports = imports_[name.process];
  const auto [at, isNew] = imports.byNumber.emplace(name.number, name);
  if (isNew) imports.byAddress.emplace(name.address, &at->second);
  if (at->second == name) return Status::ok();
  return Status(Code::kInvalidArgument,
                "the segment info of " + rangeText(name.address, name.bytes) +
                    " and that of the imported segment " +
                    rangeText(at->second.address, at->second.bytes) +
                    " are of one process and number, and differ: two processes have drawn the same "
                    "random number of 64 bits, or one info was changed; register the memory again "
                    "in a fresh process, or call P2PUnimportSegment with the other one first");
}

bool SegmentBook::unimport(const SegmentName& name) {
  const std::unique_lock lock(importMutex_);
  const auto process = imports_.find(name.process);
  if (process == imports_.end()) return false;
  Imports& imports = process->second;
  const auto found = imports.byNumber.find(name.number);
  if (found == imports.byNumber.end() || found->second != name) return false;
  auto at = imports.byAddress.lower_bound(name.address);
  while (at->second != &found->second) ++at;
  imports.byAddress.erase(at);
  imports.byNumber.erase(found);
  if (imports.byNumber.empty()) imports_.erase(process);
  return true;
}

std::vector<SegmentName> SegmentBook::importsOf(const ProcessToken& process) const {
  const std::shared_lock lock(importMutex_);
  std::vector<SegmentName> names;
  if (const auto found = imports_.find(process); found != imports_.end())
    for (const auto& [number, name] : found->second.byNumber) names.push_back(name);
  return names;
}

Answer SegmentBook::find(const ProcessToken& process, uint64_t address, uint64_t bytes,
                         Access access, SegmentName& found) const {
  const std::shared_lock lock(importMutex_);
  const auto imports = imports_.find(process);
  const SegmentName* refused = nullptr;
  const SegmentName* overrun = nullptr;  // it begins there, and ends behind it
  if (imports != imports_.end()) {
    // Segments may overlap, so the nearest that begins before it need not be the one.
    const auto& byAddress = imports->second.byAddress;
    for (auto at = byAddress.upper_bound(address); at != byAddress.begin();) {
      const SegmentName& name = *(--at)->second;
      if (!holds(name, address, bytes)) {
        if (holds(name, address, 1)) overrun = &name;
        continue;
      }
      if (allows(name.access, access)) {
        found = name;
        return Status::ok();
      }
      refused = &name;
    }
  }
  if (refused != nullptr)
    return Status(Code::kPermissionDenied,
                  rangeText(address, bytes) + " lies in a segment that was registered with " +
                      permissionsName(refused->access) + ", so it cannot be " +
                      (access == Access::kRemoteWrite ? "written" : "read") + " from here");
  if (overrun != nullptr) {
    const uint64_t over = bytes - (overrun->bytes - (address - overrun->address));
    return Status(Code::kInvalidArgument,
                  rangeText(address, bytes) + " begins in the imported segment " +
                      rangeText(overrun->address, overrun->bytes) + " and runs over its end by " +
                      std::to_string(over) + (over == 1 ? " byte" : " bytes"));
  }
  std::string known;
  if (imports != imports_.end())
    for (const auto& [base, name] : imports->second.byAddress) {
      if (known.size() > 400) break;
      known += (known.empty() ? "" : ", ") + rangeText(base, name->bytes);
    }
  return notFound(rangeText(address, bytes) +
                  " lies in no segment of the other process that was imported here" +
                  (known.empty() ? "; call P2PImportHostSegment first" : "; there are " + known));
}

}  // namespace peerlane::p2p
