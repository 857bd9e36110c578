// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorCore's half of messages on streams that are staged through host memory. Whether they
// are is a matter of the pair: both sides have GPUs, no link reaches from one to the other, and
// neither refuses. Each side says so in its hello, so both come to the same answer.
#include <algorithm>
#include <utility>

#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/message/host/named_import_cache.h"
#include "peerlane/channel/message/staged/staged_post.h"
#include "peerlane/core/mutex.h"

namespace peerlane {
namespace {

std::string whyStaged(const PeerCore& peer) {
  if (peer.links().mapsDevices() != nullptr)
    return "the other side has no path between the GPUs of the two";
  RegionReference ofAGpu;
  ofAGpu.device = {DeviceKind::kCuda, 0};
  return peer.links().whyStaged(ofAGpu, {.ofDevice = MemoryKind::kCudaPrivate, .onStream = true});
}

}  // namespace

uint64_t CommunicatorCore::stagingBytes(const PeerCore& peer) const {
  const uint64_t most = peer.config().stagingBytes;
  return std::min(options_.stagingBytes.value_or(most), most);
}

StagingOffer CommunicatorCore::stagingOffer(const Pair& pair) const {
  const PeerCore& peer = *pair.env.peer;
  StagingOffer offer;
  offer.hasLink = peer.links().mapsDevices() != nullptr;
  if (!peer.devices().empty() && !pair.env.strict)
    offer.ringBytes = ChunkCut::ringBytes(stagingBytes(peer), pairs_.size() - 1);
  return offer;
}

// Of a pair that stages nothing.
std::string CommunicatorCore::whyNotStaged(const Pair& pair) const {
  const PeerCore& peer = *pair.env.peer;
  if (peer.devices().empty()) return "this context was made without GPUs (ContextOptions::devices)";
  if (pair.env.strict)
    return "PEERLANE_STRICT refuses it, and it is needed because " + whyStaged(peer);
  if (stagingOffer(pair).ringBytes == 0)
    return "PEERLANE_STAGING_BYTES (" + std::to_string(stagingBytes(peer)) +
           ", or CommunicatorOptions::stagingBytes) leaves too little for each of " +
           std::to_string(pairs_.size() - 1) + " ranks; at least " +
           std::to_string((pairs_.size() - 1) * 2 * ChunkCut::kPage * ChunkCut::kChunksInRing) +
           " are needed";
  return "the other side has no GPUs (ContextOptions::devices), or refuses it (PEERLANE_STRICT, "
         "too "
         "small a PEERLANE_STAGING_BYTES); a rank without GPUs is sent to without a stream";
}

Status CommunicatorCore::openStaged(Pair& pair) {
  const StagingOffer own = stagingOffer(pair);
  StagingOffer theirs;
  {
    const MutexLock lock(pair.mutex);
    theirs = StagingOffer::decode(pair.hello->number);
  }
  if (own.ringBytes == 0 || theirs.ringBytes == 0 || (own.hasLink && theirs.hasLink))
    return Status::ok();
  constexpr uint64_t kUnit = ChunkCut::kPage * ChunkCut::kChunksInRing;
  const uint64_t ring = std::min(own.ringBytes, theirs.ringBytes) / kUnit * kUnit;
  if (ring == 0)
    return Status(Code::kCorrupt, "rank " + std::to_string(pair.env.rank) + " stages " +
                                      std::to_string(theirs.ringBytes) +
                                      " bytes, less than there can be");
  PEERLANE_ASSIGN(auto lane, StagedLane::create(pair.env, ring, whyStaged(*pair.env.peer)));
  LaneNote note;
  note.kind = LaneNote::Kind::kDeviceArea;
  note.area = lane->area();
  {
    const MutexLock lock(pair.mutex);
    // A link that one side alone believes in.
    if (pair.device) std::exchange(pair.device, nullptr)->retire();
    pair.staged = std::move(lane);
  }
  return pair.env.peer->messages().send(pair.channel, note.encode());
}

Status CommunicatorCore::reachStaged(Pair& pair, Progress::Clock::time_point deadline) {
  if (!pair.staged) return Status::ok();
  PeerCore& peer = *pair.env.peer;
  const auto isKnown = [&] {
    return pair.hasStagedArea.load(std::memory_order_acquire) || pair.sender->failing() ||
           peer.failureCode() != Code::kOk;
  };
  const auto known = [&] { return "where the staging memory of " + peer.name() + " is"; };
  PEERLANE_RETURN_IF_ERROR(peer.progress().wait(isKnown, deadline, known));
  PEERLANE_RETURN_IF_ERROR(peer.failure());
  if (!pair.hasStagedArea.load(std::memory_order_acquire)) return pair.sender->health();
  NamedImportCache cache(peer);
  const auto import = [&]() -> Result<std::shared_ptr<ImportedRegion>> {
    return cache.find(pair.stagedArea);
  };
  PEERLANE_ASSIGN(auto area, import());
  const auto slot = cache.slotOf(pair.stagedArea);
  const auto isOver = [&] {
    const auto state = slot->state.load(std::memory_order_acquire);
    return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed ||
           peer.failureCode() != Code::kOk;
  };
  const auto there = [&] { return "the staging memory of " + peer.name() + " to be imported"; };
  PEERLANE_RETURN_IF_ERROR(peer.progress().wait(isOver, deadline, there));
  PEERLANE_RETURN_IF_ERROR(peer.failure());
  PEERLANE_ASSIGN(area, import());
  if (area == nullptr)
    return Status(Code::kPeerSilent, "nothing was heard of it in the middle of the bootstrap");
  return pair.staged->open(std::move(area));
}

// Progress thread, with the pair locked. The first area that a side with GPUs names is that of the
// link between them, if there is one; a second one is for staging.
void CommunicatorCore::deliverToStreams(Pair& pair, const LaneNote& note) {
  const bool isArea = note.kind == LaneNote::Kind::kDeviceArea;
  if (isArea && std::exchange(pair.hasLinkArea, true)) {
    if (pair.hasStagedArea.load(std::memory_order_relaxed)) return;
    pair.stagedArea = note.area;
    pair.hasStagedArea.store(true, std::memory_order_release);
    return;
  }
  if (pair.device) return pair.device->take(note);
  if (note.kind == LaneNote::Kind::kDeviceEnd && pair.staged) pair.staged->takeEnd(note);
}

// All of them, or none: a stream would have to wait for both kinds at once, whose order the other
// ranks do not know.
Result<bool> CommunicatorCore::mustStage(std::span<const Wanted> messages) const {
  const Pair* staged = nullptr;
  const Pair* direct = nullptr;
  for (const Wanted& wanted : messages) {
    PEERLANE_ASSIGN(const Pair* const pair, pairOf(wanted.rank));
    (pair->staged ? staged : direct) = pair;
  }
  if (staged == nullptr || direct == nullptr) return staged != nullptr;
  return Status(Code::kNotSupported,
                "messages of one group on a stream that are staged through host memory (rank " +
                    std::to_string(staged->env.rank) + ") and others that are not (rank " +
                    std::to_string(direct->env.rank) + "); make a group of each");
}

Result<Transfer> CommunicatorCore::postStaged(std::span<const Wanted> messages,
                                              const MessageOptions& options) {
  PEERLANE_ASSIGN(DeviceExecutor* const executor, first_->executorOf(options.deviceStream));
  const Protocol protocol = options.protocol.value_or(options_.protocol);
  std::vector<MessageToStage> toStage;
  for (const Wanted& wanted : messages) {
    PEERLANE_ASSIGN(const Pair* const pair, pairOf(wanted.rank));
    PEERLANE_RETURN_IF_ERROR(pair->staged->health());
    PEERLANE_ASSIGN(std::shared_ptr<RegionRecord> record, streamMemory(wanted));
    PEERLANE_RETURN_IF_ERROR(isByGet(wanted, protocol).status());
    toStage.push_back({pair->staged.get(), wanted.isSend, std::move(record), wanted.offset,
                       wanted.bytes, wanted.part});
  }
  return postStagedMessages(shared_from_this(), toStage, *executor, options.deviceStream,
                            options.timeout);
}

Status CommunicatorCore::prepareStaged(Pair& pair, std::span<const Region> regions) {
  DeviceExecutor& executor = *first_->devices().front();
  for (const Region& region : regions) {
    PEERLANE_ASSIGN(std::shared_ptr<RegionRecord> record, streamMemory({.region = &region}));
    if (record->memory.device.kind != DeviceKind::kHost) continue;
    if (!record->gate.enter()) return record->whyClosed();
    const Status opened = DeviceLane::open(*record, executor);
    record->gate.leave();
    PEERLANE_RETURN_IF_ERROR(opened);
  }
  PEERLANE_RETURN_IF_ERROR(pair.staged->health());
  return pair.staged->prepare(executor);
}

uint64_t CommunicatorCore::stagingRingBytes(Rank rank) const {
  const auto pair = pairOf(rank);
  return pair.isOk() && (*pair)->staged ? (*pair)->staged->ringBytes() : 0;
}

std::string CommunicatorCore::explainStaged(const Pair& pair) const {
  if (!pair.staged) return "refused: " + whyNotStaged(pair);
  return "staged through " + std::to_string(2 * pair.staged->ringBytes()) +
         " bytes of pinned host memory at each side (" +
         std::to_string(ChunkCut::of(UINT64_MAX, pair.staged->ringBytes()).chunkBytes) +
         " at a time, at most), because " + pair.staged->why();
}

}  // namespace peerlane
