// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/link_set.h"

#include <algorithm>

namespace peerlane {
namespace {

bool hasFailed(const Link& link) {
  const Code health = link.health().code();
  return health != Code::kOk && health != Code::kTryAgain && health != Code::kPeerSilent;
}

using By = LinkRoute::By;

// `remote` empty: anything at `place`.
By wayOver(const LinkAbilities& abilities, const MemoryKind* remote, MemoryPlace place,
           const LocalMemory& local) {
  const auto can = [&](Ability ability) {
    return remote != nullptr ? abilities.can(*remote, ability) : abilities.canAny(place, ability);
  };
  if (!can(Ability::kAttaches)) return By::kNothing;
  const bool byDevice = place == MemoryPlace::kCuda || local.ofDevice || local.onStream;
  if (can(Ability::kMaps) && (!byDevice || can(Ability::kByDevice))) return By::kMapping;
  const auto fromHere = [&](const std::optional<MemoryKind>& kind) {
    return !kind || abilities.can(*kind, Ability::kFromHere);
  };
  const bool byAgent = can(Ability::kByAgent) && !local.onStream && fromHere(local.ofHost) &&
                       fromHere(local.ofDevice);
  return byAgent ? By::kAgent : By::kNothing;
}

bool areRails(const Link& a, const Link& b) {
  return a.traits().rails && a.traits().rails == b.traits().rails;
}

// Requires: it is one of several rails.
const LinkRails::Distance& distanceOf(const Link& link, const LocalMemory& local) {
  const LinkTraits& traits = link.traits();
  return traits.rails->rails[traits.rail].from(local.place);
}

MemoryPlace placeOf(const RegionReference& region) {
  if (region.kind) return region.kind->place;
  return region.device.kind == DeviceKind::kHost ? MemoryPlace::kHost : MemoryPlace::kCuda;
}

}  // namespace

Link& LinkSet::of(const RemoteMemory& memory) const {
  for (const auto& made : made_)
    if (made->link.get() == memory.agent) return *made->link;
  return words();
}

std::vector<Link*> LinkSet::live() const {
  std::vector<Link*> links;
  for (const auto& made : made_)
    if (isLive(*made)) links.push_back(made->link.get());
  return links;
}

const Link* LinkSet::mapsDevices() const {
  for (const auto& made : made_) {
    const LinkAbilities& abilities = made->link->traits().abilities;
    if (isLive(*made) && abilities.canAny(MemoryPlace::kCuda, Ability::kMaps) &&
        abilities.canAny(MemoryPlace::kCuda, Ability::kByDevice))
      return made->link.get();
  }
  return nullptr;
}

Link* LinkSet::named(std::string_view name) const {
  for (const auto& made : made_)
    if (made->link->traits().transport == name) return made->link.get();
  return nullptr;
}

Link* LinkSet::granting(const MemoryKind& kind, const std::vector<std::string>& names) const {
  for (const std::string& name : names)
    for (const auto& made : made_)
      if (isLive(*made) && made->link->traits().transport == name &&
          made->link->traits().abilities.can(kind, Ability::kGrants))
        return made->link.get();
  return nullptr;
}

bool LinkSet::peerWritesAlone() const {
  return std::any_of(made_.begin(), made_.end(),
                     [](const auto& made) { return made->link->traits().peerWritesAlone; });
}

bool LinkSet::isLive(const Link& link) const {
  return std::any_of(made_.begin(), made_.end(),
                     [&](const auto& made) { return made->link.get() == &link && isLive(*made); });
}

LinkRoute LinkSet::routeOver(const RemoteMemory& memory, const LocalMemory& local) const {
  const Link& link = of(memory);
  const MemoryKind& kind = memory.grant.kind;
  const By by = wayOver(link.traits().abilities, &kind, kind.place, local);
  return by == By::kNothing ? LinkRoute() : LinkRoute{by, &link};
}

LinkRoute LinkSet::route(const MemoryKind* remote, MemoryPlace place,
                         const LocalMemory& local) const {
  LinkRoute found;
  for (const auto& made : made_) {
    const Link& link = *made->link;
    if (found.link != nullptr && !areRails(*found.link, link)) continue;
    if (!isLive(*made)) continue;
    const By by = wayOver(link.traits().abilities, remote, place, local);
    if (by == By::kNothing) continue;
    if (found.link == nullptr)
      found = {by, &link};
    else if (by == found.by && distanceOf(link, local).steps < distanceOf(*found.link, local).steps)
      found.link = &link;
    if (!hasRails_) return found;
  }
  return found;
}

LinkRoute LinkSet::route(const MemoryKind& remote, const LocalMemory& local) const {
  return route(&remote, remote.place, local);
}

LinkRoute LinkSet::route(const RegionReference& region, const LocalMemory& local) const {
  return route(region.kind ? &*region.kind : nullptr, placeOf(region), local);
}

std::string LinkSet::whyNot(const Link& link, const MemoryKind& remote,
                            const LocalMemory& local) const {
  const LinkTraits& traits = link.traits();
  const std::string& refused = traits.abilities.whyNot(remote);
  if (!refused.empty()) return refused;
  if (!traits.abilities.can(remote, Ability::kAttaches))
    return "it does not reach " + remote.name();
  if (remote.place == MemoryPlace::kHost &&
      traits.abilities.can(MemoryKind::kShared, Ability::kByDevice))
    return "it is private memory of the peer; Context::allocate and memfd give memory that can be "
           "mapped";
  if (local.onStream || !traits.abilities.can(remote, Ability::kByAgent))
    return "link " + traits.transport + " maps no memory that a GPU could reach";
  return "its agent does not copy " + local.ofDevice.value_or(MemoryKind()).name() +
         " of this side";
}

// "mlx5_1:1 is farther: system/9 from cuda0"
std::string LinkSet::whyFarther(const Link& link, const Link& taken, const LocalMemory& local) {
  const LinkTraits& traits = link.traits();
  const bool isFarther = distanceOf(link, local).steps > distanceOf(taken, local).steps;
  return traits.rails->rails[traits.rail].device +
         (isFarther ? " is farther: " : " is no nearer: ") + nearnessOf(link, local);
}

std::string LinkSet::nearnessOf(const Link& link, const LocalMemory& local) {
  return link.traits().rails ? distanceOf(link, local).reason : std::string();
}

std::vector<control::Refusal> LinkSet::whyNot(const MemoryKind& remote,
                                              const LocalMemory& local) const {
  std::vector<control::Refusal> all;
  const Link* const taken = route(remote, local).link;
  for (const auto& made : made_) {
    const LinkTraits& traits = made->link->traits();
    if (!isLive(*made))
      all.push_back({traits.transport, "it failed: " + made->why});
    else if (wayOver(traits.abilities, &remote, remote.place, local) == By::kNothing)
      all.push_back({traits.transport, whyNot(*made->link, remote, local)});
    else if (taken != nullptr && made->link.get() != taken && areRails(*taken, *made->link))
      all.push_back({traits.transport, whyFarther(*made->link, *taken, local)});
  }
  all.insert(all.end(), refused_.begin(), refused_.end());
  return all;
}

std::string LinkSet::refusalsOf(MemoryPlace place, const char* before, const char* after) const {
  std::string text;
  for (size_t i = 0; i < refused_.size(); ++i)
    if (refusedAbilities_[i].canAny(place, Ability::kAttaches) &&
        !refusedAbilities_[i].canAny(MemoryPlace::kHost, Ability::kAttaches))
      text += before + refused_[i].transport + ": " + refused_[i].reason + after;
  return text;
}

// Of the links that have to do with memory at that place: the first reason, for a person.
std::string LinkSet::whyStaged(const RegionReference& region, const LocalMemory& local) const {
  if (route(region, local).by != By::kNothing) return {};
  const MemoryPlace place = placeOf(region);
  const MemoryKind remote = region.kind.value_or(MemoryKind{.place = place});
  std::string failed;
  for (const auto& made : made_) {
    const LinkAbilities& abilities = made->link->traits().abilities;
    const bool concerns = abilities.canAny(place, Ability::kAttaches);
    if (concerns && isLive(*made)) return whyNot(*made->link, remote, local);
    if (concerns && failed.empty())
      failed = "link " + made->link->traits().transport + " failed: " + made->why;
  }
  if (!failed.empty()) return failed;
  return place == MemoryPlace::kCuda
             ? "no link between the two reaches GPUs" + refusalsOf(place, " (", ")")
             : "no link between the two reaches " + remote.name();
}

std::string LinkSet::whyOutOfReach(const MemoryDescription& memory) const {
  std::string why;
  for (const auto& made : made_) {
    const LinkTraits& traits = made->link->traits();
    if (!isLive(*made) || !traits.abilities.canAny(memory.kind.place, Ability::kGrants)) continue;
    if (traits.abilities.can(memory.kind, Ability::kByDevice)) return {};
    // The peer's side may not reach a kind that this side does not reach, and the other way round:
    // the owner's answer to the import counts.
    if (isCuda(memory.kind) && isMappable(memory.kind) &&
        traits.abilities.can(memory.kind, Ability::kGrants))
      return {};
    if (isCuda(memory.kind))
      why = memory.whyNot;
    else if (traits.abilities.can(MemoryKind::kShared, Ability::kByDevice))
      why = "it is private memory of this process";
    else
      why = "link " + traits.transport + " maps no memory that a GPU could reach";
  }
  return why.empty() && !isCuda(memory.kind) ? "no link reaches it" : why;
}

bool LinkSet::poll() {
  bool moved = false;
  for (const auto& made : made_) {
    if (!isLive(*made)) continue;
    moved |= made->link->poll();
    if (!made->isTold.load(std::memory_order_relaxed) && hasFailed(*made->link)) {
      made->isTold.store(true, std::memory_order_relaxed);
      newFailure_.store(true, std::memory_order_release);
    }
  }
  return moved;
}

Result<RemoteMemory> LinkSet::attach(const std::string& name, Grant grant) {
  Link* const link = named(name);
  if (link == nullptr)
    return Status(Code::kCorrupt, "a grant over link '" + name + "', which was not made");
  if (!isLive(*link)) return Status(Code::kNotSupported, "link " + name + " has failed meanwhile");
  PEERLANE_ASSIGN(RemoteMemory memory, link->attach(std::move(grant)));
  if (memory.needsItsWords && link != &words())
    return Status(Code::kNotSupported, "words go over link " + words().traits().transport +
                                           ", and those about this memory must go over " + name);
  memory.agent = link;
  return memory;
}

std::vector<Link*> LinkSet::failed() const {
  std::vector<Link*> links;
  for (const auto& made : made_)
    if (isLive(*made) && hasFailed(*made->link)) links.push_back(made->link.get());
  return links;
}

Status LinkSet::firstWith(Code code) const {
  for (const auto& made : made_)
    if (Status health = made->link->health(); isLive(*made) && health.code() == code)
      return health.withContext("link " + made->link->traits().transport);
  return Status::ok();
}

Link* LinkSet::firstForWords() const {
  for (const auto& made : made_)
    if (isLive(*made) && made->link->traits().carriesWords()) return made->link.get();
  return nullptr;
}

Status LinkSet::fail(Link& link, const Status& why) {
  const auto found = std::find_if(made_.begin(), made_.end(),
                                  [&](const auto& made) { return made->link.get() == &link; });
  if (found == made_.end() || !isLive(**found)) return Status::ok();
  (*found)->why = std::string(why.message());
  (*found)->isGivenUp.store(true, std::memory_order_release);
  Link* const next = firstForWords();
  if (next == nullptr) return why;
  words_.store(next, std::memory_order_release);
  return Status::ok();
}

void LinkSet::close(Code code) {
  for (const auto& made : made_) made->link->close(code);
}

void LinkSet::abandon() {
  for (const auto& made : made_) (void)made->link.release();
}

void LinkSet::refuse(std::string transport, std::string reason, const LinkAbilities& abilities) {
  refused_.push_back({std::move(transport), std::move(reason)});
  refusedAbilities_.push_back(abilities);
}

bool LinkSet::isRefused(const std::string& transport) const {
  return std::any_of(refused_.begin(), refused_.end(),
                     [&](const auto& refusal) { return refusal.transport == transport; });
}

void LinkSet::add(std::unique_ptr<Link> link) {
  auto made = std::make_unique<Made>();
  hasRails_ |= link->traits().rails != nullptr;
  made->link = std::move(link);
  made_.push_back(std::move(made));
}

void LinkSet::drop(const std::string& name) {
  const auto found = std::find_if(made_.begin(), made_.end(), [&](const auto& made) {
    return made->link->traits().transport == name;
  });
  if (found == made_.end()) return;
  (*found)->link->close(Code::kClosed);
  made_.erase(found);
}

}  // namespace peerlane
