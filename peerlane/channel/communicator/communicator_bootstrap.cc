// SPDX-License-Identifier: Apache-2.0
//
// The bootstrap of ranks that are connected: each pair claims the next number on its connection,
// makes an area for the other, and says where it is; then each imports the other's.
#include <algorithm>

#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/core/limits.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/library_memory.h"

namespace peerlane {

std::shared_ptr<CommunicatorNumbers> CommunicatorNumbers::of(PeerCore& peer) {
  return peer.attachments().communicatorNumbers.getOr(
      [] { return std::make_shared<CommunicatorNumbers>(); });
}

CommunicatorCore::CommunicatorCore(const std::vector<Peer>& peers, Rank own,
                                   const CommunicatorOptions& options)
    : own_(own), options_(options) {
  for (Rank rank = 0; rank < peers.size(); ++rank) {
    pairs_.push_back(nullptr);
    if (rank == own) continue;
    auto pair = std::make_unique<Pair>();
    pair->env.peer = peers[rank].core();
    pair->env.rank = rank;
    pairs_.back() = std::move(pair);
    first_ = peers[rank].core().get();
  }
  eagerBytes_ = options.eagerBytes.value_or(first_->config().eagerBytes);
  spans_.emplace(this->peers());
}

// Cannot fail: whatever becomes of the bootstrap, both sides have counted.
void CommunicatorCore::claim(Pair& pair) {
  LaneEnvironment& env = pair.env;
  PeerCore& peer = *env.peer;
  pair.channel = kCommunicatorChannels + CommunicatorNumbers::of(peer)->claim();
  env.eagerBytes = eagerBytes_;
  env.strict = peer.config().strict;
  env.ringBytes = peer.config().stagingBytes / std::max<size_t>(1, pairs_.size() - 1);
  env.sendNote = [weak = std::weak_ptr<PeerCore>(env.peer), channel = pair.channel](LaneNote note) {
    // To a peer that is gone there is nothing to say.
    const auto alive = weak.lock();
    if (!alive) return;
    note.code = alive->toldAs(note.code);
    (void)alive->messages().send(channel, note.encode());
  };
  subscribe(pair);
}

// Makes this side's part of a pair.
Status CommunicatorCore::open(Pair& pair) {
  LaneEnvironment& env = pair.env;
  PEERLANE_ASSIGN(env.area, makeLibraryMemory(env.peer->regions(), LaneArea::bytes(eagerBytes_)));
  LaneNote hello;
  hello.kind = LaneNote::Kind::kHello;
  hello.rank = own_;
  hello.otherRank = env.rank;
  hello.ranks = size();
  hello.eagerBytes = eagerBytes_;
  hello.area = nameOf(*env.area);
  hello.number = stagingOffer(pair).encode();
  PEERLANE_RETURN_IF_ERROR(env.peer->messages().send(pair.channel, hello.encode()));
  return openDevice(pair);
}

// The peer may wait for this side, so this side says something even if it has nothing to offer.
Status CommunicatorCore::openDevice(Pair& pair) {
  PeerCore& peer = *pair.env.peer;
  if (!peer.links().devicesAdd()) return Status::ok();
  LaneNote note;
  note.kind = LaneNote::Kind::kDeviceArea;
  if (peer.links().mapsDevices() != nullptr) {
    PEERLANE_ASSIGN(pair.device, DeviceLane::create(pair.env, *peer.devices().front()));
    note.area = pair.device->area();
  }
  return peer.messages().send(pair.channel, note.encode());
}

Status CommunicatorCore::reachDevice(Pair& pair, Progress::Clock::time_point deadline) {
  if (!pair.device) return Status::ok();
  PeerCore& peer = *pair.env.peer;
  const auto arrived = [&] { return pair.device->arrived() || peer.failureCode() != Code::kOk; };
  const auto words = [&] { return "the GPU's lane memory of " + peer.name(); };
  PEERLANE_RETURN_IF_ERROR(peer.progress().wait(arrived, deadline, words));
  PEERLANE_RETURN_IF_ERROR(peer.failure());
  // Nobody else turns the lane before the communicator is there.
  (void)pair.device->turn();
  return Status::ok();
}

void CommunicatorCore::subscribe(Pair& pair) {
  const std::weak_ptr<PeerCore> peer = pair.env.peer;
  pair.env.peer->messages().onMessage(pair.channel,
                                      [core = weak_from_this(), peer, channel = pair.channel,
                                       rank = pair.env.rank](const std::vector<std::byte>& bytes) {
                                        if (const auto alive = core.lock())
                                          alive->onNote(rank, bytes);
                                        // After its goodbye the peer says nothing more here.
                                        // Without one, somebody must listen: messages that nobody
                                        // wants are counted against the peer.
                                        auto note = LaneNote::decode(bytes);
                                        if (!note.isOk() || note->kind != LaneNote::Kind::kBye)
                                          return;
                                        if (const auto alive = peer.lock())
                                          alive->messages().onMessage(channel, nullptr);
                                      });
}

// Progress thread.
void CommunicatorCore::onNote(Rank rank, const std::vector<std::byte>& bytes) {
  Pair& pair = *pairs_[rank];
  auto note = LaneNote::decode(bytes);
  if (!note.isOk()) note = LaneNote{.kind = LaneNote::Kind::kBye, .code = Code::kCorrupt};
  {
    const MutexLock lock(pair.mutex);
    if (note->kind == LaneNote::Kind::kHello) {
      if (!pair.hello) pair.hello = *note;
      pair.answered.store(true, std::memory_order_release);
    } else if (!pair.ready.load(std::memory_order_acquire)) {
      // A peer that says so much before this side is there is taken for one that left.
      if (pair.early.size() >= limits::kEarlyNotes)
        note = LaneNote{.kind = LaneNote::Kind::kBye, .code = Code::kCorrupt};
      if (pair.early.size() <= limits::kEarlyNotes) pair.early.push_back(*note);
      // A peer that leaves before the bootstrap is over counts as answered, too.
      if (note->kind == LaneNote::Kind::kBye) pair.answered.store(true, std::memory_order_release);
    } else {
      deliver(pair, *note);
    }
  }
  pair.env.peer->progress().notifyWaiters();
}

void CommunicatorCore::deliver(Pair& pair, const LaneNote& note) {
  if (note.isOfStreams()) return deliverToStreams(pair, note);
  if (note.kind == LaneNote::Kind::kHeard) return pair.sender->take(note);
  if (note.kind != LaneNote::Kind::kBye) return pair.receiver->take(note);
  const Status why(note.code == Code::kOk ? Code::kClosed : note.code,
                   "rank " + std::to_string(pair.env.rank) + " has closed its communicator");
  pair.sender->fail(why);
  pair.receiver->fail(why);
  if (pair.device) pair.device->fail(why, /*tellPeer=*/false);
  if (pair.staged) pair.staged->fail(why, /*tellPeer=*/false);
}

// The other side's half; afterwards the pair has its lanes.
Status CommunicatorCore::reach(Pair& pair, Progress::Clock::time_point deadline) {
  LaneEnvironment& env = pair.env;
  PeerCore& peer = *env.peer;
  const auto answered = [&] {
    return pair.answered.load(std::memory_order_acquire) || peer.failureCode() != Code::kOk;
  };
  const auto partner = [&] {
    return peer.name() + " to create its side of the communicator, as rank " +
           std::to_string(env.rank) + " of " + std::to_string(size());
  };
  PEERLANE_RETURN_IF_ERROR(peer.progress().wait(answered, deadline, partner));
  PEERLANE_RETURN_IF_ERROR(peer.failure());
  LaneNote hello;
  {
    const MutexLock lock(pair.mutex);
    const auto isBye = [](const LaneNote& note) { return note.kind == LaneNote::Kind::kBye; };
    if (!pair.hello || std::any_of(pair.early.begin(), pair.early.end(), isBye))
      return Status(Code::kClosed, "it gave up its communicator before both had met");
    hello = *pair.hello;
  }
  if (hello.rank != env.rank || hello.otherRank != own_ || hello.ranks != size())
    return Status(Code::kInvalidArgument,
                  "it counts itself as rank " + std::to_string(hello.rank) + " of " +
                      std::to_string(hello.ranks) + " and this side as " +
                      std::to_string(hello.otherRank) + "; expected " + std::to_string(env.rank) +
                      " of " + std::to_string(size()) + " and " + std::to_string(own_));
  env.peerEagerBytes = hello.eagerBytes;
  NamedImportCache cache(peer);
  const auto imported = [&]() -> Result<std::shared_ptr<ImportedRegion>> {
    return cache.find(hello.area);
  };
  PEERLANE_ASSIGN(env.peerArea, imported());
  auto slot = cache.slotOf(hello.area);
  const auto done = [&] {
    const auto state = slot->state.load(std::memory_order_acquire);
    return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed ||
           peer.failureCode() != Code::kOk;
  };
  const auto memory = [&] { return "the lane memory of " + peer.name() + " to be imported"; };
  PEERLANE_RETURN_IF_ERROR(peer.progress().wait(done, deadline, memory));
  PEERLANE_RETURN_IF_ERROR(peer.failure());
  PEERLANE_ASSIGN(env.peerArea, imported());
  if (env.peerArea == nullptr)
    return Status(Code::kPeerSilent, "nothing was heard of it in the middle of the bootstrap");
  if (env.peerArea->memory.grant.bytes < LaneArea::bytes(hello.eagerBytes) ||
      !allows(env.peerArea->memory.grant.access, Access::kRemoteReadWrite))
    return Status(Code::kCorrupt, "its area is smaller than it said, or not writable");
  pair.sender = std::make_unique<LaneSender>(env);
  pair.receiver = std::make_unique<LaneReceiver>(env);
  {
    const MutexLock lock(pair.mutex);
    pair.ready.store(true, std::memory_order_release);
    for (const LaneNote& note : pair.early) deliver(pair, note);
    pair.early.clear();
  }
  return reachDevice(pair, deadline);
}

Status CommunicatorCore::bootstrap(std::chrono::nanoseconds timeout) {
  // Before anything is counted: the other side may still be met from elsewhere.
  if (first_->progress().onLoopThread())
    return Status(Code::kInvalidArgument,
                  "a communicator was created in a callback on the progress thread");
  const auto deadline = Progress::deadlineIn(timeout);
  for (const auto& pair : pairs_)
    if (pair) claim(*pair);
  Status status;
  for (const auto& pair : pairs_)
    if (pair && status.isOk()) status = open(*pair);
  for (const auto& pair : pairs_)
    if (pair && status.isOk())
      status = reach(*pair, deadline)
                   .withContext("bootstrap with rank " + std::to_string(pair->env.rank));
  // All say where their areas are before one waits for another's.
  for (const auto& pair : pairs_)
    if (pair && status.isOk()) status = openStaged(*pair);
  for (const auto& pair : pairs_)
    if (pair && status.isOk())
      status = reachStaged(*pair, deadline)
                   .withContext("bootstrap with rank " + std::to_string(pair->env.rank));
  if (status.isOk()) {
    first_->progress().add(shared_from_this());
    return status;
  }
  // Not everybody is there: nobody gets a communicator.
  closed_.store(true, std::memory_order_release);
  for (const auto& pair : pairs_) {
    if (!pair) continue;
    pair->env.sendNote({.kind = LaneNote::Kind::kBye, .code = status.code()});
    retireRegion(pair->env.area, {pair->env.peer});
    if (pair->device) pair->device->retire();
    if (pair->staged) pair->staged->retire();
  }
  return status;
}

}  // namespace peerlane
