// SPDX-License-Identifier: Apache-2.0
//
// TransferCore: the life of one put or get: it waits for imports, runs its program by turns, and
// ends once. One thread at a time advances it: the poster first, then the progress engine's turns
// or one host stream.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// Numbers for notifications to one peer: each post that carries one takes the next. Counts those
// that wait for room in the peer's memory.
class NotifyNumbers {
 public:
  uint64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void waits() { waiting_.fetch_add(1, std::memory_order_relaxed); }
  void waitsNoMore() { waiting_.fetch_sub(1, std::memory_order_relaxed); }
  // kTryAgain where so many wait that a post with a notification is refused.
  Status room() const;
  static std::shared_ptr<NotifyNumbers> of(PeerCore& peer);

 private:
  std::atomic<uint64_t> next_{0};
  std::atomic<uint32_t> waiting_{0};  // posted, and not ended when the post returned
};

class TransferCore final : public Operation, public Task {
 public:
  // A put or get of `blocks` (which may be empty where a notification says something). `isPart`: of
  // another transfer, which is the one that counts.
  TransferCore(std::shared_ptr<PeerCore> peer, BlockProgram blocks, OwnedNotify notify,
               bool isPart = false);
  ~TransferCore() override;

  // Begins on this thread or on `stream`; the progress engine does the rest. An error means that
  // nothing moved, because the request was wrong: the post itself fails.
  static Status begin(const std::shared_ptr<TransferCore>& transfer, HostStream* stream);
  // Publishes the given notification slot as void: its owner gave up, and the slots after it must
  // not wait for ever.
  static void beginVoid(const std::shared_ptr<PeerCore>& peer, uint64_t number);

  Turn turn() override;
  std::string describe() const override;

  // For host streams: runs until it ended, sleeping where it must wait.
  void runToEnd() override;

 private:
  enum class State : uint8_t {
    kImporting,
    kRunning,
    kStaged,  // another transfer does it
    kEnded,
  };

  // Why it is to end early; kOk when it is not.
  Code stopCode() const;
  // One step; true when it moved or ended.
  bool advance(uint64_t budgetBytes);
  bool beginStaged();
  bool advanceStaged();
  void stopIfRevoked();
  Status prepare();
  void end(const Status& status);
  void leaveGates();
  void claimNumber();
  void countPending();
  Status endStatus() const;
  // The link for a notification that begins now.
  const Link& wordsLink() const { return peer_->links().of(peer_->slabs().peersMemory()); }
  std::string untakenInWords() const;
  std::string nameInWords() const;
  std::string stageInWords() const;

  const std::shared_ptr<PeerCore> peer_;
  BlockProgram blocks_;
  OwnedNotify notify_;
  std::optional<uint64_t> notifyNumber_;  // claimed; published by the program's end, or as void
  bool isPart_;                           // also once another one does it
  State state_ = State::kImporting;
  bool entered_ = false;
  bool slabEntered_ = false;
  bool refused_ = false;          // written before anybody else may advance it, or never read
  bool isFiller_ = false;         // publishes a slot that was given up
  bool counted_ = false;          // among the peer's pending operations
  bool isOnHostStream_ = false;   // constant once posted: whose thread advances it, without turns
  uint64_t seenRevocations_ = 0;  // UseGate::revocations() at the last look at the gates
  const Link* words_ = nullptr;   // what carries the notification; null: not begun
  Mailbox* mailbox_ = nullptr;
  cpu::CpuProgram program_;
  cpu::CpuRun run_;
  Transfer staged_;
  const Progress::Clock::time_point since_ = Progress::Clock::now();
};

// "op 2 of 5: wait word 41 >= 42": where a run stands, for dumps.
std::string describeRun(const cpu::CpuProgram& program, const cpu::CpuRun& run);

}  // namespace peerlane
