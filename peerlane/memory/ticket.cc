// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/ticket.h"

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/core/deadline.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/invalidation.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/process.h"

namespace peerlane {
struct InvalidationTicket::State {
  Mutex mutex;
  Condition changed;
  bool isInvalidated PEERLANE_GUARDED_BY(mutex) = false;
  bool isDrained PEERLANE_GUARDED_BY(mutex) = false;
  std::optional<std::thread::id> drainer PEERLANE_GUARDED_BY(mutex);  // a thread that calls `drain`
  Drain drain PEERLANE_GUARDED_BY(mutex);
};

// Of all contexts of the process, so that a provider needs to know none of them. A forked child
// has one of its own: a thread of its parent may have held the lock of the other.
struct InvalidationTicket::Table {
  explicit Table(uint64_t number) : first(number), next(number) {}

  const uint64_t forks = forkGeneration();
  const uint64_t first;
  std::atomic<uint64_t> next;
  Mutex mutex;
  std::map<uint64_t, std::shared_ptr<State>> states PEERLANE_GUARDED_BY(mutex);

  // Never destroyed: tickets of static contexts end late.
  static Table& get() {
    static std::atomic<Table*> current{nullptr};
    for (;;) {
      Table* known = current.load(std::memory_order_acquire);
      if (known != nullptr && known->forks == forkGeneration()) return *known;
      auto fresh = std::make_unique<Table>(known == nullptr ? 1 : known->next.load());
      if (current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel))
        return *fresh.release();
    }
  }
};

std::unique_ptr<InvalidationTicket> InvalidationTicket::issue() {
  auto state = std::make_shared<State>();
  Table& table = Table::get();
  const MutexLock lock(table.mutex);
  const uint64_t number = table.next.fetch_add(1);
  table.states.emplace(number, state);
  return std::unique_ptr<InvalidationTicket>(new InvalidationTicket(number, std::move(state)));
}

InvalidationTicket::~InvalidationTicket() {
  Table& table = Table::get();
  const MutexLock lock(table.mutex);
  table.states.erase(number_);
}

Status InvalidationTicket::onInvalidation(Drain drain) {
  const MutexLock lock(state_->mutex);
  if (state_->isInvalidated)
    return Status(Code::kRevoked, "its provider took the memory back while it was registered");
  state_->drain = std::move(drain);
  return Status::ok();
}

namespace {

Status onLoopThread() {
  return Status(Code::kInvalidArgument,
                "invalidateMemory() was called on the progress thread of a context (in a callback, "
                "say), for which it would have to wait; nothing was changed: call it on another "
                "thread");
}

}  // namespace

Status InvalidationTicket::invalidate(State& state, std::chrono::nanoseconds timeout) {
  const auto deadline = deadlineIn(timeout);
  Drain drain;
  {
    const MutexLock lock(state.mutex);
    // Within the drain of this very ticket: that one does the work.
    if (state.isDrained || state.drainer == std::this_thread::get_id()) return Status::ok();
    // Neither the drain nor the wait for another thread's may stand in the way of what they need.
    if (LoopThreadScope::isHere() && (state.drain || state.drainer)) return onLoopThread();
    state.isInvalidated = true;
    while (state.drainer)
      if (!state.changed.waitUntil(state.mutex, deadline))
        return Status(Code::kTimeout, "another call still drains the memory of this ticket");
    // Nobody has used it yet, and nobody will: onInvalidation() refuses.
    if (!state.drain) state.isDrained = true;
    if (state.isDrained) return Status::ok();
    drain = state.drain;
    state.drainer = std::this_thread::get_id();
  }
  Status drained = drain(timeLeft(deadline));
  const MutexLock lock(state.mutex);
  state.drainer.reset();
  state.isDrained = drained.isOk();
  state.changed.notifyAll();
  return drained;
}

Status invalidateMemory(uint64_t ticket, std::chrono::nanoseconds timeout) {
  InvalidationTicket::Table& table = InvalidationTicket::Table::get();
  if (ticket < table.first)
    return Status(Code::kNotSupported, "ticket " + std::to_string(ticket) +
                                           " was issued before fork(), by the parent process");
  std::shared_ptr<InvalidationTicket::State> state;
  {
    const MutexLock lock(table.mutex);
    const auto found = table.states.find(ticket);
    if (found == table.states.end()) return Status::ok();
    state = found->second;
  }
  return InvalidationTicket::invalidate(*state, timeout);
}

}  // namespace peerlane
