// SPDX-License-Identifier: Apache-2.0
//
// TriggeredCore: one triggered queue: its commits, from their making to their end, and the parts
// that do the rest: what is posted (PostedBatch), peeks (PeekTable), the side where work is done
// (Doorbell), words and failure (TriggerHealth). The functions of the poster, of the executor and
// for any thread are documented in triggered_queue.h. The progress engine has it as a task while
// a commit or a peek is under way whose end, or the peer's end, no other thread would notice.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/trigger/commit_slot.h"
#include "peerlane/channel/trigger/doorbell.h"
#include "peerlane/channel/trigger/peek_table.h"
#include "peerlane/channel/trigger/posted_batch.h"
#include "peerlane/channel/trigger/trigger_health.h"
#include "peerlane/channel/trigger/triggered_queue.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class TriggeredCore final : public Task, public std::enable_shared_from_this<TriggeredCore> {
 public:
  static Result<std::shared_ptr<TriggeredCore>> create(std::shared_ptr<PeerCore> peer,
                                                       const TriggerOptions& options);
  TriggeredCore(std::shared_ptr<PeerCore> peer, const TriggerOptions& options);
  ~TriggeredCore() override;
  // The last handle is gone.
  void close();

  // --- Poster ---
  // The batch, for a post. Errors: of the peer, or the queue's failure.
  Result<PostedBatch*> posting();
  PostedBatch& batch() { return batch_; }
  uint32_t peekOps(uint64_t number) const;
  Result<TriggerProgram> commit(uint32_t mostOps);
  Status rollback(const TriggerId& commit);
  Result<TriggerProgram> peek(uint64_t number, uint32_t mostOps);
  Status abortPeek(const TriggerId& peek);
  Status poll(uint64_t number);

  // --- Executor ---
  Status enqueueCommit(const TriggerId& id);
  Status enqueueCommit(const TriggerId& id, DeviceStream stream);
  Status enqueuePeek(const TriggerId& id, DeviceStream stream, std::chrono::nanoseconds timeout);
  // kInvalidArgument: the programs of this queue run on a device, or, if `byDevice`, they do not.
  Status runsOn(bool byDevice) const;
  Status execute(const TriggerId& id);
  Status enqueuePeek(const TriggerId& id);
  PeekTable& peeks() { return peeks_; }
  Status executePeek(const TriggerId& id, std::chrono::nanoseconds timeout);

  // --- Any thread ---
  void fail(const Status& why);
  Status status() const { return peer_->forked() ? peer_->usable() : health_.status(); }
  const uint64_t* statusWord() {
    return reinterpret_cast<const uint64_t*>(&health_.words().status);
  }
  void wake();

  Turn turn() override;
  std::string describe() const override;

 private:
  Status usable() const;
  Status usableByPoster();
  CommitSlot& placeOf(uint64_t number) { return commits_[number & (commits_.size() - 1)]; }
  CommitSlot* slotOf(uint64_t number);
  Result<CommitSlot*> freeSlot();
  static Status whyRevoked(const CommitSlot& slot);
  bool isPassed(const CommitSlot& slot) const {
    // A kernel's last op is the store that tells of it.
    return !stream_ || slot.ready.run.isElsewhere() || stream_->hasPassed(slot.ready.run);
  }
  bool isIdle() const {
    return launched_.load(std::memory_order_seq_cst) == 0 &&
           (!doorbell_.isOpen() || doorbell_.isDrained()) && (!stream_ || stream_->isIdle()) &&
           (health_.hasFailed() || !peeks_.areEnqueued());
  }
  bool isComplete(const CommitSlot& slot) const;
  void settlePeeks();
  void settle();
  bool isDrained(const CommitSlot& slot, uint64_t last) const;
  Status take(const TriggerId& id);
  void give(CommitSlot& slot);
  void end(CommitSlot& slot, uint64_t making, MadeState::State from, bool isGood);
  void expectStores(bool does);
  void becomeTask();

  const std::shared_ptr<PeerCore> peer_;  // keeps the engine
  const TriggerOptions options_;
  TriggerHealth health_{*peer_};
  std::unique_ptr<TriggerStream> stream_;  // of a queue of a device
  Doorbell doorbell_{*peer_, health_};
  PostedBatch batch_{peer_, options_, health_, doorbell_, stream_};
  PeekTable peeks_{*peer_, health_, batch_, stream_};
  std::vector<CommitSlot> commits_;

  uint64_t nextCommit_ = 1;                // the poster's
  uint64_t makings_ = 0;                   // the poster's; of commits and peeks
  std::atomic<uint64_t> nextEnqueued_{1};  // the executor's
  std::atomic<uint32_t> launched_{0};      // commits that were enqueued and have not ended
  std::atomic<bool> isTask_{false};
  std::atomic<bool> isClosed_{false};
  bool expects_ = false;  // of the task
};

}  // namespace peerlane
