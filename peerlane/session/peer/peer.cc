// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer.h"

#include <algorithm>

#include "peerlane/core/deadline.h"
#include "peerlane/os/cuda.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

// Why transfers with a region that is not imported are staged; empty: they are not, or there are
// none any more.
std::string whyStaged(const RegionReference& region, const std::shared_ptr<ImportSlot>& slot,
                      const PeerCore& peer) {
  const Code failed = peer.failureCode();
  if (failed != Code::kOk && failed != Code::kPeerSilent) return "";
  std::string why = peer.links().whyStaged(region, {});
  return why.empty() ? whyNotGranted(region, *ImportSlot::current(slot), peer.links()) : why;
}

}  // namespace

std::string Route::toString() const {
  std::string text = "link " + link + "\n";
  text += "  memory that peers can map: " + sharedEngine + "\n";
  text += "  other memory:              " + privateEngine + "\n";
  if (!deviceEngine.empty())
    text += "  memory of GPUs:            " + deviceEngine + " (link " + deviceLink + ")\n";
  if (!hostCopies.empty()) text += "  copied by this host:       " + hostCopies + "\n";
  text += "  what cannot go straight:   " + staged + "\n";
  text += "  counters written by:       " + wordsBy + "\n";
  if (!protection.empty()) {
    text += "  data between the hosts:    " + protection;
    if (sockets == 1) text += ", over one socket";
    if (sockets > 1) text += ", over up to " + std::to_string(sockets) + " sockets";
    text += "\n";
  }
  if (!path.empty()) text += "  devices:                   " + path + "\n";
  for (const std::string& one : rails) text += "  by distance:               " + one + "\n";
  for (const std::string& one : registrations) text += "  registration:              " + one + "\n";
  text += "  region rights enforced by: " + rightsEnforcedBy;
  if (!readOnlyEnforcedBy.empty() && readOnlyEnforcedBy != rightsEnforcedBy)
    text += " (" + readOnlyEnforcedBy + " of memory that Context::allocate made read-only)";
  text += "\n";
  for (const MemoryRoute& kind : kinds)
    if (kind.link != link && kind.link != deviceLink)
      text += "  " + kind.memory + ": link " + kind.link + ", by " + kind.by + "\n";
  for (const std::string& device : devices) text += "  " + device + "\n";
  for (const std::string& why : refused) text += "  not taken: " + why + "\n";
  return text;
}

Status RemoteRegion::prepare(std::chrono::nanoseconds timeout) const {
  if (!slot_)
    return Status(Code::kInvalidArgument,
                  "an empty RemoteRegion; take one from Peer::importRegion");
  if (peer_->forked()) return peer_->usable();
  // It cannot be imported, and transfers do without.
  if (!peer_->links().whyStaged(reference_, {}).empty()) return peer_->failure();
  const std::shared_ptr<ImportSlot> slot = ImportSlot::current(slot_);
  peer_->imports().request(reference_, slot);
  const auto done = [&slot] {
    const auto state = slot->state.load(std::memory_order_acquire);
    return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed;
  };
  const auto deadline = Progress::deadlineIn(timeout);
  const auto words = [this] {
    return "region " + std::to_string(reference_.allocation) + " (" +
           std::to_string(reference_.bytes) + " bytes) of " + peer_->name() + " to be imported";
  };
  const auto waitFor = [&](const auto& there) -> Status {
    const auto over = [&] { return there() || peer_->failureCode() != Code::kOk; };
    while (!there()) {
      PEERLANE_RETURN_IF_ERROR(peer_->failure());  // OK for one that is heard again
      PEERLANE_RETURN_IF_ERROR(peer_->progress().waitAsleep(over, deadline, words));
    }
    return Status::ok();
  };
  PEERLANE_RETURN_IF_ERROR(waitFor(done));
  if (slot->state.load(std::memory_order_acquire) == ImportSlot::State::kFailed)
    return whyNotGranted(reference_, *slot, peer_->links()).empty() ? slot->failure : Status::ok();
  const std::shared_ptr<ImportedRegion>& region = slot->region;
  const uint64_t all = region->memory.grant.bytes;
  if (peer_->imports().reaches(region, 0, all)) return Status::ok();
  const ChunkMap& chunks = *region->memory.chunks;
  PEERLANE_RETURN_IF_ERROR(
      waitFor([&] { return chunks.complete() || !chunks.failure(0, all).isOk(); }));
  return chunks.complete() ? Status::ok() : chunks.failure(0, all);
}

