// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_agent.h"

#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {

FrameAgent::FrameAgent(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
                       std::function<void()> workArrived, FrameFeatures peerKnows)
    : name_(std::move(name)),
      pipe_(std::move(pipe)),
      regions_(regions),
      workArrived_(std::move(workArrived)),
      receiver_(regions, lock_, sender_, peerKnows),
      sender_(peerKnows.trailers) {}

FrameAgent::~FrameAgent() {
  close(Code::kClosed);
}

Served FrameAgent::serve(AgentWork& work) {
  FrameEffects effects;
  Served served = Served::kAgain;
  {
    const MutexLock lock(lock_);
    rest_ = Rest::kUnknown;
    served = serveLocked(work, effects);
    isIdle_.store(sender_.isIdle(), std::memory_order_relaxed);
  }
  settle(effects);
  return served;
}

Status FrameAgent::pump(FrameEffects& effects, size_t& moved) {
  PEERLANE_ASSIGN(const size_t bytes, sender_.pump(*pipe_, kTurnBytes, effects));
  moved += bytes;
  // What does not fit goes out when there is room, which brings a poll about.
  if (!sender_.owes() || !pipe_->writable()) setOwing(false);
  return Status::ok();
}

void FrameAgent::setOwing(bool owes) {
  if (std::exchange(owes_, owes) != owes) pipe_->setOwing(owes);
}

Served FrameAgent::serveLocked(AgentWork& work, FrameEffects& effects) {
  size_t moved = 0;
  // Works that began earlier go first; a frame that is half written is continued here, too. A small
  // one that was cut completely leaves together with this one.
  if (failure_.isOk() && (!sender_.mayBegin(work) || !sender_.hasRoom()))
    if (failure_ = pump(effects, moved); !failure_.isOk())
      effects.wake = true;  // poll() ends the works taken
  if (!failure_.isOk()) {
    work.code.store(failure_.code(), std::memory_order_relaxed);
    return Served::kDone;
  }
  if (!sender_.mayBegin(work)) return Served::kAgain;
  const FrameSender::Tie tie = sender_.tieOf(work);
  if (tie.mustWait) return Served::kAgain;
  if (tie.code != Code::kOk) {
    work.code.store(tie.code, std::memory_order_relaxed);
    return Served::kDone;
  }
  if (!pipe_->writable()) {
    pipeRefused_ = true;
    return Served::kAgain;
  }
  sender_.begin(work);
  // The next entry comes at once, and may go with the same call of the system.
  if (work.mailbox->hasMore(work) && sender_.cutWholly(effects)) return Served::kSent;
  if (work.entry->mayLinger && pipe_->mayOwe() && sender_.cutWholly(effects)) {
    setOwing(true);
    return Served::kSent;
  }
  failure_ = pump(effects, moved);
  if (mustGoOn()) effects.wake = true;
  return Served::kSent;
}

void FrameAgent::abandon(AgentWork& work, Code code) {
  FrameEffects effects;
  {
    const MutexLock lock(lock_);
    rest_ = Rest::kUnknown;
    if (failure_.isOk()) sender_.abandon(work, code, effects);  // else poll() ends everything
  }
  settle(effects);
}

// A poll must go on with what was begun.
bool FrameAgent::mustGoOn() const {
  return sender_.busy() || pipe_->hasUnsent() || !failure_.isOk();
}

bool FrameAgent::isQuiet() {
  if (!pollLock_.tryLock()) return false;
  bool is = false;
  {
    const MutexLock lock(lock_);
    is = rest_ == Rest::kNothing || (rest_ == Rest::kUntilRoom && !pipe_->writable());
    if (is) is = !sender_.mayUnpin(*pipe_);
  }
  if (is) is = !pipe_->readable();
  pollLock_.unlock();
  return is;
}

// Once a pipe is full, a poll that knows of it waits for room.
void FrameAgent::sendOwed() {
  FrameEffects effects;
  {
    const MutexLock lock(lock_);
    if (ended_ || !failure_.isOk() || !sender_.owes() || !pipe_->writable()) return;
    rest_ = Rest::kUnknown;
    payUp(effects);
    if (mustGoOn()) effects.wake = true;
  }
  settle(effects);
}

