// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's half of importing and revoking regions (chunks of them: peer_chunks.cc). An import is
// asked for once over the control connection; the owner notes who holds one. To take a region back
// the owner asks every holder, who lets running transfers end first; only a confirmed or
// proven-dead holder sets the memory free.
#include <algorithm>

#include "peerlane/core/log.h"
#include "peerlane/memory/cuda/cuda_pools.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/session/wire/grant_message.h"

namespace peerlane {

void PeerCore::requestImport(const RegionReference& reference,
                             const std::shared_ptr<ImportSlot>& slot) {
  auto expected = ImportSlot::State::kNone;
  if (!slot->state.compare_exchange_strong(expected, ImportSlot::State::kPending)) return;
  // A handle may outlive the context: then nobody runs what is posted.
  if (over()) return importDone(slot, failure());
  progress().post([self = shared_from_this(), reference, slot] {
    // A silent peer may answer later. Until then the slot is pending, because a failed one stays
    // so.
    if (Status failure = self->failure(); !failure.isOk() && failure.code() != Code::kPeerSilent)
      return self->importDone(slot, failure);
    self->startImport(reference, slot);
  });
}

// Few are under way at once, so that their answers, and the descriptors beside them, do not pile up
// at the owner.
void PeerCore::startImport(const RegionReference& reference,
                           const std::shared_ptr<ImportSlot>& slot) {
  if (auto known = imported_->find(reference.allocation, reference.generation))
    return importDone(slot, known);
  for (auto& [request, import] : imports_) {
    if (import.reference.allocation != reference.allocation ||
        import.reference.generation != reference.generation)
      continue;
    import.slots.push_back(slot);
    return;
  }
  if (imports_.size() >= limits::kImportsUnderWay) {
    importWishes_.push_back({reference, slot});
    return;
  }
  const uint64_t request = env_.nextRequest();
  imports_[request] = {reference, {slot}};
  const Status sent = env_.connection->send(control::ImportRequest{
      request, reference.allocation, reference.generation, static_cast<uint8_t>(reference.access),
      static_cast<uint8_t>(kLastMemoryKind)});
  if (!sent.isOk()) {
    imports_.erase(request);
    importDone(slot, sent);
  }
}

void PeerCore::importDone(const std::shared_ptr<ImportSlot>& slot,
                          Result<std::shared_ptr<ImportedRegion>> result) {
  // The reference came through the user's hands: a wrong one is no fault of the peer.
  if (result.isOk() && slot->bytes != 0 && (*result)->memory.grant.bytes != slot->bytes)
    result = Status(Code::kInvalidArgument,
                    "the reference names a region of " + std::to_string(slot->bytes) +
                        " bytes; the owner's has " + std::to_string((*result)->memory.grant.bytes));
  if (result.isOk() && !slot->inChunks && !reaches(*result, 0, (*result)->memory.grant.bytes)) {
    wholeImports_.push_back({slot, std::move(*result)});
    return settleWholeImports();  // a chunk may have failed earlier
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

RegionGrant grantFor(const RegionRecord& record) {
  RegionGrant region;
  region.allocation = record.allocation;
  region.generation = record.generation;
  region.base = reinterpret_cast<uint64_t>(record.base);
  region.bytes = record.bytes;
  region.fdOffset = record.memory.fdOffset;
  region.kind = record.memory.kind;
  region.access = record.access;
  region.device = record.memory.device;
  region.backingBytes = record.memory.backingBytes;
  region.identity = record.memory.identity;
  region.handle = record.memory.handle;
  region.isKept = record.memory.isKept;
  return region;
}

Status PeerCore::sendGrant(uint64_t request, const RegionRecord& record, uint8_t mostKind) {
  RegionGrant region = grantFor(record);
  if (static_cast<uint8_t>(region.kind) >
      std::max(mostKind, static_cast<uint8_t>(MemoryKind::kCudaPrivate)))
    return Status(Code::kNotSupported,
                  "the region is memory of a kind that came with a later version of the library");
  if (isCuda(region.kind) && links_.device() == nullptr)
    return Status(Code::kNotSupported,
                  region.device.toString() + " memory, and no link between the two reaches GPUs");
  Link& link = isCuda(region.kind) ? *links_.device() : links_.host();
  const Fd& backing = record.memory.pool ? record.memory.pool->fd : record.memory.backing;
  auto granted = link.grant(std::move(region), backing);
  if (!granted.isOk() && !record.memory.whyNot.empty())
    return Status(granted.status().code(),
                  std::string(granted.status().message()) + ": " + record.memory.whyNot);
  PEERLANE_ASSIGN(Grant grant, std::move(granted));
  std::vector<Fd> fds;
  const control::ImportReply reply = replyWith(request, grant);
  if (grant.fd) fds.push_back(std::move(grant.fd));
  return env_.connection->send(reply, std::move(fds));
}

Status PeerCore::handle(control::ImportRequest& message) {
  if (!links_.isMade()) return Status(Code::kCorrupt, "an import before the link is made");
  auto record = env_.around.regions.find(message.allocation, message.generation);
  Status refused = record.status();
  if (record.isOk() && (*record)->access == Access::kLocal)
    refused = Status(Code::kPermissionDenied, "region " + std::to_string(message.allocation) +
                                                  " is registered for local use only");
  if (refused.isOk()) {
    env_.around.regions.addImporter(message.allocation, env_.number);
    refused = sendGrant(message.request, **record, message.mostKind);
    if (refused.isOk()) return Status::ok();
    env_.around.regions.removeImporter(message.allocation, env_.number);
  }
  control::ImportReply reply;
  reply.request = message.request;
  reply.code = refused.code();
  reply.reason = std::string(refused.message()).substr(0, control::kMaxTextBytes);
  return env_.connection->send(reply);
}

Status PeerCore::handle(control::ImportReply& message) {
  if (message.request == 0) {
    PEERLANE_RETURN_IF_ERROR(slabs_.adopt(message));
    maybeReady();
    return Status::ok();
  }
  auto found = imports_.find(message.request);
  if (found == imports_.end())
    return Status(Code::kCorrupt, "an answer to import " + std::to_string(message.request) +
                                      ", which nobody asked");
  Import import = std::move(found->second);
  imports_.erase(found);
  PEERLANE_RETURN_IF_ERROR(importAnswered(import, message));
  // Behind it: what is wished for may be the region that has just come.
  while (!importWishes_.empty() && imports_.size() < limits::kImportsUnderWay) {
    const ImportWish wish = std::move(importWishes_.front());
    importWishes_.pop_front();
    startImport(wish.reference, wish.slot);
  }
  return Status::ok();
}

Status PeerCore::importAnswered(const Import& import, const control::ImportReply& message) {
  Result<std::shared_ptr<ImportedRegion>> result = Status(Code::kInternal, "import");
  if (message.code != Code::kOk) {
    result = Status(message.code, "the owner refused: " + message.reason);
  } else {
    auto grant = grantIn(message, *env_.connection);
    if (grant.isOk() && (grant->region.allocation != import.reference.allocation ||
                         grant->region.generation != import.reference.generation))
      grant = Status(Code::kCorrupt, "an import was answered with another region");
    if (!grant.isOk()) {
      for (const auto& slot : import.slots) importDone(slot, grant.status());
      if (grant.status().code() != Code::kUnavailable) return grant.status();
      // This side had no room for its descriptor. The owner has lent it, and did nothing wrong.
      return env_.connection->send(
          control::Release{import.reference.allocation, import.reference.generation});
    }
    auto memory = links_.attach(std::move(*grant));
    if (memory.isOk()) {
      result = imported_->insert(std::move(*memory));
    } else {
      result = memory.status();
      (void)env_.connection->send(
          control::Release{import.reference.allocation, import.reference.generation});
    }
  }
  for (const auto& slot : import.slots) importDone(slot, result);
  return Status::ok();
}

// The last user of an imported region is gone, and no device reaches it any more. Any thread.
void PeerCore::dropImported(std::shared_ptr<ImportedRegion> region) {
  if (over()) {
    linkOf(region->memory).detach(region->memory);
    return imported_->gone(region->memory.grant);
  }
  progress().post(
      [self = shared_from_this(), region = std::move(region)] { self->forgetImported(*region); });
}

void PeerCore::forgetImported(ImportedRegion& region) {
  const RegionGrant grant = region.memory.grant;
  linkOf(region.memory).detach(region.memory);
  imported_->gone(grant);
  if (state() == PeerState::kReady || state() == PeerState::kSilent)
    (void)env_.connection->sendIfOpen(control::Release{grant.allocation, grant.generation});
}

Status PeerCore::handle(control::Release& message) {
  env_.around.regions.removeImporter(message.allocation, env_.number);
  return Status::ok();
}

void PeerCore::revoke(uint64_t allocation, uint64_t generation, bool freed,
                      std::function<void()> done) {
  if (!events_.gone) {  // forgotten: it has left
    env_.around.regions.forgetImporter(allocation, env_.number);
    return done();
  }
  const uint64_t request = env_.nextRequest();
  // It may outlive this peer.
  revocations_[request] = [&regions = env_.around.regions, number = env_.number, allocation,
                           done = std::move(done)] {
    regions.forgetImporter(allocation, number);
    done();
  };
  // Its goodbye will confirm, or its end: a connection that ended proves nothing about a process
  // that writes by itself.
  if (over()) return;
  revocationWishes_.push_back({request, allocation, generation, freed});
  askForRevocations();
}

// Few are under way at once, so that neither the peer's notes of those that it cannot confirm yet
// nor its answers grow without an end: two sides that both take back much would not read each
// other's answers any more.
void PeerCore::askForRevocations() {
  while (!revocationWishes_.empty() &&
         revocations_.size() - revocationWishes_.size() < limits::kRevocations) {
    (void)env_.connection->send(revocationWishes_.front());
    revocationWishes_.pop_front();
  }
}

Status PeerCore::handle(control::Revoke& message) {
  if (!imported_) return Status(Code::kCorrupt, "a revocation before the link is made");
  auto region = imported_->find(message.allocation, message.generation);
  if (!region && !imported_->isLeaving(message.allocation, message.generation))
    return env_.connection->send(control::RevokeDone{message.request, Code::kOk});
  if (region && message.freed) {
    region->freed.store(true,
                        std::memory_order_relaxed);  // before the gate, which is looked at first
    PEERLANE_LOG_WARN("peer {} freed its region {} without unregistering it", env_.number,
                      message.allocation);
  }
  if (region) region->gate.close();
  {
    const std::lock_guard lock(revokedMutex_);
    if (revoked_.size() >= limits::kRevocations)
      return Status(Code::kCorrupt, "the peer takes back more than " +
                                        std::to_string(limits::kRevocations) +
                                        " regions at once while transfers of this side use them");
    revoked_.push_back(
        {message.request, message.allocation, message.generation, std::move(region)});
    revokedCount_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  }
  watchRevocations();
  return Status::ok();
}

// Posting threads that let go of a region tell nobody: that would cost each post. So it is looked
// at.
void PeerCore::watchRevocations() {
  turnRevocations();
  if (revokedCount_.load(std::memory_order_relaxed) == 0) return;
  revokedTimer_ =
      progress().loop().after(std::chrono::milliseconds(1), [this] { watchRevocations(); });
}

bool PeerCore::turnRevocations() {
  if (revokedCount_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(revokedMutex_);
  const size_t before = revoked_.size();
  std::erase_if(revoked_, [this](const Revoked& revoked) {
    // In one process it is the owner's memory itself that was pinned; and pool memory has to be
    // freed here before its owner frees it.
    if (revoked.region && !ImportedRegion::letGo(revoked.region)) return false;
    if (imported_->isLeaving(revoked.allocation, revoked.generation)) return false;
    progress().post([self = shared_from_this(), request = revoked.request] {
      (void)self->env_.connection->sendIfOpen(control::RevokeDone{request, Code::kOk});
    });
    return true;
  });
  revokedCount_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
  return revoked_.size() != before;
}

Status PeerCore::handle(control::RevokeDone& message) {
  auto found = revocations_.find(message.request);
  const bool isAskedFor =
      revocationWishes_.empty() || message.request < revocationWishes_.front().request;
  if (found == revocations_.end() || !isAskedFor)
    return Status(Code::kCorrupt, "a confirmation of revocation " +
                                      std::to_string(message.request) + ", which nobody asked");
  auto done = std::move(found->second);
  revocations_.erase(found);
  askForRevocations();
  done();
  return Status::ok();
}

}  // namespace peerlane
