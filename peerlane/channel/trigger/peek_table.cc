// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/peek_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace peerlane {
namespace {

using State = MadeState::State;

Status isOver(const TriggerId& id) {
  return Status(Code::kInvalidArgument, "the peek of commit " + std::to_string(id.number) +
                                            " was enqueued, passed or aborted before");
}

}  // namespace

Result<TriggerProgram> PeekTable::make(uint64_t number, CommitSlot* slot, uint64_t making) {
  const auto found = std::find_if(peeks_.begin(), peeks_.end(), [](const PeekSlot& peek) {
    return peek.state.state() == State::kFree;
  });
  if (found == peeks_.end())
    return Status(Code::kTryAgain, std::to_string(peeks_.size()) +
                                       " peeks are under way, which is the most; run or abort one");
  found->number = number;
  found->last = slot == nullptr ? 0 : slot->last.load(std::memory_order_relaxed);
  found->arrivals = slot == nullptr ? std::vector<TriggerArrival>() : slot->arrivals;
  Program program;
  program.name = "peek";
  // A device waits for the word in which the server counts arrivals.
  const TriggerArrival counted{0, slot == nullptr ? 0 : slot->awaited};
  const bool isCounted = stream_ && !found->arrivals.empty();
  emitPeek(program, found->last,
           isCounted ? std::span(&counted, 1) : std::span<const TriggerArrival>(found->arrivals),
           static_cast<uint32_t>(found - peeks_.begin()), making);
  PEERLANE_RETURN_IF_ERROR(batch_.prepare(found->ready, std::move(program)));
  if (slot != nullptr) ++slot->peeks;
  found->state.make(making);
  return TriggerProgram{{number, making}, &found->ready.program()};
}

Result<uint64_t> PeekTable::abort(const TriggerId& id) {
  for (PeekSlot& peek : peeks_)
    if (peek.state.go(id.making, State::kMade, State::kFree)) return uint64_t{peek.number};
  return isOver(id);
}

bool PeekTable::isUnderWay(uint64_t number) const {
  return std::ranges::any_of(peeks_, [number](const PeekSlot& peek) {
    return peek.state.state() != State::kFree && peek.number == number;
  });
}

Status PeekTable::enqueue(const TriggerId& id, DeviceStream stream,
                          TriggerStream::Clock::time_point until) {
  for (PeekSlot& peek : peeks_) {
    // Nobody else has it until the stream has it.
    if (!peek.state.go(id.making, State::kMade, State::kRunning)) continue;
    Status enqueued = stream_->enqueue(peek.ready.run, stream, until);
    peek.state.go(id.making, State::kRunning, enqueued.isOk() ? State::kEnqueued : State::kMade);
    return enqueued;
  }
  return isOver(id);
}

Status PeekTable::enqueue(const TriggerId& id) {
  for (PeekSlot& peek : peeks_) {
    if (!peek.state.go(id.making, State::kMade, State::kRunning)) continue;
    peek.ready.run.ticket.store(TriggerStream::Run::kElsewhere, std::memory_order_release);
    peek.state.go(id.making, State::kRunning, State::kEnqueued);
    return Status::ok();
  }
  return isOver(id);
}

// Also one whose wait has timed out before. Nobody frees it before end().
PeekSlot* PeekTable::begin(const TriggerId& id) {
  for (size_t mark = 0; mark < peeks_.size(); ++mark) {
    MadeState& state = peeks_[mark].state;
    if (state.go(id.making, State::kMade, State::kRunning)) return &peeks_[mark];
    if (!state.is(id.making, State::kEnqueued) || wasPassed(mark)) continue;
    if (state.go(id.making, State::kEnqueued, State::kRunning)) return &peeks_[mark];
  }
  return nullptr;
}

Status PeekTable::execute(const TriggerId& id, std::chrono::nanoseconds timeout) {
  PeekSlot* const peek = begin(id);
  if (peek == nullptr) return isOver(id);
  Status status = run(*peek, timeout);
  const bool goesOn = status.code() == Code::kTimeout && !health_.hasFailed();
  // The last look at it: the poster may use the slot again.
  peek->state.go(id.making, State::kRunning, goesOn ? State::kEnqueued : State::kEnded);
  return status;
}

Status PeekTable::run(PeekSlot& peek, std::chrono::nanoseconds timeout) {
  const auto isReached = [&] { return health_.isReached(peek.last, peek.arrivals); };
  const auto isReleased = [&] {
    return isReached() || health_.hasFailed() || peer_.failureCode() != Code::kOk;
  };
  const auto words = [&] {
    return "commit " + std::to_string(peek.number) + " of a triggered queue to " + peer_.name() +
           "; operations up to " + std::to_string(health_.words().count.load()) + " of " +
           std::to_string(peek.last) + " are complete";
  };
  PEERLANE_RETURN_IF_ERROR(peer_.progress().wait(isReleased, timeout, words));
  if (!isReached()) return health_.hasFailed() ? health_.status() : peer_.failure();
  peek.run.start(peek.ready.onCpu, {});
  (void)peek.run.advance(UINT64_MAX);
  // Else the count was poisoned meanwhile.
  return peek.run.code() == Code::kOk ? Status::ok() : health_.status();
}

bool PeekTable::areEnqueued() const {
  for (size_t mark = 0; mark < peeks_.size(); ++mark)
    if (peeks_[mark].state.state() == State::kEnqueued && !wasPassed(mark)) return true;
  return false;
}

void PeekTable::forget(const TriggerId& id) {
  for (size_t mark = 0; mark < peeks_.size(); ++mark)
    if (peeks_[mark].state.is(id.making, State::kEnqueued))
      passedWord(mark).store(id.making, std::memory_order_release);
}

}  // namespace peerlane
