// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/remote_segment_cache.h"

#include <string>
#include <utility>

#include "peerlane/p2p/segment/segment_proof.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane::p2p {
namespace {

// It was reached, and its owner has unregistered it since.
bool isUnregistered(const RemoteRegion& remote) {
  const ImportSlot& slot = *remote.slot();
  return slot.state.load(std::memory_order_acquire) == ImportSlot::State::kReady &&
         !slot.region->gate.open();
}

}  // namespace

RemoteSegmentCache::RemoteSegmentCache(Peer peer, const ContextId& self,
                                       std::chrono::nanoseconds timeout,
                                       const PairNoteChannel& notes)
    : peer_(std::move(peer)), self_(self), timeout_(timeout), notes_(notes) {}

void RemoteSegmentCache::ask(const SegmentName& name) {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(entries_[name.number].isAsked, true)) return;
  }
  PairNote note;
  note.type = PairNote::Type::kAsk;
  note.segment = name.number;
  note.proof = makeProof(name.number, name.key, {self_, peer_.core()->context()});
  if (notes_.send(note).isOk()) return;
  // Nothing is sent to a silent peer. The next find() asks it again.
  const MutexLock lock(mutex_);
  if (const auto found = entries_.find(name.number); found != entries_.end())
    found->second.isAsked = false;
}

void RemoteSegmentCache::forget(const SegmentName& name) {
  Entry gone;  // ends after the lock: the last handle of a region ends its import
  const MutexLock lock(mutex_);
  if (const auto found = entries_.find(name.number); found != entries_.end()) {
    gone = std::move(found->second);
    entries_.erase(found);
  }
}

void RemoteSegmentCache::onAnswer(const PairNote& note) {
  Result<RemoteRegion> remote = note.code == Code::kOk
                                    ? peer_.importRegion(note.reference)
                                    : Result<RemoteRegion>(Status(note.code, note.why));
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(note.segment);
    if (found == entries_.end() || found->second.remote) return;  // forgotten, or told before
    found->second.remote = std::move(remote);
  }
  peer_.core()->progress().notifyWaiters();
}

// Whether a wait for the answer is over: the answer is there, or the segment was forgotten.
bool RemoteSegmentCache::isSettled(uint64_t number, Answered& remote) {
  const MutexLock lock(mutex_);
  const auto known = entries_.find(number);
  if (known != entries_.end()) remote = known->second.remote;
  return known == entries_.end() || remote.has_value();
}

Answer RemoteSegmentCache::awaitAnswer(const SegmentName& name, Answered& remote) {
  // Mostly the answer came long before: ask() was called when the segment was imported.
  if (isSettled(name.number, remote) && remote) return Status::ok();
  ask(name);
  PeerCore& core = *peer_.core();
  const auto come = [&] { return isSettled(name.number, remote) || !core.usable().isOk(); };
  const auto words = [&] { return core.name() + " to say how a segment of it is reached"; };
  PEERLANE_RETURN_IF_ERROR(core.progress().waitAsleep(come, Progress::deadlineIn(timeout_), words));
  if (remote) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(core.usable());
  return notFound("the segment was taken out of use (P2PUnimportSegment) meanwhile");
}

Answer RemoteSegmentCache::find(const SegmentName& name, RemoteRegion& found) {
  Answered remote;
  PEERLANE_RETURN_IF_ERROR(awaitAnswer(name, remote));
  const bool isGone = remote->isOk() && isUnregistered(**remote);
  // After a refusal the next find() asks again: the owner may have registered the memory since.
  if (!remote->isOk() || isGone) forget(name);
  const std::string segment = "the imported segment " + rangeText(name.address, name.bytes);
  if (isGone) return notFound(segment + " was unregistered by the process that it is of");
  if (remote->status().code() == Code::kInvalidArgument)
    return notFound(std::string(remote->status().message())).withContext(segment);
  PEERLANE_RETURN_IF_ERROR(remote->status());
  found = **remote;
  return Status::ok();
}

}  // namespace peerlane::p2p
