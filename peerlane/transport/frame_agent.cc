// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_agent.h"

#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {

FrameAgent::FrameAgent(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
                       std::function<void()> workArrived)
    : name_(std::move(name)),
      pipe_(std::move(pipe)),
      regions_(regions),
      workArrived_(std::move(workArrived)),
      receiver_(regions, lock_, sender_) {}

FrameAgent::~FrameAgent() {
  close(Code::kClosed);
}

Served FrameAgent::serve(AgentWork& work) {
  FrameEffects effects;
  Served served = Served::kAgain;
  {
    const MutexLock lock(lock_);
    served = serveLocked(work, effects);
  }
  settle(effects);
  return served;
}

Served FrameAgent::serveLocked(AgentWork& work, FrameEffects& effects) {
  // Works that began earlier go first; a frame that is half written is continued here, too.
  if (failure_.isOk()) {
    if (Result<size_t> moved = sender_.pump(*pipe_, kTurnBytes, effects); !moved) {
      failure_ = moved.status();
      effects.wake = true;  // poll() ends the works taken
    }
  }
  if (!failure_.isOk()) {
    work.code.store(failure_.code(), std::memory_order_relaxed);
    return Served::kDone;
  }
  if (!sender_.mayBegin(work)) return Served::kAgain;
  if (!pipe_->writable()) {
    pipeRefused_ = true;
    return Served::kAgain;
  }
  sender_.begin(work);
  if (Result<size_t> moved = sender_.pump(*pipe_, kTurnBytes, effects); !moved)
    failure_ = moved.status();
  if (sender_.busy() || !failure_.isOk()) effects.wake = true;  // poll() goes on
  return Served::kSent;
}

void FrameAgent::abandon(AgentWork& work, Code code) {
  FrameEffects effects;
  {
    const MutexLock lock(lock_);
    if (failure_.isOk()) sender_.abandon(work, code, effects);  // else poll() ends everything
  }
  settle(effects);
}

bool FrameAgent::poll() {
  FrameEffects effects;
  bool moved = false;
  Status failure;
  if (!pollLock_.tryLock()) return false;
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
Status FrameAgent::pollLocked(FrameEffects& effects, bool& moved) {
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
  moved |= bytes != 0;
  if (failure.isOk()) failure = readFailure;
  if (failure.isOk()) {
    const MutexLock lock(lock_);
    Result<size_t> written = sender_.pump(*pipe_, kTurnBytes, effects);
    if (!written) failure = written.status();
    moved |= written && *written != 0;
    if (pipeRefused_ && pipe_->writable()) {
      pipeRefused_ = false;
      effects.wake = true;
    }
  }
  if (failure.isOk())
    pipe_->refresh();
  else
    end(failure, effects);
  return failure;
}

void FrameAgent::end(const Status& why, FrameEffects& effects) {
  const MutexLock lock(lock_);
  if (ended_) return;
  ended_ = true;
  if (failure_.isOk()) failure_ = why;
  sender_.endAll(failure_.code(), effects);
  receiver_.reset(effects);
  pipe_->close();
}

void FrameAgent::close(Code code) {
  FrameEffects effects;
  {
    const MutexLock turn(pollLock_);
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
  if ((effects.wake || !effects.finished.empty()) && workArrived_) workArrived_();
}

}  // namespace peerlane
