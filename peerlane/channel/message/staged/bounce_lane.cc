// SPDX-License-Identifier: Apache-2.0
//
// BounceLane: its life, the calls of its posts, and its end. bounce_flow.cc has the turns.
#include "peerlane/channel/message/staged/bounce_lane.h"

#include <utility>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/core/log.h"
#include "peerlane/memory/library_memory.h"
#include "peerlane/session/staging/staging_copy.h"

namespace peerlane {

Result<std::shared_ptr<BounceLane>> BounceLane::create(const LaneGround& ground, uint64_t ringBytes,
                                                       std::string why) {
  std::shared_ptr<BounceLane> lane(new BounceLane(ground, ringBytes, std::move(why)));
  PEERLANE_ASSIGN(lane->ground_.area, makeLibraryMemory(ground.peer->regions(),
                                                        LaneArea::bytes(BounceCut::kInboxBytes)));
  return lane;
}

BounceLane::BounceLane(const LaneGround& ground, uint64_t ringBytes, std::string why)
    : ground_(ground),
      ringBytes_(ringBytes),
      why_(std::move(why)),
      say_(ground.say),
      rings_{BounceRing(ringBytes), BounceRing(ringBytes)} {
  ground_.area = nullptr;
  ground_.peerArea = nullptr;
  ground_.eagerBytes = ground_.peerEagerBytes = BounceCut::kInboxBytes;
  // Notes of lanes are about those of the communicator itself. Here nothing is said: chunks are
  // neither cancelled nor put.
  ground_.say = [](const LaneNote&) {};
}

// Nothing of it is on a stream: posts hold it.
BounceLane::~BounceLane() {
  if (ground_.peer->forked() || !ring_) return;
  ring_->pin.release([ring = ring_] {});
}

RegionName BounceLane::area() const {
  return nameOf(*ground_.area);
}

Status BounceLane::open(std::shared_ptr<ImportedRegion> peerArea) {
  if (peerArea->memory.grant.bytes < LaneArea::bytes(BounceCut::kInboxBytes) ||
      !allows(peerArea->memory.grant.access, Access::kRemoteReadWrite))
    return Status(Code::kCorrupt, "its area for staged messages is too small, or not writable");
  ground_.peerArea = std::move(peerArea);
  sender_ = std::make_unique<LaneSender>(ground_);
  receiver_ = std::make_unique<LaneReceiver>(ground_);
  return Status::ok();
}

Status BounceLane::health() const {
  if (!failed_.load(std::memory_order_acquire)) return ground_.peer->usable();
  const MutexLock lock(stateMutex_);
  return failure_;
}

Status BounceLane::prepare(DeviceExecutor& executor) {
  const MutexLock lock(ringMutex_);
  if (!ring_) {
    PEERLANE_ASSIGN(ring_, makeLibraryMemory(ground_.peer->regions(), 2 * ringBytes_));
  }
  if (!std::exchange(isTold_, true))
    PEERLANE_LOG_WARN(
        "peer {}: messages on streams are staged through {} bytes of pinned host memory at each "
        "side, because {}",
        ground_.peer->number(), 2 * ringBytes_, why_);
  return ring_->pin.ensure([&] { return executor.pin(ring_->base, ring_->bytes); })
      .withContext("the staging memory of messages on streams");
}

BounceLane::Claims BounceLane::claims() const {
  return {next_, {rings_[0].next(), rings_[1].next()}};
}

void BounceLane::restore(const Claims& claims) {
  next_ = claims.numbers;
  for (size_t i = 0; i < rings_.size(); ++i) rings_[i].rewind(claims.positions[i]);
}

void BounceLane::claim(BounceMessage& message) {
  message.number = next_[message.isSend ? 0 : 1]++;
  message.cut = BounceCut::of(message.bytes, ringBytes_);
  message.chunks.resize(message.cut.chunks);
  uint64_t offset = 0;
  for (BounceMessage::Chunk& chunk : message.chunks) {
    chunk.offset = offset;
    chunk.bytes = std::min(message.bytes - offset, message.cut.chunkBytes);
    chunk.position = ringOf(message.isSend).claim(chunk.bytes);
    offset += chunk.bytes;
  }
  if (message.isSend)
    message.header = {message.number, message.bytes, message.cut.chunkBytes, message.part};
}

std::byte* BounceLane::placeOf(const BounceMessage& message, const BounceMessage::Chunk& chunk) {
  return ring_->base + (message.isSend ? 0 : ringBytes_) +
         ringOf(message.isSend).placeOf(chunk.position);
}

// By a kernel: copies of the copy engine stand in one queue, whatever streams they are of, and
// would hold up those that wait for less (docs/gotchas.md).
Result<std::unique_ptr<DeviceProgram>> BounceLane::programOf(const BounceMessage& message,
                                                             const BounceMessage::Chunk& chunk,
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
Status BounceLane::begin(uint64_t messages) {
  PEERLANE_RETURN_IF_ERROR(ground_.peer->usable());
  const MutexLock lock(stateMutex_);
  if (failure_.isOk()) pending_.fetch_add(messages, std::memory_order_acq_rel);
  return failure_;
}

void BounceLane::take(std::shared_ptr<BounceMessage> message) {
  const MutexLock lock(stateMutex_);
  incoming_.push_back(std::move(message));
  hasIncoming_.store(true, std::memory_order_release);
}

void BounceLane::fail(const Status& why, bool tellPeer) {
  {
    const MutexLock lock(stateMutex_);
    if (!failure_.isOk()) return;
    failure_ = why;
    failed_.store(true, std::memory_order_seq_cst);  // before wake()
  }
  if (tellPeer) say_({.kind = LaneNote::Kind::kDeviceEnd, .code = why.code()});
  ground_.peer->progress().wake();
}

void BounceLane::takeEnd(const LaneNote& note) {
  fail(Status(note.code == Code::kOk ? Code::kClosed : note.code,
              "rank " + std::to_string(rank()) + " has ended its messages on streams"),
       /*tellPeer=*/false);
}

void BounceLane::retire() {
  retireRegion(ground_.area, {ground_.peer});
  const MutexLock lock(ringMutex_);
  if (ring_) retireRegion(ring_, {ground_.peer});
}

std::string BounceLane::describe() const {
  const uint64_t pending = pending_.load(std::memory_order_acquire);
  if (pending == 0) return {};
  return "streams, staged, rank " + std::to_string(rank()) + ": " + std::to_string(pending) +
         " messages under way";
}

}  // namespace peerlane
