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
  found->last = slot == nullptr ? 0 : slot->last;
  found->arrivals = slot == nullptr ? std::vector<TriggerArrival>() : slot->arrivals;
  Program program;
  program.name = "peek";
  emitPeek(program, found->last, found->arrivals, static_cast<uint32_t>(found - peeks_.begin()),
           making);
  PEERLANE_RETURN_IF_ERROR(batch_.prepare(found->program, std::move(program)));
  if (slot != nullptr) ++slot->peeks;
  found->state.make(making);
  return TriggerProgram{{number, making}, &found->program.program()};
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

Status PeekTable::enqueue(const TriggerId& id) {
  for (PeekSlot& peek : peeks_)
    if (peek.state.go(id.making, State::kMade, State::kEnqueued)) return Status::ok();
  return isOver(id);
}

// Also one whose wait has timed out before.
PeekSlot* PeekTable::begin(const TriggerId& id) {
  for (size_t mark = 0; mark < peeks_.size(); ++mark) {
    MadeState& state = peeks_[mark].state;
    if (state.go(id.making, State::kMade, State::kEnqueued)) return &peeks_[mark];
    if (state.is(id.making, State::kEnqueued) &&
        passedWord(mark).load(std::memory_order_acquire) != id.making)
      return &peeks_[mark];
  }
  return nullptr;
}

Status PeekTable::execute(const TriggerId& id, std::chrono::nanoseconds timeout) {
  PeekSlot* const peek = begin(id);
  if (peek == nullptr) return isOver(id);
  const auto isReached = [&] { return health_.isReached(peek->last, peek->arrivals); };
  const auto isReleased = [&] {
    return isReached() || health_.hasFailed() || peer_.failureCode() != Code::kOk;
  };
  const auto words = [&] {
    return "commit " + std::to_string(peek->number) + " of a triggered queue to " + peer_.name() +
           "; operations up to " + std::to_string(health_.words().count.load()) + " of " +
           std::to_string(peek->last) + " are complete";
  };
  PEERLANE_RETURN_IF_ERROR(peer_.progress().wait(isReleased, timeout, words));
  if (!isReached()) {
    forget(id);
    return health_.hasFailed() ? health_.status() : peer_.failure();
  }
  peek->run.start(peek->program, {});
  (void)peek->run.advance(UINT64_MAX);
  if (peek->run.code() == Code::kOk) return Status::ok();
  forget(id);  // the count was poisoned meanwhile
  return health_.status();
}

void PeekTable::forget(const TriggerId& id) {
  for (size_t mark = 0; mark < peeks_.size(); ++mark)
    if (peeks_[mark].state.is(id.making, State::kEnqueued))
      passedWord(mark).store(id.making, std::memory_order_release);
}

}  // namespace peerlane
