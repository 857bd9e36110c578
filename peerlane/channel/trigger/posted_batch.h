// SPDX-License-Identifier: Apache-2.0
//
// PostedBatch: what was posted to a triggered queue and not committed, the emitter that is made for
// it, and the table of targets that its programs name. The poster's, but for emitter().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/trigger/commit_slot.h"
#include "peerlane/channel/trigger/doorbell.h"
#include "peerlane/channel/trigger/entry_writer.h"
#include "peerlane/channel/trigger/target_table.h"
#include "peerlane/channel/trigger/trigger_signals.h"
#include "peerlane/channel/trigger/triggered_queue.h"

namespace peerlane {

class PostedBatch {
 public:
  // All outlive it.
  // `stream`: of a queue of a device; null: threads of the CPU run its programs.
  PostedBatch(const std::shared_ptr<PeerCore>& peer, const TriggerOptions& options,
              TriggerHealth& health, Doorbell& doorbell,
              const std::unique_ptr<TriggerStream>& stream)
      : peer_(peer), options_(options), health_(health), doorbell_(doorbell), stream_(stream) {}

  // Checks the executor's abilities, and chooses the emitter where they or the options say which.
  Status begin();
  TriggerEmitter emitter() const { return emitter_.load(std::memory_order_acquire); }
  bool isDoorbell() const { return emitter() == TriggerEmitter::kDoorbell; }
  std::string whyNotOther() const;

  // Before each of those below.
  void beginPost() {
    if (works_.empty()) seenRevocations_ = UseGate::revocations();
  }
  Status post(Direction direction, std::span<const Block> blocks);
  Status postSignal(uint32_t number, uint64_t add);
  Status postAdd(const RemoteRegion& region, uint64_t offset, uint64_t value);
  Status postReceive(uint32_t number, uint64_t value);
  void discard();
  // Nothing is posted any more, and no executor runs a program of the queue.
  void end() { signals_.giveBack(); }

  bool empty() const { return works_.empty() && arrivals_.empty(); }
  // So many ops the program of a commit would have.
  uint32_t ops() const;
  // Makes the commit in `slot`, which becomes the owner of all that was posted.
  Status moveTo(CommitSlot& slot);
  // A commit that was taken back, the last one, while nothing is posted.
  void takeBack(CommitSlot& slot);
  // Of a commit that has ended, or of no commit: their room is used again.
  void recycle(PostedWorks& works);

  // Makes a program of words ready for the executor. Errors: what it cannot do.
  Status prepare(ReadyProgram& into, Program program) const;
  std::span<const TriggerRow> rows();
  // The ops of a program of this queue with their addresses; their number. kInvalidArgument: `room`
  // is too small.
  Result<uint32_t> resolve(const Program& program, std::span<TriggerOp> room) const;
  bool isTableFull() const { return table_.isFull(); }
  // No commit under way names memory.
  void forgetMemory() { table_.forgetMemory(); }

 private:
  using Work = std::unique_ptr<PostedWork>;
  Status decide(bool isMapped, const std::string& whyNotMapped);
  Status openDoorbell();
  void addWords();
  std::string whyNoSignals(const RemoteMemory& peers);
  Status addSignal(const TriggerAddition& addition);
  DeviceExecutor* executor() const { return stream_ ? &stream_->executor() : nullptr; }
  Work newWork();
  Status addMapped(Work work);
  Status addEntries(Work work, const Result<uint64_t>& entries, const OpenEntries& before);
  void keep(Work work);

  const std::shared_ptr<PeerCore>& peer_;
  const TriggerOptions& options_;
  TriggerHealth& health_;
  Doorbell& doorbell_;
  const std::unique_ptr<TriggerStream>& stream_;
  std::atomic<TriggerEmitter> emitter_{TriggerEmitter::kAuto};
  std::string whyNotMapped_;
  TargetTable table_;
  std::vector<TriggerRow> rows_;

  PostedWorks works_;
  PostedWorks spare_;
  std::vector<TriggerArrival> arrivals_;
  TriggerSignals signals_{*peer_, stream_};
  std::vector<TriggerAddition> additions_;
  Program program_;       // of a mapped queue
  uint64_t last_ = 0;     // the number of the last operation of a mapped queue
  uint64_t entries_ = 0;  // of the mailbox
  uint64_t awaited_ = 0;  // arrivals, of all commits
  uint64_t seenRevocations_ = 0;
  OpenEntries open_;
  OpenEntries before_;  // as it was before the first operation
};

}  // namespace peerlane
