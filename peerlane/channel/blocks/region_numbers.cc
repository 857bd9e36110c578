// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/region_numbers.h"

#include <algorithm>
#include <string>

namespace peerlane {
namespace {

constexpr size_t kMaxRegions = 0x3f00;
// To search so few takes no longer than to look one up.
constexpr size_t kSearched = 4;

Status refused(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// The number of the first that `isIt`, among the few that are searched; else their count.
template <typename List, typename Is>
size_t search(const List& list, const Is& isIt) {
  const size_t few = std::min(list.size(), kSearched);
  for (size_t i = 0; i < few; ++i)
    if (isIt(list[i])) return i;
  return few;
}

}  // namespace

Result<TargetId> RegionNumbers::local(const Region* region) {
  if (region == nullptr || !*region) return refused("a block names no local region");
  auto& locals = list_.locals;
  const RegionRecord* const record = region->record().get();
  const size_t few = search(locals, [record](const auto& known) { return known.get() == record; });
  const auto next = static_cast<TargetId>(list_.firstLocal + locals.size());
  if (few < std::min(locals.size(), kSearched))
    return static_cast<TargetId>(list_.firstLocal + few);
  if (locals.size() >= kSearched)
    if (const auto found = locals_.find(record); found != locals_.end()) return found->second;
  if (locals.size() >= kMaxRegions)
    return refused("one post names more than " + std::to_string(kMaxRegions) + " local regions");
  if (locals.size() >= kSearched) locals_.emplace(record, next);
  locals.push_back(region->record());
  return next;
}

Result<TargetId> RegionNumbers::remote(const RemoteRegion* region) {
  if (region == nullptr || !*region) return refused("a block names no remote region");
  if (region->peer().get() != &peer_)
    return refused(
        "a block names a region of another peer (or of an earlier connection to this one)");
  auto& remotes = list_.remotes;
  const RemoteKey key(region->reference().allocation, region->reference().generation);
  const size_t few = search(remotes, [&key](const RemoteRegion& known) {
    return RemoteKey(known.reference().allocation, known.reference().generation) == key;
  });
  const auto next = static_cast<TargetId>(list_.firstRemote + remotes.size());
  if (few < std::min(remotes.size(), kSearched))
    return static_cast<TargetId>(list_.firstRemote + few);
  if (remotes.size() >= kSearched)
    if (const auto found = remotes_.find(key); found != remotes_.end()) return found->second;
  const Access wanted = list_.wantedAccess();
  if (!allows(region->access(), wanted))
    return Status(Code::kPermissionDenied, std::string("the remote region grants ") +
                                               accessName(region->access()) + ", this needs " +
                                               accessName(wanted));
  if (remotes.size() >= kMaxRegions)
    return refused("one post names more than " + std::to_string(kMaxRegions) + " remote regions");
  if (remotes.size() >= kSearched) remotes_.emplace(key, next);
  remotes.push_back(region->nearTo(*list_.locals.front()));
  return next;
}

}  // namespace peerlane
