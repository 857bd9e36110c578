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
  return imports_.handle(message);
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
  if (!imports_.isOpen()) return Status(Code::kCorrupt, "a revocation before the link is made");
  auto region = imports_.find(message.allocation, message.generation);
  if (!region && !imports_.isLeaving(message.allocation, message.generation))
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
    if (imports_.isLeaving(revoked.allocation, revoked.generation)) return false;
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