size_t FrameAgent::move() {
  FrameEffects effects;
  size_t moved = 0;
  Status failure;
  if (!pollLock_.tryLock()) return 0;
  failure = pollLocked(effects, moved);
  pollLock_.unlock();
  // A poll or a sender found the failure: either way this is the one log line about it. The session
  // judges and logs that the other end has gone; any other failure is a defect or an attack.
  if (failure.code() == Code::kPeerLost)
    PEERLANE_LOG_DEBUG("{} ended: {}", name_, failure.message());
  else if (!failure.isOk())
    PEERLANE_LOG_WARN("{} ended: {}", name_, failure.message());
  settle(effects);
  return moved;
}

// Returns the failure that ended the link, in the one call that ended it.
Status FrameAgent::pollLocked(FrameEffects& effects, size_t& moved) {
  Status failure;
  {
    const MutexLock lock(lock_);
    if (ended_) return {};
    failure = failure_;
  }
  receiver_.letGo(effects);
  size_t bytes = 0;
  // Also after a failed write: the peer may have answered before it went away.
  const Status readFailure = receiver_.pump(*pipe_, kTurnBytes, effects, bytes);
  moved += bytes;
  if (failure.isOk()) failure = readFailure;
  if (failure.isOk()) {
    const MutexLock lock(lock_);
    if (bytes != 0 && mayOwe(effects)) {
      setOwing(true);
    } else {
      failure = pump(effects, moved);
      // The rest of a long one: nothing that comes from outside would bring the next poll about.
      if (failure.isOk() && sender_.busy() && pipe_->writable()) effects.wake = true;
    }
    if (pipeRefused_ && pipe_->writable()) {
      pipeRefused_ = false;
      effects.wake = true;
    }
    isIdle_.store(sender_.isIdle(), std::memory_order_relaxed);
    noteRest(failure);
  }
  if (failure.isOk())
    pipe_->refresh();
  else
    end(failure, effects);
  return failure;
}

// refresh() follows, and must be called once more when there is room again.
void FrameAgent::noteRest(const Status& failure) {
  rest_ = Rest::kUnknown;
  if (!failure.isOk() || owes_) return;
  if (!pipe_->writable())
    rest_ = Rest::kUntilRoom;
  else if (!mustGoOn())
    rest_ = Rest::kNothing;
}

// The thread that waits for the word that has come may be about to answer, and the confirmation
// then goes with that. Once: what comes in a stream is confirmed in between.
bool FrameAgent::mayOwe(const FrameEffects& effects) const {
  return effects.stored && !owes_ && sender_.owesOnlyAnswers() && pipe_->mayOwe();
}

void FrameAgent::end(const Status& why, FrameEffects& effects) {
  const MutexLock lock(lock_);
  if (ended_) return;
  ended_ = true;
  rest_ = Rest::kUnknown;
  setOwing(false);
  if (failure_.isOk()) failure_ = why;
  sender_.endAll(failure_.code(), effects);
  receiver_.reset(effects);
  pipe_->close();
}

// What waits for company leaves before the end: others may count on it.
void FrameAgent::payUp(FrameEffects& effects) {
  size_t moved = 0;
  if (!ended_ && failure_.isOk() && sender_.owes()) failure_ = pump(effects, moved);
}

void FrameAgent::close(Code code) {
  FrameEffects effects;
  {
    const MutexLock turn(pollLock_);
    {
      const MutexLock lock(lock_);
      payUp(effects);
    }
    end(Status(code, name_ + " was closed"), effects);
  }
  settle(effects);
}

Status FrameAgent::health() const {
  const MutexLock lock(lock_);
  return failure_;
}

void FrameAgent::settle(FrameEffects& effects) {
  for (const std::string& text : effects.refused) PEERLANE_LOG_INFO("{}: {}", name_, text);
  for (const uint64_t allocation : effects.unpinned) regions_.unpin(allocation);
  for (const auto& [work, code] : effects.finished) Mailbox::finish(*work, code);
  if (effects.wake && workArrived_) workArrived_();
}

}  // namespace peerlane
