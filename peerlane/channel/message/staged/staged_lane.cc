// SPDX-License-Identifier: Apache-2.0
//
// StagedLane: its life, the calls of its posts, and its end. staged_lane_turns.cc has the turns.
#include "peerlane/channel/message/staged/staged_lane.h"

#include <utility>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/core/log.h"
#include "peerlane/memory/library_memory.h"
#include "peerlane/session/staging/staging_copy.h"

namespace peerlane {

Result<std::shared_ptr<StagedLane>> StagedLane::create(const LaneEnvironment& env,
                                                       uint64_t ringBytes, std::string why) {
  std::shared_ptr<StagedLane> lane(new StagedLane(env, ringBytes, std::move(why)));
  PEERLANE_ASSIGN(lane->env_.area,
                  makeLibraryMemory(env.peer->regions(), LaneArea::bytes(ChunkCut::kInboxBytes)));
  return lane;
}

StagedLane::StagedLane(const LaneEnvironment& env, uint64_t ringBytes, std::string why)
    : env_(env),
      ringBytes_(ringBytes),
      why_(std::move(why)),
      sendNote_(env.sendNote),
      rings_{ChunkRing(ringBytes), ChunkRing(ringBytes)} {
  env_.area = nullptr;
  env_.peerArea = nullptr;
  env_.eagerBytes = env_.peerEagerBytes = ChunkCut::kInboxBytes;
  // Notes of lanes are about those of the communicator itself. Here nothing is said: chunks are
  // neither cancelled nor put.
  env_.sendNote = [](const LaneNote&) {};
}

// Nothing of it is on a stream: posts hold it.
StagedLane::~StagedLane() {
  if (env_.peer->forked() || !ring_) return;
  ring_->pin.release([ring = ring_] {});
}

RegionName StagedLane::area() const {
  return nameOf(*env_.area);
}

Status StagedLane::open(std::shared_ptr<ImportedRegion> peerArea) {
  if (peerArea->memory.grant.bytes < LaneArea::bytes(ChunkCut::kInboxBytes) ||
      !allows(peerArea->memory.grant.access, Access::kRemoteReadWrite))
    return Status(Code::kCorrupt, "its area for staged messages is too small, or not writable");
  env_.peerArea = std::move(peerArea);
  sender_ = std::make_unique<LaneSender>(env_);
  receiver_ = std::make_unique<LaneReceiver>(env_);
  return Status::ok();
}

Status StagedLane::health() const {
  if (!failed_.load(std::memory_order_acquire)) return env_.peer->usable();
  const MutexLock lock(stateMutex_);
  return failure_;
}

Status StagedLane::prepare(DeviceExecutor& executor) {
  const MutexLock lock(ringMutex_);
  if (!ring_) {
    PEERLANE_ASSIGN(ring_, makeLibraryMemory(env_.peer->regions(), 2 * ringBytes_));
  }
  if (!std::exchange(isLogged_, true))
    PEERLANE_LOG_WARN(
        "peer {}: messages on streams are staged through {} bytes of pinned host memory at each "
        "side, because {}",
        env_.peer->number(), 2 * ringBytes_, why_);
  return ring_->pin.ensure([&] { return executor.pin(ring_->base, ring_->bytes); })
      .withContext("the staging memory of messages on streams");
}

StagedLane::Claims StagedLane::claims() const {
  return {next_, {rings_[0].next(), rings_[1].next()}};
}

void StagedLane::restore(const Claims& claims) {
  next_ = claims.numbers;
  for (size_t i = 0; i < rings_.size(); ++i) rings_[i].rewind(claims.positions[i]);
}

void StagedLane::claim(StagedMessage& message) {
  message.number = next_[message.isSend ? 0 : 1]++;
  message.cut = ChunkCut::of(message.bytes, ringBytes_);
  message.chunks.resize(message.cut.chunks);
  uint64_t offset = 0;
  for (StagedMessage::Chunk& chunk : message.chunks) {
    chunk.offset = offset;
    chunk.bytes = std::min(message.bytes - offset, message.cut.chunkBytes);
    chunk.position = ringOf(message.isSend).claim(chunk.bytes);
    offset += chunk.bytes;
  }
  if (message.isSend)
    message.header = {message.number, message.bytes, message.cut.chunkBytes, message.part};
}

std::byte* StagedLane::placeOf(const StagedMessage& message, const StagedMessage::Chunk& chunk) {
  return ring_->base + (message.isSend ? 0 : ringBytes_) +
         ringOf(message.isSend).placeOf(chunk.position);
}

// By a kernel: copies of the copy engine stand in one queue, whatever streams they are of, and
// would hold up those that wait for less (docs/gotchas.md).
Result<std::unique_ptr<DeviceProgram>> StagedLane::programOf(const StagedMessage& message,
                                                             const StagedMessage::Chunk& chunk,
                                                             DeviceExecutor& executor) {
  const auto ringOffset = static_cast<uint64_t>(placeOf(message, chunk) - ring_->base);
  const uint64_t offset = message.offset + chunk.offset;
  const Segment segment =
      message.isSend ? Segment{kStagingTarget, kFirstRegionTarget, ringOffset, offset, chunk.bytes}
                     : Segment{kFirstRegionTarget, kStagingTarget, offset, ringOffset, chunk.bytes};
  return prepareStagingCopy(executor, *ring_, {&message.region, 1}, {segment},
                            {.engine = Engine::kSm});
}

// May run at the same time as fail(): a post that comes after it is refused, and the lane waits for
// a post that came before it.
Status StagedLane::begin(uint64_t messages) {
  PEERLANE_RETURN_IF_ERROR(env_.peer->usable());
  const MutexLock lock(stateMutex_);
  if (failure_.isOk()) pending_.fetch_add(messages, std::memory_order_acq_rel);
  return failure_;
}

void StagedLane::take(std::shared_ptr<StagedMessage> message) {
  const MutexLock lock(stateMutex_);
  incoming_.push_back(std::move(message));
  hasIncoming_.store(true, std::memory_order_release);
}

void StagedLane::fail(const Status& why, bool tellPeer) {
  {
    const MutexLock lock(stateMutex_);
    if (!failure_.isOk()) return;
    failure_ = why;
    failed_.store(true, std::memory_order_seq_cst);  // before wake()
  }
  if (tellPeer) sendNote_({.kind = LaneNote::Kind::kDeviceEnd, .code = why.code()});
  env_.peer->progress().wake();
}

void StagedLane::takeEnd(const LaneNote& note) {
  fail(Status(note.code == Code::kOk ? Code::kClosed : note.code,
              "rank " + std::to_string(rank()) + " has ended its messages on streams"),
       /*tellPeer=*/false);
}

void StagedLane::retire() {
  retireRegion(env_.area, {env_.peer});
  const MutexLock lock(ringMutex_);
  if (ring_) retireRegion(ring_, {env_.peer});
}

std::string StagedLane::describe() const {
  const uint64_t pending = pending_.load(std::memory_order_acquire);
  if (pending == 0) return {};
  return "streams, staged, rank " + std::to_string(rank()) + ": " + std::to_string(pending) +
         " messages under way";
}

}  // namespace peerlane
