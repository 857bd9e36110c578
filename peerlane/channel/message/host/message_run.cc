// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_run.h"

#include <limits>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "peerlane/channel/transfer/transfer_core.h"

namespace peerlane {
namespace {

// The late binding decides how much is copied.
constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();

void markLate(Program& program, std::initializer_list<TargetId> targets) {
  for (const TargetId target : targets) program.targets[target].late = true;
}

// Puts a second copy of op `wait` after op `behind`.
void confirmBehind(Program& program, size_t behind, size_t wait) {
  const Op op = program.ops[wait];
  PEERLANE_CHECK(op.code == OpCode::kWait);
  program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(behind + 1), op);
}

Program part(const Program& whole, size_t first, size_t last) {
  Program cut = whole;
  cut.ops.assign(whole.ops.begin() + static_cast<std::ptrdiff_t>(first),
                 whole.ops.begin() + static_cast<std::ptrdiff_t>(last));
  return cut;
}

// Index of the wait for the answer in the sender of rendezvous-put.
constexpr size_t kPutSenderWait = kRendezvousPutSenderPayloadOp - 1;

}  // namespace

Result<std::unique_ptr<LanePrograms>> LanePrograms::makeSender(const LaneEnvironment& env,
                                                               std::byte* free, Mailbox* mailbox) {
  const MessageLane lane{LaneEnd::kSlots, LaneArea::strideBytes(env.peerEagerBytes)};
  Binding binding;
  binding.mailbox = mailbox;
  binding.targets.resize(kSenderTargets);
  binding.targets[kSenderInbox] =
      env.remote(LaneArea::kInboxOffset, uint64_t{lane.slots} * lane.inboxStrideBytes);
  binding.targets[kSenderAnswers] =
      env.local(LaneArea::kAnswersOffset, uint64_t{lane.slots} * kAnswerSlotBytes);
  binding.targets[kSenderFree] = {.address = free, .bytes = uint64_t{lane.slots} * kWordSlotBytes};
  binding.targets[kSenderPeerDone] =
      env.remote(LaneArea::kDoneOffset, uint64_t{lane.slots} * kWordSlotBytes);
  const auto prepare = [&](cpu::CpuProgram& prepared, Program program) {
    markLate(program, {kSenderEnvelope, kSenderPayload, kSenderAnswer});
    return prepared.prepare(std::move(program), binding, &env.peer->copier());
  };
  auto programs = std::make_unique<LanePrograms>();
  PEERLANE_RETURN_IF_ERROR(
      prepare(programs->eager, eagerSender({.lane = lane, .payloadBytes = env.peerEagerBytes})));
  Program put = rendezvousPutSender({.lane = lane, .payloadBytes = kAnySize});
  PEERLANE_RETURN_IF_ERROR(prepare(programs->putHead, part(put, 0, kPutSenderWait)));
  confirmBehind(put, kRendezvousPutSenderPayloadOp, kPutSenderWait);
  PEERLANE_RETURN_IF_ERROR(prepare(programs->putTail, part(put, kPutSenderWait, put.ops.size())));
  PEERLANE_CHECK(programs->putTail.program().ops[kPutTailDoneOp].to.target == kSenderPeerDone);
  return programs;
}

Result<std::unique_ptr<LanePrograms>> LanePrograms::makeReceiver(const LaneEnvironment& env,
                                                                 Mailbox* mailbox) {
  const MessageLane lane{LaneEnd::kSlots, LaneArea::strideBytes(env.eagerBytes)};
  Binding binding;
  binding.mailbox = mailbox;
  binding.targets.resize(kReceiverTargets);
  binding.targets[kReceiverInbox] =
      env.local(LaneArea::kInboxOffset, uint64_t{lane.slots} * lane.inboxStrideBytes);
  binding.targets[kReceiverPeerAnswers] =
      env.remote(LaneArea::kAnswersOffset, uint64_t{lane.slots} * kAnswerSlotBytes);
  binding.targets[kReceiverDone] =
      env.local(LaneArea::kDoneOffset, uint64_t{lane.slots} * kWordSlotBytes);
  auto programs = std::make_unique<LanePrograms>();
  PEERLANE_RETURN_IF_ERROR(programs->eager.prepare(
      eagerReceiver({.lane = lane, .payloadBytes = env.eagerBytes}), binding));
  Program get = rendezvousGetReceiver({.lane = lane, .payloadBytes = kAnySize});
  confirmBehind(get, kRendezvousGetReceiverPayloadOp, 0);
  PEERLANE_RETURN_IF_ERROR(programs->get.prepare(std::move(get), binding, &env.peer->copier()));
  PEERLANE_RETURN_IF_ERROR(programs->put.prepare(
      rendezvousPutReceiver({.lane = lane, .payloadBytes = kAnySize}), binding));
  return programs;
}

bool goesOn(Mailbox* mailbox, bool gotOn) {
  if (mailbox == nullptr || mailbox->idle()) return false;
  return mailbox->serve() || (gotOn && !mailbox->isInAgentsHands());
}

MessageRun::~MessageRun() {
  // The locks below may be held for ever by threads that are not here.
  if (peer_.forked()) return;
  if (used_) used_->gate.leave();
  if (mailbox_ != nullptr && mailbox_->idle()) peer_.mailboxes().giveBack(mailbox_);
}

Status MessageRun::use(const std::shared_ptr<ImportedRegion>& region) {
  PEERLANE_CHECK(!used_);
  if (!region->gate.enter()) {
    // A peer that is gone has closed its gates as well, and is the better reason.
    PEERLANE_RETURN_IF_ERROR(peer_.failure());
    return region->whyClosed();
  }
  used_ = region;
  engine_ = region->memory.engine;
  return Status::ok();
}

bool MessageRun::advance(uint64_t budgetBytes, bool& moved, bool& hungry) {
  const size_t before = run_.opIndex();
  const uint64_t bytes = run_.bytesMoved();
  const cpu::Step step = run_.advance(budgetBytes);
  const bool gotOn =
      step == cpu::Step::kEnded || run_.opIndex() != before || run_.bytesMoved() != bytes;
  moved |= gotOn;
  if (step != cpu::Step::kEnded) {
    hungry |= step == cpu::Step::kMore || goesOn(mailbox_, gotOn);
    return false;
  }
  if (used_) used_->gate.leave();
  used_.reset();
  return true;
}

std::string MessageRun::describe() const {
  return program_ == nullptr ? std::string("not begun") : describeRun(*program_, run_);
}

}  // namespace peerlane
