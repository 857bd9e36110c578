// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/segment/imported_segments.h"

#include <string>

namespace peerlane::p2p {
namespace {

// As P2PRegisterHostMem takes it.
const char* permissionsName(Access access) {
  switch (access) {
    case Access::kRemoteRead: return "P2P_SEGMENT_READ_ONLY";
    case Access::kRemoteWrite: return "P2P_SEGMENT_WRITE_ONLY";
    default: return "P2P_SEGMENT_READ_WRITE";
  }
}

Status lacksRights(const SegmentName& name, uint64_t address, uint64_t bytes, Access access) {
  return Status(Code::kPermissionDenied,
                rangeText(address, bytes) + " lies in a segment that was registered with " +
                    permissionsName(name.access) + ", so it cannot be " +
                    (access == Access::kRemoteWrite ? "written" : "read") + " from here");
}

Status runsOver(const SegmentName& name, uint64_t address, uint64_t bytes) {
  const uint64_t over = bytes - (name.bytes - (address - name.address));
  return Status(Code::kInvalidArgument,
                rangeText(address, bytes) + " begins in the imported segment " +
                    rangeText(name.address, name.bytes) + " and runs over its end by " +
                    std::to_string(over) + (over == 1 ? " byte" : " bytes"));
}

}  // namespace

Status ImportedSegments::add(const SegmentName& name) {
  const WriterLock lock(mutex_);
  OfProcess& known = imports_[name.process];
  const auto [at, isNew] = known.byNumber.emplace(name.number, name);
  if (isNew) known.byAddress.emplace(name.address, &at->second);
  if (at->second == name) return Status::ok();
  return Status(Code::kInvalidArgument,
                "the segment info of " + rangeText(name.address, name.bytes) +
                    " and that of the imported segment " +
                    rangeText(at->second.address, at->second.bytes) +
                    " are of one process and number, and differ: two processes have drawn the same "
                    "random number of 64 bits, or one info was changed; register the memory again "
                    "in a fresh process, or call P2PUnimportSegment with the other one first");
}

bool ImportedSegments::remove(const SegmentName& name) {
  const WriterLock lock(mutex_);
  const auto process = imports_.find(name.process);
  if (process == imports_.end()) return false;
  OfProcess& known = process->second;
  const auto found = known.byNumber.find(name.number);
  if (found == known.byNumber.end() || found->second != name) return false;
  auto at = known.byAddress.lower_bound(name.address);
  while (at->second != &found->second) ++at;
  known.byAddress.erase(at);
  known.byNumber.erase(found);
  if (known.byNumber.empty()) imports_.erase(process);
  return true;
}

std::vector<SegmentName> ImportedSegments::of(const ProcessToken& process) const {
  const ReaderLock lock(mutex_);
  std::vector<SegmentName> names;
  if (const auto found = imports_.find(process); found != imports_.end())
    for (const auto& [number, name] : found->second.byNumber) names.push_back(name);
  return names;
}

Answer ImportedSegments::find(const ProcessToken& process, uint64_t address, uint64_t bytes,
                              Access access, SegmentName& found) const {
  const ReaderLock lock(mutex_);
  const auto imports = imports_.find(process);
  if (imports == imports_.end()) return noneHolds(process, address, bytes);
  const SegmentName* refused = nullptr;
  const SegmentName* overrun = nullptr;  // the range begins in it and ends after it
  // Segments may overlap, so the nearest that begins before the range may not be the right one.
  const auto& byAddress = imports->second.byAddress;
  for (auto at = byAddress.upper_bound(address); at != byAddress.begin();) {
    const SegmentName& name = *(--at)->second;
    if (!name.holds(address, bytes)) {
      if (name.holds(address, 1)) overrun = &name;
      continue;
    }
    if (allows(name.access, access)) {
      found = name;
      return Status::ok();
    }
    refused = &name;
  }
  if (refused != nullptr) return lacksRights(*refused, address, bytes, access);
  if (overrun != nullptr) return runsOver(*overrun, address, bytes);
  return noneHolds(process, address, bytes);
}

Answer ImportedSegments::noneHolds(const ProcessToken& process, uint64_t address,
                                   uint64_t bytes) const {
  constexpr size_t kEnough = 400;  // of a sentence
  std::string others;
  if (const auto known = imports_.find(process); known != imports_.end())
    for (const auto& [base, name] : known->second.byAddress) {
      if (others.size() > kEnough) break;
      others += (others.empty() ? "" : ", ") + rangeText(base, name->bytes);
    }
  return notFound(rangeText(address, bytes) +
                  " lies in no segment of the other process that was imported here" +
                  (others.empty() ? "; call P2PImportHostSegment first" : "; there are " + others));
}

}  // namespace peerlane::p2p
