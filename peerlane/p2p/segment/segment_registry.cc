// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment/segment_registry.h"

#include <algorithm>
#include <string>

#include "peerlane/os/process.h"

namespace peerlane::p2p {

Result<Region> SegmentRegistry::regionOf(Segment& segment,
                                         const std::shared_ptr<Context>& context) {
  for (const Segment::Registration& known : segment.registrations)
    if (known.context == context) return known.region;
  const SegmentName& name = segment.name;
  PEERLANE_ASSIGN(Region region, context->registerRegion(reinterpret_cast<void*>(name.address),
                                                         name.bytes, name.access));
  segment.registrations.push_back({context, region});
  return region;
}

Result<SegmentName> SegmentRegistry::add(const std::shared_ptr<Context>& context, std::byte* base,
                                         uint64_t bytes, Access access, DeviceKind kind) {
  if (bytes > SegmentName::kMostBytes)
    return Status(Code::kInvalidArgument, "size is " + std::to_string(bytes) + "; accepted: 1 to " +
                                              std::to_string(SegmentName::kMostBytes));
  Segment segment;
  segment.name.process = process_;
  segment.name.address = reinterpret_cast<uint64_t>(base);
  segment.name.bytes = bytes;
  segment.name.access = access;
  segment.name.kind = kind;
  PEERLANE_RETURN_IF_ERROR(fillRandom(std::as_writable_bytes(std::span(segment.name.key))));
  PEERLANE_ASSIGN(const Region region, regionOf(segment, context));
  if (region.device().kind != kind) {
    (void)context->unregister(region);
    return Status(Code::kInvalidArgument,
                  kind == DeviceKind::kHost
                      ? "this is memory of " + region.device().toString() +
                            "; register it by P2PRegisterDeviceMem"
                      : "this is not memory of a GPU; register it by P2PRegisterHostMem");
  }
  const MutexLock lock(mutex_);
  PEERLANE_CHECK(next_ <= SegmentName::kMostNumber);  // a million a second, for nine years
  segment.name.number = next_++;
  const SegmentName name = segment.name;
  segments_.emplace(name.number, std::move(segment));
  count_.store(segments_.size(), std::memory_order_release);
  return name;
}

Result<Region> SegmentRegistry::regionFor(uint64_t number, const SegmentProof& proof,
                                          const AskEnds& ends,
                                          const std::shared_ptr<Context>& context) {
  const MutexLock lock(mutex_);
  const auto found = segments_.find(number);
  // One answer for all three, so that a peer without the key does not learn which numbers exist.
  if (found == segments_.end() || found->second.isLeaving ||
      !isProof(proof, number, found->second.name.key, ends))
    return Status(Code::kInvalidArgument,
                  "segment " + std::to_string(number) + " is not registered there (any more)");
  return regionOf(found->second, context);
}

std::optional<Region> SegmentRegistry::hostRegion(const std::byte* address, uint64_t bytes,
                                                  Access access,
                                                  const std::shared_ptr<Context>& context) {
  if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::optional<Region> lesser;
  const MutexLock lock(mutex_);
  for (auto& [number, segment] : segments_) {
    if (segment.isLeaving || segment.name.kind != DeviceKind::kHost ||
        !segment.name.holds(reinterpret_cast<uint64_t>(address), bytes))
      continue;
    auto region = regionOf(segment, context);
    if (!region.isOk()) continue;
    if (allows(segment.name.access, access)) return *region;
    lesser = *region;
  }
  return lesser;
}

std::optional<SegmentName> SegmentRegistry::overlapping(const SegmentName& name) {
  const MutexLock lock(mutex_);
  for (const auto& [number, segment] : segments_)
    if (number != name.number && segment.name.address < name.address + name.bytes &&
        name.address < segment.name.address + segment.name.bytes)
      return segment.name;
  return std::nullopt;
}

std::optional<Status> SegmentRegistry::remove(const SegmentName& name,
                                              std::chrono::nanoseconds timeout) {
  std::vector<Segment::Registration> registrations;
  {
    const MutexLock lock(mutex_);
    const auto found = segments_.find(name.number);
    if (name.process != process_ || found == segments_.end() || found->second.name.key != name.key)
      return std::nullopt;
    found->second.isLeaving = true;  // before the copy: no registration comes after it
    registrations = found->second.registrations;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const Segment::Registration& each : registrations) {
    const auto left = std::max<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    if (Status status = each.context->unregister(each.region, left); !status.isOk()) return status;
  }
  const MutexLock lock(mutex_);
  segments_.erase(name.number);
  count_.store(segments_.size(), std::memory_order_release);
  return Status::ok();
}

}  // namespace peerlane::p2p