// Nothing for one that cannot be imported: prepare() says so.
void RemoteRegion::request() const {
  if (!slot_ || peer_->forked() || !peer_->links().whyStaged(reference_, {}).empty()) return;
  peer_->imports().request(reference_, ImportSlot::current(slot_));
}

Status prepareAll(std::span<const RemoteRegion> regions, std::chrono::nanoseconds timeout) {
  if (regions.empty()) return Status::ok();
  const auto deadline = Progress::deadlineIn(timeout);
  for (const RemoteRegion& region : regions) region.request();
  // The answer that comes last: to be woken for each would take longer than the imports.
  (void)regions.back().prepare(timeLeft(deadline));
  Status first;
  for (const RemoteRegion& region : regions) {
    const Status prepared = region.prepare(timeLeft(deadline));
    if (first.isOk()) first = prepared;
  }
  return first;
}

std::string RemoteRegion::description() const {
  const std::shared_ptr<ImportedRegion> region = imported();
  if (!region) {
    const std::string why = slot_ ? whyStaged(reference_, slot_, *peer_) : "";
    return why.empty() ? "not imported yet" : "staged through host memory, because " + why;
  }
  std::string text = region->memory.engine;
  if (const auto& chunks = region->memory.chunks)
    text += ", " + std::to_string(chunks->mapped()) + " of " + std::to_string(chunks->count()) +
            " chunks mapped";
  return text;
}

std::string RemoteRegion::rightsEnforcedBy() const {
  const std::shared_ptr<ImportedRegion> region = imported();
  return region ? enforcerName(region->memory.enforcer) : "";
}

std::string RemoteRegion::engine() const {
  const std::shared_ptr<ImportedRegion> region = imported();
  if (region) return region->memory.engine;
  return slot_ && !whyStaged(reference_, slot_, *peer_).empty() ? "staged" : "";
}

std::shared_ptr<ImportedRegion> RemoteRegion::imported() const {
  if (!slot_) return nullptr;
  // Taken once: another link may take over between two looks.
  const std::shared_ptr<ImportSlot> slot = ImportSlot::current(slot_);
  const bool isThere = slot->state.load(std::memory_order_acquire) == ImportSlot::State::kReady;
  return isThere ? slot->region : nullptr;
}

RemoteRegion RemoteRegion::current() const {
  RemoteRegion region = *this;
  if (slot_) region.slot_ = ImportSlot::current(slot_);
  return region;
}

namespace {

LocalMemory localOf(const MemoryKind& kind, const Device& place = {}) {
  LocalMemory local;
  (isCuda(kind) ? local.ofDevice : local.ofHost) = kind;
  local.place = place;
  return local;
}

}  // namespace

RemoteRegion RemoteRegion::nearTo(const RegionRecord& local) const {
  RemoteRegion region = *this;
  if (!slot_) return region;
  const LinkSet& links = peer_->links();
  const Link* const nearest =
      links.nearest(reference_, localOf(local.memory.kind, local.memory.device));
  region.slot_ = ImportSlot::current(slot_, nearest);
  return region;
}

namespace {

Status emptyPeer() {
  return Status(Code::kInvalidArgument, "an empty Peer; take one from Context::connect or accept");
}

}  // namespace

uint64_t Peer::number() const {
  return core_ ? core_->number() : 0;
}
std::string Peer::contextId() const {
  return core_ ? core_->context().toText() : std::string();
}
std::optional<std::chrono::nanoseconds> Peer::silentFor() const {
  return core_ && !core_->forked() ? core_->silentFor() : std::nullopt;
}

std::string Peer::state() const {
  return core_ ? peerStateName(core_->told()) : "";
}
Status Peer::status() const {
  return core_ ? core_->usable() : emptyPeer();
}
int Peer::processId() const {
  return core_ ? core_->processId() : 0;
}
void Peer::close() const {
  if (core_ && !core_->forked()) core_->close();
}

namespace {

std::vector<std::string> devicesOf(const PeerCore& core) {
  std::vector<std::string> texts;
  for (const auto& executor : core.devices()) texts.push_back(executor->explain());
  return texts;
}

}  // namespace

