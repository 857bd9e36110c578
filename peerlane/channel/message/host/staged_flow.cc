// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/staged_flow.h"

#include <algorithm>
#include <bit>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/message/host/message_run.h"
#include "peerlane/channel/protocol/staged_protocol.h"
#include "peerlane/memory/library_memory.h"

namespace peerlane {
namespace {

// In the receiver's program: wait, copy, credit.
constexpr size_t kCreditOp = 2;

}  // namespace

StagedRing StagedRing::within(uint64_t budget) {
  const uint64_t bytes = std::bit_floor(std::clamp(budget, kMinBytes, kMaxBytes));
  constexpr uint32_t kRingSlots = 8;
  return {kRingSlots, static_cast<uint32_t>(bytes / kRingSlots)};
}

StagedFlow::~StagedFlow() {
  // The locks below may be held for ever by threads that are not here.
  if (env_.peer->forked()) return;
  if (inRun_ && used_) used_->gate.leave();
  if (mailbox_ != nullptr && mailbox_->idle()) env_.peer->mailboxes().giveBack(mailbox_);
}

Status StagedFlow::open(Program program, Binding binding) {
  const auto needsAgent = [](const BoundTarget& target) {
    return target.address == nullptr && target.remote != nullptr;
  };
  if (std::any_of(binding.targets.begin(), binding.targets.end(), needsAgent))
    mailbox_ = env_.peer->mailboxes().borrow();
  binding.mailbox = mailbox_;
  PEERLANE_RETURN_IF_ERROR(program_.prepare(std::move(program), std::move(binding)));
  isOpen_ = true;
  return Status::ok();
}

Status StagedFlow::openSender(const StagedRing& ring,
                              const std::shared_ptr<ImportedRegion>& memory) {
  ring_ = ring;
  used_ = memory;
  Program program = stagedSender({.slots = ring.slots, .chunkBytes = ring.chunkBytes});
  program.targets[kStagedSenderPayload].late = true;
  Binding binding;
  binding.targets.resize(kStagedSenderTargets);
  binding.targets[kStagedSenderRing] = {.address = memory->memory.mapped,
                                        .bytes = memory->memory.grant.bytes,
                                        .remote = &memory->memory};
  binding.targets[kStagedSenderData] = env_.remote(LaneArea::kStagedDataOffset, 8);
  binding.targets[kStagedSenderCredit] = env_.local(LaneArea::kStagedCreditOffset, 8);
  return open(std::move(program), std::move(binding));
}

Status StagedFlow::openReceiver(const StagedRing& ring) {
  ring_ = ring;
  PEERLANE_ASSIGN(own_, makeLibraryMemory(env_.peer->regions(), ring.bytes()));
  Program program = stagedReceiver({.slots = ring.slots, .chunkBytes = ring.chunkBytes});
  program.targets[kStagedReceiverBuffer].late = true;
  Binding binding;
  binding.targets.resize(kStagedReceiverTargets);
  binding.targets[kStagedReceiverRing] = {.address = own_->base, .bytes = own_->bytes};
  binding.targets[kStagedReceiverData] = env_.local(LaneArea::kStagedDataOffset, 8);
  binding.targets[kStagedReceiverCredit] = env_.remote(LaneArea::kStagedCreditOffset, 8);
  return open(std::move(program), std::move(binding));
}

void StagedFlow::give(uint64_t bytes, Answer& answer) {
  answer.access = own_->access;
  answer.chunkBytes = ring_.chunkBytes;
  answer.allocation = own_->allocation;
  answer.generation = own_->generation;
  answer.regionBytes = own_->bytes;
  answer.position = chunksGiven_;
  chunksGiven_ += ring_.chunksOf(bytes);
}

void StagedFlow::begin(const MessageItem& item) {
  memory_ = {.address = item.address, .bytes = item.bytes, .mayBeCut = item.mayBeCut()};
  bytes_ = item.bytes;
  firstChunk_ = nextChunk();
  chunk_ = 0;
  chunks_ = ring_.chunksOf(bytes_);
}

// One execution moves one chunk; the size bound here cuts the last one.
Status StagedFlow::bind(TargetId /*payload or buffer*/, BoundTarget& out) {
  out = memory_;
  if (memory_.bytes == 0) return Status::ok();
  const uint64_t offset = chunk_ * ring_.chunkBytes;
  out.address += offset;
  out.bytes = std::min<uint64_t>(bytes_ - offset, ring_.chunkBytes);
  return Status::ok();
}

Status StagedFlow::startChunk() {
  if (inRun_) return Status::ok();
  if (used_ && !used_->gate.enter())
    return Status(Code::kClosed, "the staging ring of the peer is gone");
  const uint64_t cursor = nextChunk();
  run_.start(program_, {&cursor, 1}, {}, this);
  inRun_ = true;
  return Status::ok();
}

// A run has ended: is its chunk where it belongs?
Status StagedFlow::endChunk() {
  inRun_ = false;
  if (used_) used_->gate.leave();
  const bool isMoved = run_.code() == Code::kOk || (!needsCredits_ && run_.opIndex() >= kCreditOp);
  if (!isMoved) return Status(run_.code(), "the staging ring broke");
  ++chunk_;
  return Status::ok();
}

Result<StagedFlow::Step> StagedFlow::advance(const MessageItem* item, uint64_t& budgetBytes,
                                             bool& moved, bool& hungry) {
  if (!running() && item != nullptr) begin(*item);
  while (running()) {
    PEERLANE_RETURN_IF_ERROR(startChunk());
    if (budgetBytes == 0) {
      hungry = true;
      return Step::kUnderWay;
    }
    const size_t before = run_.opIndex();
    const uint64_t bytesBefore = run_.bytesMoved();
    const cpu::Step step = run_.advance(budgetBytes);
    budgetBytes -= std::min(budgetBytes, run_.bytesMoved() - bytesBefore);
    const bool gotOn = run_.opIndex() != before || run_.bytesMoved() != bytesBefore;
    moved |= gotOn;
    if (step != cpu::Step::kEnded) {
      hungry |= step == cpu::Step::kMore || goesOn(mailbox_, gotOn);
      return Step::kUnderWay;
    }
    moved = true;
    const Status ended = endChunk();
    // A second time it can only be the ring's memory that is gone.
    if (ended.code() == Code::kRevoked && memory_.bytes != 0) {
      memory_ = {};
      return Step::kLost;
    }
    PEERLANE_RETURN_IF_ERROR(ended);
  }
  return Step::kPassed;
}

bool StagedFlow::abandon(Code code) {
  if (!inRun_) return true;
  run_.cancel(code);
  // Its chunk is there, and counts: advance() goes on from here once the agent has let go.
  if (!needsCredits_ && run_.opIndex() >= kCreditOp) return false;
  if (run_.advance(0) != cpu::Step::kEnded) return false;
  (void)endChunk();
  return true;
}

}  // namespace peerlane
