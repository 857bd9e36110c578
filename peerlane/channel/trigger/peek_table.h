// SPDX-License-Identifier: Apache-2.0
//
// PeekTable: the peeks of one triggered queue that are under way. The poster makes, aborts and
// settles them; the executor enqueues them and runs their programs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "peerlane/channel/trigger/commit_slot.h"
#include "peerlane/channel/trigger/posted_batch.h"
#include "peerlane/channel/trigger/trigger_health.h"
#include "peerlane/channel/trigger/triggered_queue.h"

namespace peerlane {

class PeekTable {
 public:
  // All outlive it.
  PeekTable(PeerCore& peer, TriggerHealth& health, const PostedBatch& batch,
            const std::unique_ptr<TriggerStream>& stream)
      : peer_(peer), health_(health), batch_(batch), stream_(stream) {}

  // --- Poster ---
  // `slot`: of commit `number`; null: that has ended. `making`: a number that no peek had.
  Result<TriggerProgram> make(uint64_t number, CommitSlot* slot, uint64_t making);
  // Tells `forget(number of the commit)` for each peek that was passed since the last call.
  template <typename Forget>
  void settle(const Forget& forget) {
    for (size_t mark = 0; mark < peeks_.size(); ++mark) {
      PeekSlot& peek = peeks_[mark];
      const MadeState::State state = peek.state.state();
      const bool isOver = state == MadeState::State::kEnded ||
                          (state == MadeState::State::kEnqueued && wasPassed(mark));
      if (!isOver) continue;
      peek.state.free();
      forget(peek.number);
    }
  }
  // The commit of the peek that was aborted. kInvalidArgument: it was enqueued.
  Result<uint64_t> abort(const TriggerId& id);
  bool isUnderWay(uint64_t number) const;

  // --- Executor ---
  Status enqueue(const TriggerId& id);
  Status enqueue(const TriggerId& id, DeviceStream stream, TriggerStream::Clock::time_point until);
  Status execute(const TriggerId& id, std::chrono::nanoseconds timeout);
  // One that was enqueued and that nobody will run.
  void forget(const TriggerId& id);

  // One was enqueued and is not passed: somebody may wait for its words. Any thread.
  bool areEnqueued() const;

 private:
  std::atomic<uint64_t>& passedWord(size_t mark) const { return health_.words().passed[mark]; }
  bool wasPassed(size_t mark) const {
    const TriggerStream::Run& run = peeks_[mark].ready.run;
    if (stream_ && !run.isElsewhere()) return stream_->hasPassed(run);
    return passedWord(mark).load(std::memory_order_acquire) == peeks_[mark].state.making();
  }
  PeekSlot* begin(const TriggerId& id);
  Status run(PeekSlot& peek, std::chrono::nanoseconds timeout);

  PeerCore& peer_;
  TriggerHealth& health_;
  const PostedBatch& batch_;
  const std::unique_ptr<TriggerStream>& stream_;
  std::array<PeekSlot, TriggerWords::kPeeks> peeks_;
};

}  // namespace peerlane
