// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/triggered_core.h"

#include <bit>
#include <utility>

namespace peerlane {
namespace {

using State = MadeState::State;

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

Status checkCount(const char* name, uint32_t count) {
  if (std::has_single_bit(count) && count >= 2 && count <= 1024) return Status::ok();
  return invalid("TriggerOptions::" + std::string(name) + " is " + std::to_string(count) +
                 "; a power of two from 2 to 1024 would do");
}

const Program& emptyProgram() {
  static const Program empty;
  return empty;
}

std::string nameOf(uint64_t number) {
  return "commit " + std::to_string(number);
}

Status tooManyOps(const char* what, uint64_t needs, uint32_t most) {
  return invalid("the program of this " + std::string(what) + " has " + std::to_string(needs) +
                 " ops; there is room for " + std::to_string(most));
}

}  // namespace

Result<std::shared_ptr<TriggeredCore>> TriggeredCore::create(std::shared_ptr<PeerCore> peer,
                                                             const TriggerOptions& options) {
  PEERLANE_RETURN_IF_ERROR(peer->usable());
  PEERLANE_RETURN_IF_ERROR(checkCount("operations", options.operations));
  PEERLANE_RETURN_IF_ERROR(checkCount("commits", options.commits));
  auto core = std::make_shared<TriggeredCore>(std::move(peer), options);
  if (options.device.kind != DeviceKind::kHost) {
    PEERLANE_ASSIGN(DeviceExecutor* const executor, core->peer_->executor(options.device));
    core->stream_ = std::make_unique<TriggerStream>(*executor, core->peer_->progress());
  }
  if (Status begun = core->batch_.begin(); !begun.isOk()) {
    if (core->doorbell_.isOpen()) core->close();
    return begun;
  }
  return core;
}

// An engine that stopped drops its tasks.
TriggeredCore::~TriggeredCore() {
  if (peer_->forked()) return;
  expectStores(false);
  if (stream_ && !stream_->isIdle()) health_.fail(Status(Code::kClosed, "the context was closed"));
}

TriggeredCore::TriggeredCore(std::shared_ptr<PeerCore> peer, const TriggerOptions& options)
    : peer_(std::move(peer)), options_(options), commits_(options.commits) {}

// What the links still have in their hands keeps the queue alive as a task.
void TriggeredCore::close() {
  if (peer_->forked()) return;  // the locks below may be held for ever by threads that are not here
  batch_.discard();
  fail(Status(Code::kClosed, "the last handle of the triggered queue is gone"));
  doorbell_.close();
  isClosed_.store(true, std::memory_order_release);
  settle();
  if (isIdle()) return batch_.end();
  if (peer_->failureCode() != Code::kClosed) becomeTask();
}

Status TriggeredCore::usable() const {
  PEERLANE_RETURN_IF_ERROR(peer_->usable());
  return health_.status();
}

// --- Poster ---

// A queue that has failed lets go of what no other thread may let go of.
Status TriggeredCore::usableByPoster() {
  Status is = usable();
  if (is.isOk() || peer_->forked()) return is;
  if (!health_.hasFailed() && is.code() == Code::kPeerSilent) return is;  // may be heard again
  if (!health_.hasFailed()) fail(is);
  batch_.discard();
  settle();
  return is;
}

Result<PostedBatch*> TriggeredCore::posting() {
  PEERLANE_RETURN_IF_ERROR(usableByPoster());
  batch_.beginPost();
  const bool isQuiet = batch_.empty() && launched_.load(std::memory_order_acquire) == 0 &&
                       nextEnqueued_.load(std::memory_order_acquire) == nextCommit_;
  if (batch_.isTableFull() && isQuiet) batch_.forgetMemory();
  return &batch_;
}

CommitSlot* TriggeredCore::slotOf(uint64_t number) {
  CommitSlot& slot = placeOf(number);
  return slot.number == number && slot.state.state() != State::kFree ? &slot : nullptr;
}

// The one for the next number. It is in use as long as its arrivals are awaited.
Result<CommitSlot*> TriggeredCore::freeSlot() {
  CommitSlot& slot = placeOf(nextCommit_);
  if (slot.state.state() == State::kFree) return &slot;
  settlePeeks();
  settle();
  if (slot.peeks != 0 || !isComplete(slot) || slot.state.settled() != State::kEnded)
    return Status(Code::kTryAgain, nameOf(slot.number) + " and the " +
                                       std::to_string(commits_.size() - 1) +
                                       " after it are under way; wait for one, or create the "
                                       "queue with more (TriggerOptions::commits)");
  batch_.recycle(slot.works);
  slot.state.free();
  return &slot;
}

Result<TriggerProgram> TriggeredCore::commit(uint32_t mostOps) {
  PEERLANE_RETURN_IF_ERROR(usableByPoster());
  if (batch_.empty()) return TriggerProgram{{nextCommit_ - 1, 0}, &emptyProgram()};
  const uint32_t ops = batch_.ops();
  if (ops > mostOps) return tooManyOps("commit", ops, mostOps);
  PEERLANE_ASSIGN(CommitSlot* const slot, freeSlot());
  slot->number = nextCommit_;
  slot->isGood = false;
  PEERLANE_RETURN_IF_ERROR(batch_.moveTo(*slot));
  ++nextCommit_;
  slot->state.make(++makings_);
  return TriggerProgram{{slot->number, makings_},
                        ops == 0 ? &emptyProgram() : &slot->ready.program()};
}

Status TriggeredCore::rollback(const TriggerId& commit) {
  if (commit.making == 0) return Status::ok();  // it was empty
  const std::string name = nameOf(commit.number);
  if (!batch_.empty())
    return invalid(name + " is not the last thing: discard() first what was posted after it");
  if (commit.number + 1 != nextCommit_)
    return invalid(name + " is not the last one, which is " + nameOf(nextCommit_ - 1));
  CommitSlot& slot = placeOf(commit.number);
  settlePeeks();
  if (slot.peeks != 0) return invalid(name + ": a peek waits for it; abort that first");
  // Partner: enqueueCommit(). One of the two gets it.
  if (!slot.state.go(commit.making, State::kMade, State::kFree))
    return invalid(name + (slot.state.making() == commit.making
                               ? " was enqueued and cannot be taken back"
                               : " was taken back before and made anew"));
  batch_.takeBack(slot);
  --nextCommit_;
  return Status::ok();
}

uint32_t TriggeredCore::peekOps(uint64_t number) const {
  const CommitSlot& slot = commits_[number & (commits_.size() - 1)];
  const bool isThere = slot.number == number && slot.state.state() != State::kFree;
  return kPeekOps + (isThere ? static_cast<uint32_t>(slot.arrivals.size()) : 0);
}

void TriggeredCore::settlePeeks() {
  peeks_.settle([this](uint64_t number) {
    if (CommitSlot* const slot = slotOf(number)) --slot->peeks;
  });
}

Result<TriggerProgram> TriggeredCore::peek(uint64_t number, uint32_t mostOps) {
  PEERLANE_RETURN_IF_ERROR(usableByPoster());
  if (number >= nextCommit_)
    return invalid("a peek of " + nameOf(number) + "; " + std::to_string(nextCommit_ - 1) +
                   " are made");
  if (const uint32_t ops = peekOps(number); ops > mostOps) return tooManyOps("peek", ops, mostOps);
  settlePeeks();
  return peeks_.make(number, slotOf(number), ++makings_);
}

Status TriggeredCore::abortPeek(const TriggerId& peek) {
  PEERLANE_ASSIGN(const uint64_t number, peeks_.abort(peek));
  if (CommitSlot* const slot = slotOf(number)) --slot->peeks;
  return Status::ok();
}

Status TriggeredCore::poll(uint64_t number) {
  if (peer_->forked()) return usable();
  if (number >= nextCommit_)
    return invalid(nameOf(number) + "; " + std::to_string(nextCommit_ - 1) + " are made");
  settlePeeks();
  settle();
  if (const CommitSlot* const slot = slotOf(number); slot != nullptr && !isComplete(*slot)) {
    PEERLANE_RETURN_IF_ERROR(usableByPoster());
    return Status(Code::kTryAgain, nameOf(number) + " is not complete");
  }
  if (peeks_.isUnderWay(number))
    return Status(Code::kTryAgain, "a peek of " + nameOf(number) + " is under way");
  return Status::ok();
}

// --- Executor ---

// Since it was made.
Status TriggeredCore::whyRevoked(const CommitSlot& slot) {
  if (slot.seenRevocations == UseGate::revocations()) return Status::ok();
  for (const auto& work : slot.works)
    if (Status revoked = work->whyRevoked(); !revoked.isOk()) return revoked;
  return Status::ok();
}

// Nobody else has the slot until it is given to the executor or ends.
Status TriggeredCore::take(const TriggerId& id) {
  PEERLANE_RETURN_IF_ERROR(usable());
  const uint64_t next = nextEnqueued_.load(std::memory_order_relaxed);
  CommitSlot& slot = placeOf(id.number);
  if (slot.state.is(id.making, State::kMade) && id.number != next)
    return invalid(nameOf(id.number) + " cannot be enqueued before " + nameOf(next));
  // Partner: rollback().
  if (!slot.state.go(id.making, State::kMade, State::kRunning)) {
    PEERLANE_RETURN_IF_ERROR(usable());  // a failure in between has ended it
    return invalid(nameOf(id.number) + " was enqueued, has ended or was taken back before");
  }
  nextEnqueued_.store(next + 1, std::memory_order_release);
  launched_.fetch_add(1, std::memory_order_seq_cst);
  if (Status revoked = whyRevoked(slot); !revoked.isOk()) {
    fail(revoked);
    end(slot, id.making, State::kRunning, false);
    return revoked;
  }
  if (batch_.isDoorbell()) doorbell_.allow(slot.last.load(std::memory_order_relaxed));
  if (stream_) doorbell_.expect(slot.arrivals);
  return Status::ok();
}

// The executor has it: settle() ends it.
void TriggeredCore::give(CommitSlot& slot) {
  slot.state.go(slot.state.making(), State::kRunning, State::kEnqueued);
  // A failure that came before this saw nothing to stay for.
  if (batch_.isDoorbell() || stream_ || health_.hasFailed()) becomeTask();
}

Status TriggeredCore::enqueueCommit(const TriggerId& id) {
  if (id.making == 0) return usable();  // it is empty
  PEERLANE_RETURN_IF_ERROR(take(id));
  CommitSlot& slot = placeOf(id.number);
  slot.ready.run.ticket.store(TriggerStream::Run::kElsewhere, std::memory_order_release);
  give(slot);
  return Status::ok();
}

Status TriggeredCore::runsOn(bool byDevice) const {
  if (byDevice == (stream_ != nullptr)) return Status::ok();
  return invalid("the programs of this queue run " +
                 (stream_ ? "on streams of " + options_.device.toString()
                          : std::string("on threads of the CPU")) +
                 " (TriggerOptions::device)");
}

// The stream may refuse it: then the commit cannot run any more, and what was posted with it is
// lost.
Status TriggeredCore::enqueueCommit(const TriggerId& id, DeviceStream stream) {
  PEERLANE_RETURN_IF_ERROR(runsOn(true));
  if (id.making == 0) return usable();
  PEERLANE_RETURN_IF_ERROR(take(id));
  CommitSlot& slot = placeOf(id.number);
  Status enqueued;
  if (!slot.ready.program().ops.empty())
    enqueued = stream_->enqueue(slot.ready.run, stream, TriggerStream::Clock::time_point::max());
  if (enqueued.isOk()) {
    give(slot);
  } else {
    fail(enqueued);
    end(slot, id.making, State::kRunning, false);
  }
  return enqueued;
}

// Who waits for an arrival looks at the status word, and relies on the task for the peer's end.
Status TriggeredCore::enqueuePeek(const TriggerId& id) {
  PEERLANE_RETURN_IF_ERROR(usable());
  PEERLANE_RETURN_IF_ERROR(peeks_.enqueue(id));
  becomeTask();
  return Status::ok();
}

Status TriggeredCore::enqueuePeek(const TriggerId& id, DeviceStream stream,
                                  std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(runsOn(true));
  PEERLANE_RETURN_IF_ERROR(usable());
  PEERLANE_RETURN_IF_ERROR(peeks_.enqueue(id, stream, Progress::deadlineIn(timeout)));
  becomeTask();
  return Status::ok();
}

Status TriggeredCore::execute(const TriggerId& id) {
  PEERLANE_RETURN_IF_ERROR(runsOn(false));
  if (id.making == 0) return usable();
  PEERLANE_RETURN_IF_ERROR(take(id));
  CommitSlot& slot = placeOf(id.number);
  if (!slot.ready.program().ops.empty()) {
    PEERLANE_CHECK(slot.ready.onCpu.isStraight());
    slot.ready.onCpu.runStraight();
  }
  if (batch_.isDoorbell()) {
    const uint64_t last = slot.last.load(std::memory_order_relaxed);
    give(slot);
    doorbell_.prod();
    if (health_.isComplete(last)) settle();  // a turn that saw the end passed it over
    return Status::ok();
  }
  // A poison that came while it ran was overwritten.
  health_.failAgain();
  const bool isGood = !health_.hasFailed();
  end(slot, id.making, State::kRunning, isGood);
  return isGood ? Status::ok() : health_.status();
}

// What was seen to be complete stays so, whatever becomes of the queue.
Status TriggeredCore::executePeek(const TriggerId& id, std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(runsOn(false));
  Status waited = peeks_.execute(id, timeout);
  if (waited.isOk()) settle();
  // Without anything launched no turn of the engine would find it.
  if (const Code code = peer_->failureCode(); code != Code::kOk && code != Code::kPeerSilent)
    fail(peer_->failure());
  return waited;
}

// --- Ends ---

bool TriggeredCore::isComplete(const CommitSlot& slot) const {
  switch (slot.state.settled()) {
    case State::kEnded: return slot.isGood && health_.haveArrived(slot.arrivals);
    case State::kEnding:  // by another thread, which need not be done yet
    case State::kEnqueued: return health_.isReached(slot.last, slot.arrivals);
    default: return false;
  }
}

void TriggeredCore::becomeTask() {
  if (!isTask_.exchange(true, std::memory_order_seq_cst)) peer_->progress().add(shared_from_this());
}

Task::Turn TriggeredCore::turn() {
  if (!health_.hasFailed() && peer_->failureCode() != Code::kOk) fail(peer_->failure());
  if (stream_ && stream_->look() && !health_.hasFailed())
    fail(Status(Code::kTimeout, "a stream waited for a commit of a triggered queue to " +
                                    peer_->name() + " longer than it may; the stream goes on"));
  settle();
  expectStores(health_.hasFailed() && !isIdle() && !batch_.isDoorbell() && !stream_);
  if (!isIdle()) return Turn::kIdle;
  isTask_.store(false, std::memory_order_seq_cst);
  // What was enqueued meanwhile relied on this task.
  if (!isIdle() && !isTask_.exchange(true, std::memory_order_seq_cst)) return Turn::kIdle;
  return Turn::kFinished;
}

// An executor of one's own rings no bell after its store over a poison.
void TriggeredCore::expectStores(bool does) {
  if (std::exchange(expects_, does) == does) return;
  does ? peer_->progress().expectDeviceStores() : peer_->progress().deviceStoresSeen();
}

std::string TriggeredCore::describe() const {
  return "triggered queue to peer " + std::to_string(peer_->number()) + ": " +
         std::to_string(launched_.load(std::memory_order_relaxed)) +
         " commits under way, operations up to " + std::to_string(doorbell_.allowed()) +
         " enqueued";
}

// Of a queue that has failed: nothing of the commit will touch memory any more.
bool TriggeredCore::isDrained(const CommitSlot& slot, uint64_t last) const {
  if (stream_ && !isPassed(slot)) return false;
  if (batch_.isDoorbell()) return doorbell_.isDrained();
  if (stream_ && !slot.ready.run.isElsewhere()) return true;
  // Another executor may be about to run it: only its store of the count says that it did.
  return isClosed_.load(std::memory_order_acquire) || health_.wasStored(last);
}

// Ends what is complete, or can no longer run. Any thread.
void TriggeredCore::settle() {
  for (CommitSlot& slot : commits_) {
    // The poster may use the slot again at any moment: then end() finds another making.
    const auto [making, state] = slot.state.seen();
    const uint64_t last = slot.last.load(std::memory_order_acquire);
    if (state == State::kEnqueued && health_.isComplete(last) && isPassed(slot)) {
      end(slot, making, state, !health_.hasFailed());
    } else if (health_.hasFailed() &&
               (state == State::kMade || (state == State::kEnqueued && isDrained(slot, last)))) {
      end(slot, making, state, false);
    }
  }
  health_.failAgain();
}

void TriggeredCore::end(CommitSlot& slot, uint64_t making, State from, bool isGood) {
  if (!slot.state.go(making, from, State::kEnding)) return;
  if (!isGood) health_.explain(slot.works);
  for (const auto& work : slot.works) {
    if (isGood) work->count();
    work->leave();
  }
  slot.isGood = isGood;
  slot.state.go(making, State::kEnding, State::kEnded);
  if (from != State::kMade) launched_.fetch_sub(1, std::memory_order_seq_cst);
}

void TriggeredCore::wake() {
  if (peer_->forked()) return;
  if (doorbell_.isOpen()) return doorbell_.wake();
  const RemoteMemory& peers = peer_->slabs().peersMemory();
  if (peers.mapped == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: Bell::listen
  peer_->links().of(peers).traits().signalWaker.ring();
}

void TriggeredCore::fail(const Status& why) {
  if (peer_->forked()) return;
  settle();                                             // what is complete stays so
  if (doorbell_.isOpen()) doorbell_.abort(why.code());  // nothing more is begun once it is told
  health_.fail(why);
  if (doorbell_.isOpen()) (void)doorbell_.mailbox().serve();
  settle();
  // For the poison of a mapped queue, which the program of an executor may overwrite. Where the
  // context is closed its engine takes no task any more.
  if (!isIdle() && why.code() != Code::kClosed && peer_->failureCode() != Code::kClosed)
    becomeTask();
  peer_->progress().nudge();
}

}  // namespace peerlane
