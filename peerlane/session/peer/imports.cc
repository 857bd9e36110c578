// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/imports.h"

#include <string>
#include <utility>

#include "peerlane/core/limits.h"
#include "peerlane/session/wire/grant_message.h"

namespace peerlane {

const std::shared_ptr<ImportSlot>& ImportSlot::made(std::shared_ptr<ImportSlot>& slot) {
  const MutexLock lock(mutex_);
  if (!slot) {
    slot = std::make_shared<ImportSlot>();
    slot->bytes = bytes;
    slot->inChunks = inChunks;
  }
  return slot;
}

std::string whyNotGranted(const RegionReference& reference, const ImportSlot& slot,
                          const LinkSet& links) {
  if (reference.device.kind == DeviceKind::kHost ||
      slot.state.load(std::memory_order_acquire) != ImportSlot::State::kFailed ||
      slot.failure.code() != Code::kNotSupported)
    return {};
  const bool isByAgent = links.route(reference, {}).by == LinkRoute::By::kAgent;
  return isByAgent ? std::string(slot.failure.message()) : std::string();
}

Imports::Imports(PeerEnvironment& env, LinkSet& links)
    : env_(env),
      links_(links),
      chunks_(env, [this](const ImportedRegion& region) { settleWhole(&region); }) {}

void Imports::open() {
  cache_ = std::make_unique<ImportCache>(
      [this, weak = env_.peer](std::unique_ptr<ImportedRegion> region) {
        const auto kept = weak.lock();
        if (!kept) return;                 // link and imports went with the peer
        if (env_.status.forked()) return;  // locks may be held for ever
        std::shared_ptr<ImportedRegion> shared = std::move(region);
        shared->slot().release([this, kept, shared] { drop(shared); });
      });
}

bool Imports::reaches(const std::shared_ptr<ImportedRegion>& region, uint64_t offset,
                      uint64_t bytes) {
  const auto& chunks = region->memory.chunks;
  if (!chunks || chunks->covers(offset, bytes)) return true;
  requestChunks(region, chunks->ask(offset, bytes));
  return false;
}

void Imports::request(const RegionReference& reference, const std::shared_ptr<ImportSlot>& slot) {
  auto expected = ImportSlot::State::kNone;
  if (!slot->state.compare_exchange_strong(expected, ImportSlot::State::kPending)) return;
  if (const Link* const nearest = links_.nearest(reference, {})) (void)slot->isFor(*nearest);
  // A handle may outlive the context: then nobody runs what is posted.
  if (env_.status.over()) return done(slot, env_.status.failure());
  {
    const MutexLock lock(newMutex_);
    new_.push_back({reference, slot});
    if (new_.size() > 1) return;
  }
  env_.post([this] { startNew(); });
}

void Imports::startNew() {
  std::vector<QueuedRequest> all;
  {
    const MutexLock lock(newMutex_);
    all.swap(new_);
  }
  // A silent peer may answer later. Until then the slot is pending, because a failed one stays so.
  const Status failure = env_.status.failure();
  const bool isRefused = !failure.isOk() && failure.code() != Code::kPeerSilent;
  const ControlConnection::Gathering requests(*env_.connection);
  for (const QueuedRequest& each : all)
    if (isRefused)
      done(each.slot, failure);
    else
      start(each.reference, each.slot);
}

// Few are under way at once, so that their answers, and the descriptors beside them, do not pile up
// at the owner.
void Imports::start(const RegionReference& reference, const std::shared_ptr<ImportSlot>& slot) {
  const Link* const wanted = slot->wanted();
  if (auto known = cache_->find(reference.allocation, reference.generation, wanted)) {
    if (known->gate.isRevoked()) return done(slot, known->whyClosed());
    return done(slot, known);
  }
  if (const auto same = requests_.find(keyOf(reference, wanted)); same != requests_.end()) {
    asked_.at(same->second).slots.push_back(slot);
    return;
  }
  if (asked_.size() >= limits::kImportsUnderWay) {
    queued_.push_back({reference, slot});
    return;
  }
  ask({reference, wanted, linksFor(reference, wanted), {slot}});
}

// As far as the reference says what the memory is. The wanted one comes before those that are as
// good.
std::vector<std::string> Imports::linksFor(const RegionReference& reference,
                                           const Link* wanted) const {
  std::vector<std::string> names;
  std::optional<size_t> family;  // where the first that is as good stands
  for (const Link* link : links_.live()) {
    const LinkTraits& traits = link->traits();
    if (reference.kind && !traits.abilities.can(*reference.kind, Ability::kAttaches)) continue;
    if (!family && wanted != nullptr && traits.rails == wanted->traits().rails)
      family = names.size();
    names.push_back(traits.transport);
  }
  if (!family) return names;
  const auto found = std::find(names.begin(), names.end(), wanted->traits().transport);
  if (found != names.end())
    std::rotate(names.begin() + static_cast<ptrdiff_t>(*family), found, found + 1);
  return names;
}

void Imports::ask(Asked asked) {
  const auto refuse = [&](const Status& why) {
    for (const auto& slot : asked.slots) done(slot, why);
  };
  if (asked.links.empty()) {
    std::string why = links_.whyStaged(asked.reference, {});
    if (why.empty()) why = "no link of this side is left that reaches it";
    if (asked.reference.device.kind != DeviceKind::kHost && env_.around.devices.empty())
      why += "; name a GPU in ContextOptions::devices";
    return refuse(Status(Code::kNotSupported, "the region cannot be imported: " + why));
  }
  const uint64_t request = env_.nextRequest();
  const RegionReference& reference = asked.reference;
  const Status sent = env_.connection->send(
      control::ImportRequest{request, reference.allocation, reference.generation,
                             static_cast<uint8_t>(reference.access), asked.links});
  if (!sent.isOk()) return refuse(sent);
  requests_[keyOf(asked.reference, asked.wanted)] = request;
  asked_[request] = std::move(asked);
}

void Imports::done(const std::shared_ptr<ImportSlot>& slot,
                   Result<std::shared_ptr<ImportedRegion>> result) {
  // The reference came through the user's hands: a wrong one is no fault of the peer.
  if (result.isOk() && slot->bytes != 0 && (*result)->memory.grant.bytes != slot->bytes)
    result = Status(Code::kInvalidArgument,
                    "the reference names a region of " + std::to_string(slot->bytes) +
                        " bytes; the owner's has " + std::to_string((*result)->memory.grant.bytes));
  if (result.isOk() && !slot->inChunks && !reaches(*result, 0, (*result)->memory.grant.bytes)) {
    const ImportedRegion* const region = result->get();
    WholeImport& import = whole_[region];
    import.region = std::move(*result);
    import.slots.push_back(slot);
    return settleWhole(region);  // a chunk may have failed earlier
  }
  if (result.isOk()) {
    slot->region = std::move(*result);
    slot->state.store(ImportSlot::State::kReady, std::memory_order_release);
  } else {
    slot->failure = result.status();
    slot->state.store(ImportSlot::State::kFailed, std::memory_order_release);
  }
  env_.around.progress.notifyWaiters();
}

void Imports::settleWhole(const ImportedRegion* region) {
  const auto found = whole_.find(region);
  if (found == whole_.end()) return;
  const ChunkMap& chunks = *region->memory.chunks;
  const Status failed =
      env_.status.over() ? env_.status.failure() : chunks.failure(0, region->memory.grant.bytes);
  if (failed.isOk() && !chunks.complete()) return;
  const WholeImport import = std::move(found->second);
  whole_.erase(found);
  for (const auto& slot : import.slots)
    if (failed.isOk())
      done(slot, import.region);
    else
      done(slot, failed);
}

Status Imports::handle(control::ImportReply& message) {
  auto found = asked_.find(message.request);
  if (found == asked_.end())
    return Status(Code::kCorrupt, "an answer to import " + std::to_string(message.request) +
                                      ", which nobody asked");
  Asked asked = std::move(found->second);
  asked_.erase(found);
  requests_.erase(keyOf(asked.reference, asked.wanted));
  PEERLANE_RETURN_IF_ERROR(answered(std::move(asked), message));
  // After that, because a queued request may be for the region that has just come.
  while (!queued_.empty() && asked_.size() < limits::kImportsUnderWay) {
    const QueuedRequest queued = std::move(queued_.front());
    queued_.pop_front();
    start(queued.reference, queued.slot);
  }
  return Status::ok();
}

Status Imports::release(const RegionReference& reference) {
  return env_.connection->send(control::Release{reference.allocation, reference.generation});
}

// A grant that this side's link cannot use is given back, and the region asked for over the others.
Status Imports::answered(Asked asked, const control::ImportReply& message) {
  const auto finish = [&](const Result<std::shared_ptr<ImportedRegion>>& result) {
    for (const auto& slot : asked.slots) done(slot, result);
  };
  if (message.code != Code::kOk) {
    finish(Status(message.code, "the owner refused: " + message.reason));
    return Status::ok();
  }
  auto grant = grantIn(message, *env_.connection);
  if (grant.isOk() && (grant->region.allocation != asked.reference.allocation ||
                       grant->region.generation != asked.reference.generation))
    grant = Status(Code::kCorrupt, "an import was answered with another region");
  if (grant.isOk() && std::erase(asked.links, message.link) == 0)
    grant = Status(Code::kCorrupt,
                   "an import was answered over link '" + message.link + "', which was not asked");
  if (!grant.isOk()) {
    finish(grant.status());
    const Code code = grant.status().code();
    if (code != Code::kUnavailable && code != Code::kNotSupported) return grant.status();
    // This side had no room for its descriptor, or does not know the kind of memory. The owner has
    // lent it, and did nothing wrong.
    return release(asked.reference);
  }
  auto memory = links_.attach(message.link, std::move(*grant));
  if (memory.isOk()) {
    finish(cache_->insert(std::move(*memory)));
    return Status::ok();
  }
  PEERLANE_RETURN_IF_ERROR(release(asked.reference));
  std::erase_if(asked.links, [this](const std::string& name) {
    const Link* const link = links_.named(name);
    return link == nullptr || !links_.isLive(*link);
  });
  if (memory.status().code() == Code::kNotSupported && !asked.links.empty())
    ask(std::move(asked));
  else
    finish(memory.status());
  return Status::ok();
}

void Imports::fail() {
  const Status failure = env_.status.failure();
  if (cache_)
    for (const auto& region : cache_->all()) region->gate.close();
  requests_.clear();
  for (const auto& [request, asked] : std::exchange(asked_, {}))
    for (const auto& slot : asked.slots) done(slot, failure);
  for (const QueuedRequest& queued : std::exchange(queued_, {})) done(queued.slot, failure);
  chunks_.fail();
  std::vector<const ImportedRegion*> whole;
  for (const auto& [region, import] : whole_) whole.push_back(region);
  for (const ImportedRegion* region : whole) settleWhole(region);
}

// The last user of an imported region is gone, and no device reaches it any more. Any thread.
void Imports::drop(std::shared_ptr<ImportedRegion> region) {
  if (env_.status.over()) {
    const RegionGrant grant = region->memory.grant;
    links_.of(region->memory).detach(region->memory);
    return cache_->gone(grant);
  }
  {
    const MutexLock lock(newMutex_);
    dropped_.push_back(std::move(region));
    if (dropped_.size() > 1) return;
  }
  env_.post([this] { forgetDropped(); });
}

void Imports::forgetDropped() {
  std::vector<std::shared_ptr<ImportedRegion>> all;
  {
    const MutexLock lock(newMutex_);
    all.swap(dropped_);
  }
  const ControlConnection::Gathering releases(*env_.connection);
  for (const auto& region : all) forget(*region);
}

void Imports::forget(ImportedRegion& region) {
  const RegionGrant grant = region.memory.grant;
  links_.of(region.memory).detach(region.memory);
  cache_->gone(grant);
  const PeerState state = env_.status.state();
  if (state == PeerState::kReady || state == PeerState::kSilent)
    (void)env_.connection->sendIfOpen(control::Release{grant.allocation, grant.generation});
}

}  // namespace peerlane