namespace {

MemoryRoute memoryRoute(const LinkSet& links, const MemoryKind& remote, const LocalMemory& local) {
  MemoryRoute route;
  route.memory = remote.name();
  const LinkRoute found = links.route(remote, local);
  if (found.link != nullptr) {
    route.link = found.link->traits().transport;
    route.by = found.by == LinkRoute::By::kMapping ? "mapping" : "agent";
    route.nearness = LinkSet::nearnessOf(*found.link, local);
  }
  for (const control::Refusal& refusal : links.whyNot(remote, local))
    route.refused.push_back(refusal.transport + ": " + refusal.reason);
  return route;
}

std::vector<MemoryRoute> memoryRoutes(const PeerCore& core) {
  std::vector<MemoryRoute> routes;
  for (const MemoryKind& remote : knownKinds())
    if (core.links().route(remote, localOf(MemoryKind::kPrivate)).link != nullptr)
      routes.push_back(memoryRoute(core.links(), remote, localOf(MemoryKind::kPrivate)));
  return routes;
}

// "verbs.2 over mlx5_1:1 at ... to ..., writes in order: numa-node from node1, pcie-switch/3 from
// cuda1"
std::vector<std::string> railsOf(const LinkSet& links) {
  std::vector<std::string> texts;
  for (const Link* link : links.live()) {
    const LinkTraits& traits = link->traits();
    if (!traits.rails) continue;
    const LinkRails::Rail& rail = traits.rails->rails[traits.rail];
    std::string text = traits.transport + " over " + traits.path + ": " + rail.fromHost.reason;
    for (const auto& [device, distance] : rail.fromDevices) text += ", " + distance.reason;
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string enginesOf(const Link& link) {
  const LinkTraits& traits = link.traits();
  return traits.abilities.canAny(MemoryPlace::kCuda, Ability::kMaps) ? kCudaEngine
                                                                     : traits.agentEngine;
}

}  // namespace

MemoryRoute Peer::routeOf(const RemoteRegion& remote, const Region& local) const {
  if (!core_ || !remote || !local) return {};
  const MemoryKind plain{.place = remote.reference().device.kind == DeviceKind::kHost
                                      ? MemoryPlace::kHost
                                      : MemoryPlace::kCuda};
  const LocalMemory place = localOf(local.record()->memory.kind, local.record()->memory.device);
  const LinkSet& links = core_->links();
  const MemoryKind kind = remote.reference().kind.value_or(plain);
  MemoryRoute route = memoryRoute(links, kind, place);
  const LinkRoute found = links.route(kind, place);
  if (found.by != LinkRoute::By::kAgent) return route;
  const RemoteRegion near = remote.nearTo(*local.record());
  const ImportSlot& slot = *ImportSlot::current(near.slot());
  LinkRoute taken = found;
  if (slot.state.load(std::memory_order_acquire) == ImportSlot::State::kReady)
    taken = links.routeOver(slot.region->memory, place);
  if (taken.by == LinkRoute::By::kAgent && taken.link != found.link) {
    const std::string& name = taken.link->traits().transport;
    std::erase_if(route.refused,
                  [&](const std::string& each) { return each.starts_with(name + ":"); });
    route.refused.insert(route.refused.begin(), route.link + ": the peer granted it over " + name);
    route.link = name;
    route.nearness = LinkSet::nearnessOf(*taken.link, place);
  }
  std::string why = whyNotGranted(near.reference(), slot, links);
  if (why.empty())
    why = whyNotTaken(*(taken.link == nullptr ? found.link : taken.link), *local.record());
  if (why.empty()) return route;
  route.refused.insert(route.refused.begin(), route.link + ": " + why);
  route.link = route.by = "";
  return route;
}

Route Peer::route() const {
  if (!core_) return {};
  const LinkTraits& traits = core_->link().traits();
  const LinkSet& links = core_->links();
  Route route;
  route.link = traits.transport;
  const bool maps = traits.abilities.can(MemoryKind::kShared, Ability::kMaps);
  route.sharedEngine = maps ? "mapped" : traits.agentEngine;
  route.privateEngine = traits.agentEngine.empty() ? "mapped" : traits.agentEngine;
  const LocalMemory device{.ofDevice = MemoryKind::kCudaDescriptor};
  const LinkRoute toDevices = links.route(MemoryKind::kCudaDescriptor, device);
  if (toDevices.link != nullptr) {
    route.deviceLink = toDevices.link->traits().transport;
    route.deviceEngine = enginesOf(*toDevices.link);
    route.devices = devicesOf(*core_);
    for (const std::string& why : toDevices.link->traits().refused)
      route.refused.push_back("engine " + why);
  }
  route.kinds = memoryRoutes(*core_);
  const Config& config = core_->config();
  route.staged = config.strict ? "refused (PEERLANE_STRICT)"
                               : "staged through host memory, at most " +
                                     std::to_string(config.stagingBytes) + " bytes of it";
  const Enforcer enforcer =
      traits.abilities.enforcer(maps ? MemoryKind::kShared : MemoryKind::kPrivate);
  // Else the peer copies.
  if (maps || enforcer == Enforcer::kInitiator) route.hostCopies = core_->copier().explain();
  route.wordsBy = traits.mapsWords() ? "mapped" : "agent";
  route.rightsEnforcedBy = enforcerName(enforcer);
  route.protection = traits.protection;
  route.sockets = traits.sockets;
  route.path = traits.path;
  route.rails = railsOf(links);
  route.registrations = traits.registrations;
  route.readOnlyEnforcedBy = enforcerName(traits.readOnlyEnforcer.value_or(enforcer));
  for (const auto& [name, why] : links.whyNot(MemoryKind::kPrivate, localOf(MemoryKind::kPrivate)))
    if (const Link* const made = links.named(name); made == nullptr || !links.isLive(*made))
      route.refused.push_back("link " + name + ": " + why);
  for (const std::string& why : traits.refused) route.refused.push_back("engine " + why);
  return route;
}

Result<RemoteRegion> Peer::importRegion(std::span<const std::byte> reference) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_ASSIGN(const RegionReference decoded, RegionReference::decode(reference));
  const auto own = core_->context().bytes();
  const auto owner = std::as_bytes(std::span(decoded.owner));
  if (!std::equal(owner.begin(), owner.end(), own.begin()))
    return Status(Code::kInvalidArgument,
                  "the region belongs to another context than this peer (" + contextId() + ")");
  RemoteRegion region;
  region.reference_ = decoded;
  region.peer_ = core_;
  region.slot_ = std::make_shared<ImportSlot>();
  region.slot_->bytes = decoded.bytes;
  region.slot_->inChunks = true;
  return region;
}

namespace {

Status checkChannel(uint32_t channel) {
  if (MessageChannels::isProgram(channel)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "message channel " + std::to_string(channel) + "; need a number below 2^31");
}

}  // namespace

Status Peer::sendMessage(uint32_t channel, std::span<const std::byte> content,
                         std::chrono::nanoseconds timeout) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    Status sent = core_->messages().send(channel, {content.begin(), content.end()});
    if (sent.code() != Code::kTryAgain || timeout.count() <= 0) return sent;
    const auto hasRoom = [&] {
      return core_->messages().channels().hasRoom(channel) || core_->failureCode() != Code::kOk;
    };
    const auto words = [&] {
      return "room at " + core_->name() + ": " + std::string(sent.message());
    };
    PEERLANE_RETURN_IF_ERROR(core_->progress().waitAsleep(hasRoom, deadline, words));
  }
}

Result<std::vector<std::byte>> Peer::receiveMessage(uint32_t channel,
                                                    std::chrono::nanoseconds timeout) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  MessageChannels& messages = core_->messages().channels();
  const auto isOver = [&] {
    const Code code = core_->failureCode();
    return code == Code::kPeerSilent || (code != Code::kOk && core_->messages().ended());
  };
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    // The end is looked at before the queue: it counts only once all that came before it was taken.
    const Status ended = isOver() ? core_->failure() : Status::ok();
    std::vector<std::byte> content;
    if (messages.pop(channel, content)) {
      core_->messages().sendTaken();
      return content;
    }
    PEERLANE_RETURN_IF_ERROR(ended);
    const auto ready = [&] { return messages.has(channel) || isOver(); };
    const auto words = [&] {
      return "a message on channel " + std::to_string(channel) + " of " + core_->name();
    };
    PEERLANE_RETURN_IF_ERROR(core_->progress().wait(ready, deadline, words));
  }
}

Result<int> Peer::messageFd(uint32_t channel) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  return core_->messages().channels().fd(channel);
}

}  // namespace peerlane
