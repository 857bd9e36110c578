// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/transfer_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "peerlane/channel/operation/host_stream.h"
#include "peerlane/channel/transfer/staged_transfer.h"
#include "peerlane/core/limits.h"
#include "peerlane/program/words/word.h"

namespace peerlane {
namespace {

// The most bytes that one turn moves before others have theirs, and before it looks for
// cancellation.
constexpr uint64_t kSliceBytes = uint64_t{8} << 20;

}  // namespace

std::shared_ptr<NotifyNumbers> NotifyNumbers::of(PeerCore& peer) {
  return peer.attachments().notifyNumbers.getOr([] { return std::make_shared<NotifyNumbers>(); });
}

Status NotifyNumbers::room() const {
  const uint32_t waiting = waiting_.load(std::memory_order_relaxed);
  if (waiting < limits::kNotificationsWaiting) return Status::ok();
  return Status(Code::kTryAgain,
                std::to_string(waiting) + " notifications wait for room at the peer, which has " +
                    std::to_string(limits::kNotificationSlots) + " that it did not take; at most " +
                    std::to_string(limits::kNotificationsWaiting) + " may wait");
}

std::string describeRun(const cpu::CpuProgram& program, const cpu::CpuRun& run) {
  const size_t ops = program.program().ops.size();
  if (run.opIndex() >= ops)
    return std::string(run.ended() ? "" : "waits for ") + "the agent's confirmation of all " +
           std::to_string(ops) + " ops of " + std::string(program.program().name);
  std::string text = std::string(program.program().name) + " op " +
                     std::to_string(run.opIndex() + 1) + " of " + std::to_string(ops);
  const std::byte* word = nullptr;
  uint64_t operand = 0;
  if (run.awaited(word, operand))
    text += ", waits for a word that is " + std::to_string(loadWord(word, Width::k64)) +
            " to reach " + std::to_string(operand);
  return text;
}

TransferCore::TransferCore(std::shared_ptr<PeerCore> peer, BlockProgram blocks, OwnedNotify notify,
                           bool isPart)
    : Operation(peer->progress()),
      peer_(std::move(peer)),
      blocks_(std::move(blocks)),
      notify_(std::move(notify)),
      isPart_(isPart) {}

TransferCore::~TransferCore() {
  // The locks below may be held for ever by threads that are not here.
  if (peer_->forked()) return;
  // Dropped by an engine that stopped: nothing runs any more.
  if (mailbox_ != nullptr && mailbox_->idle()) peer_->mailboxes().giveBack(mailbox_);
  leaveGates();
}

void TransferCore::leaveGates() {
  if (std::exchange(entered_, false)) blocks_.leave();
  if (std::exchange(slabEntered_, false)) peer_->peerSlab()->gate.leave();
}

Status TransferCore::begin(const std::shared_ptr<TransferCore>& transfer, HostStream* stream) {
  if (stream != nullptr) {
    transfer->countPending();
    transfer->isOnHostStream_ = true;
    stream->enqueue(transfer);
    return Status::ok();
  }
  transfer->claimNumber();
  transfer->advance(std::numeric_limits<uint64_t>::max());
  // Looked at before anybody else may advance it.
  if (transfer->refused_) return transfer->status();
  if (!transfer->done()) {
    transfer->countPending();
    transfer->progress_.addFor(transfer, transfer->mailbox_);
  }
  return Status::ok();
}

// A notification claims its number when it may begin: one that waits for others on a stream must
// not hold up those that are posted meanwhile.
void TransferCore::claimNumber() {
  if (notify_.hasMessage && !notifyNumber_) notifyNumber_ = NotifyNumbers::of(*peer_)->claim();
}

void TransferCore::countPending() {
  counted_ = true;
  if (notify_.hasMessage) NotifyNumbers::of(*peer_)->waits();
  peer_->pendingOperations().fetch_add(1, std::memory_order_relaxed);
}

void TransferCore::beginVoid(const std::shared_ptr<PeerCore>& peer, uint64_t number) {
  OwnedNotify nothing;
  nothing.hasMessage = true;
  nothing.header[0] = OwnedNotify::kVoid;
  auto filler = std::make_shared<TransferCore>(peer, BlockProgram(), std::move(nothing));
  filler->notifyNumber_ = number;
  filler->isFiller_ = true;
  (void)begin(filler, nullptr);
}

Code TransferCore::stopCode() const {
  return cancelled() ? Code::kCancelled : peer_->failureCode();
}

// What has not ended when its memory is taken back shall not hold that up. A post that ends at once
// is not looked at here. A turn must not look at all regions: there may be thousands of both.
void TransferCore::stopIfRevoked() {
  if (state_ != State::kRunning || run_.code() != Code::kOk) return;
  const uint64_t revocations = UseGate::revocations();
  if (std::exchange(seenRevocations_, revocations) == revocations) return;
  if (const Status revoked = blocks_.whyRevoked(); !revoked.isOk()) run_.cancel(revoked.code());
}

Task::Turn TransferCore::turn() {
  stopIfRevoked();
  const bool moved = advance(kSliceBytes);
  if (state_ == State::kEnded) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

bool TransferCore::advance(uint64_t budgetBytes) {
  if (state_ == State::kEnded) return false;
  if (state_ == State::kStaged) return advanceStaged();
  Code stop = stopCode();
  // A silent peer may come back, and then waits for this slot.
  if (isFiller_ && stop == Code::kPeerSilent) stop = Code::kOk;
  if (state_ == State::kImporting) {
    if (stop != Code::kOk) {
      refused_ = true;
      end(endStatus());
      return true;
    }
    // The session does not know yet that its link has failed: the next one carries it.
    if (isFiller_ && !wordsLink().health().isOk()) return false;
    if (!blocks_.imported(*peer_)) {
      Status failed = blocks_.importFailure();
      if (failed.isOk()) return false;
      if (failed.code() == Code::kNotSupported && beginStaged()) return true;
      end(failed);
      return true;
    }
    if (Status prepared = prepare(); !prepared.isOk()) {
      refused_ = true;
      end(prepared);
      return true;
    }
    state_ = State::kRunning;
  }
  if (stop != Code::kOk) run_.cancel(stop);
  const uint64_t before = run_.bytesMoved();
  const size_t opBefore = run_.opIndex();
  if (run_.advance(budgetBytes) != cpu::Step::kEnded)
    return run_.bytesMoved() != before || run_.opIndex() != opBefore;
  end(run_.code() == Code::kOk ? Status::ok() : endStatus());
  return true;
}

// That the owner's device does not take the memory is known only now. False: it is not that.
bool TransferCore::beginStaged() {
  const std::string why = blocks_.whyStaged(*peer_, {});
  if (why.empty()) return false;
  // The other one claims its own, once its bytes are there.
  if (notifyNumber_ && !peer_->over()) beginVoid(peer_, *notifyNumber_);
  notifyNumber_.reset();
  auto staged = StagedTransfer::post(peer_, std::move(blocks_), std::move(notify_), {}, why);
  blocks_ = BlockProgram();
  if (!staged.isOk()) {
    end(staged.status());
    return true;
  }
  isPart_ = true;
  staged_ = std::move(*staged);
  state_ = State::kStaged;
  return true;
}

bool TransferCore::advanceStaged() {
  if (cancelled()) staged_.cancel();
  if (!staged_.done()) return false;
  end(staged_.status());
  return true;
}

Status TransferCore::prepare() {
  // A peer that is gone has closed its gates as well, and is the better reason.
  const auto closed = [this](const Status& gate) {
    Status gone = peer_->failure();
    return gone.isOk() ? gate : gone;
  };
  if (Status entered = blocks_.enter(); !entered.isOk()) return closed(entered);
  entered_ = true;
  if (notify_.hasMessage || notify_.signal) {
    slabEntered_ = peer_->peerSlab()->gate.enter();
    if (!slabEntered_)
      return closed(Status(Code::kClosed, "the connection to the peer is being closed"));
  }
  words_ = &wordsLink();
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(blocks_.lower(*peer_, notify_, program, binding));
  for (const BoundTarget& target : binding.targets)
    if (target.address == nullptr && mailbox_ == nullptr) mailbox_ = peer_->mailboxes().borrow();
  binding.mailbox = mailbox_;
  PEERLANE_RETURN_IF_ERROR(
      program_.prepare(std::move(program), std::move(binding), &peer_->copier()));
  const uint64_t cursor = notifyNumber_.value_or(0);
  run_.start(program_, {&cursor, program_.program().cursorAdvance.size()});
  return Status::ok();
}

// Why the run ended early, with the sentence that belongs to it.
Status TransferCore::endStatus() const {
  if (cancelled())
    return Status(Code::kCancelled,
                  "the transfer was cancelled; its destination bytes are undefined");
  if (Status failure = peer_->failure(); !failure.isOk()) return failure;
  // A device may refuse memory that the peer takes back, before this side looks at the peer's word.
  if (run_.code() == Code::kRevoked || run_.code() == Code::kPermissionDenied)
    if (const Status revoked = blocks_.whyRevoked(); !revoked.isOk())
      return revoked.withContext("the bytes of the transfer are undefined");
  if (run_.code() == Code::kRevoked) return blocks_.whyGone();
  const Code code = run_.code() == Code::kOk ? Code::kInternal : run_.code();
  const Link* const by = blocks_.link(*peer_);
  const Link& link = by != nullptr ? *by : peer_->link();
  std::string text = link.traits().transport + " link to " + peer_->name() +
                     ": the transfer failed at " + describeRun(program_, run_);
  if (const Status health = link.health(); !health.isOk())
    text += "; the link itself failed (" + std::string(health.message()) +
            "), and what it had not confirmed may have arrived or not";
  return Status(code, text);
}

void TransferCore::end(const Status& status) {
  state_ = State::kEnded;
  leaveGates();
  if (mailbox_ != nullptr) peer_->mailboxes().giveBack(mailbox_);
  mailbox_ = nullptr;
  if (!isPart_) peer_->metrics().ended(status.code()).add();
  if (!isPart_ && status.isOk() && blocks_.bytes() > 0)
    peer_
        ->bytes(blocks_.link(*peer_), blocks_.engine(),
                blocks_.direction() == Direction::kPut ? "put" : "get")
        .add(blocks_.bytes());
  // A number is published by its program's last op: a run that failed did not come to it. Where the
  // link of a filler failed, another one waits for the next link.
  const bool canFollow = !isFiller_ || (words_ != nullptr && !words_->health().isOk());
  if (!status.isOk() && notifyNumber_ && canFollow && !peer_->over())
    beginVoid(peer_, *notifyNumber_);
  if (counted_ && notify_.hasMessage) NotifyNumbers::of(*peer_)->waitsNoMore();
  if (counted_) peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
  markEnded(status);
}

void TransferCore::runToEnd() {
  claimNumber();
  while (!done()) {
    const bool stopped = stopCode() != Code::kOk;
    stopIfRevoked();
    if (advance(kSliceBytes) || done()) continue;
    // Blocked: on an import, the peer's words, or an agent. Every one of them notifies; the look
    // itself is free of side effects, so that other threads may take it.
    const auto changed = [this, stopped] {
      const bool stop = stopCode() != Code::kOk;
      // Once the run knows, it waits only for entries that an agent still holds.
      if (stop) return !stopped || (mailbox_ != nullptr && mailbox_->idle());
      if (state_ == State::kImporting)
        return blocks_.imported(*peer_) || !blocks_.importFailure().isOk();
      if (state_ == State::kStaged) return staged_.done();
      const std::byte* word = nullptr;
      uint64_t operand = 0;
      if (run_.awaited(word, operand))
        return satisfies(loadWord(word, Width::k64), Compare::kGreaterEqual, operand, Width::k64);
      return mailbox_ != nullptr && mailbox_->idle();
    };
    // A lapse only means another look.
    const auto words = [this] { return "this to go on: " + nameInWords() + stageInWords(); };
    (void)progress_.wait(changed, Progress::deadlineIn(std::chrono::milliseconds(100)), words);
  }
}

// The peer's side of a notification that found no room. Empty: it waits for something else.
std::string TransferCore::untakenInWords() const {
  const std::byte* word = nullptr;
  uint64_t operand = 0;
  if (!run_.awaited(word, operand)) return {};
  const std::byte* const credits = peer_->slab() + slab::kCreditsOffset;
  if (word < credits || word >= credits + slab::kNotifySlots * slab::kWordStrideBytes) return {};
  return ": the peer has " + std::to_string(slab::kNotifySlots) +
         " notifications that it did not take (pollNotification, waitNotification)";
}

std::string TransferCore::nameInWords() const {
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Progress::Clock::now() - since_);
  return "transfer to " + peer_->name() + ", " + std::to_string(blocks_.bytes()) +
         " bytes, since " + std::to_string(age.count()) + " ms: ";
}

std::string TransferCore::stageInWords() const {
  if (state_ == State::kImporting) return "waits for the import of a region";
  if (state_ == State::kStaged) return "is staged through host memory, by another transfer";
  return describeRun(program_, run_) + untakenInWords();
}

std::string TransferCore::describe() const {
  if (isOnHostStream_) return nameInWords() + "on a host stream";
  return state_ == State::kEnded ? std::string() : nameInWords() + stageInWords();
}

}  // namespace peerlane
