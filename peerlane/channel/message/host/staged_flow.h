// SPDX-License-Identifier: Apache-2.0
//
// StagedFlow: one end of the staging ring of a lane. It moves the chunks of one message after the
// other through the ring. The receiver owns the ring and gives its chunks to messages in the order
// in which it accepts them; both sides take their turns by that order.
//
// The program may lose the memory of a message at any time. Its chunks go on without bytes then,
// because both sides count on in the same way. External synchronization required.
#pragma once

#include <memory>

#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/program/cpu/cpu_program.h"

namespace peerlane {

struct StagedRing {
  uint32_t slots = 0;
  uint32_t chunkBytes = 0;

  static constexpr uint64_t kMinBytes = 64 << 10;
  static constexpr uint64_t kMaxBytes = 1 << 20;
  // The largest power of two up to `budget` within the two above, cut in slots.
  static StagedRing within(uint64_t budget);
  uint64_t bytes() const { return uint64_t{slots} * chunkBytes; }
  uint64_t chunksOf(uint64_t bytes_) const { return (bytes_ + chunkBytes - 1) / chunkBytes; }
};

class StagedFlow final : private LateBinder {
 public:
  explicit StagedFlow(const LaneEnvironment& env) : env_(env) {}
  ~StagedFlow() override;

  bool isOpen() const { return isOpen_; }
  // The sender's end, over the peer's ring.
  Status openSender(const StagedRing& ring, const std::shared_ptr<ImportedRegion>& memory);
  // The receiver's end; makes the ring.
  Status openReceiver(const StagedRing& ring);
  const std::shared_ptr<RegionRecord>& ownRegion() const { return own_; }
  // For receivers: the next chunks, for a message of `bytes` bytes. The answer says which, and
  // where the ring is.
  void give(uint64_t bytes, Answer& answer);

  // The chunk at which the message begins whose turn it is: the one under way, or the next.
  uint64_t turn() const { return running() ? firstChunk_ : nextChunk(); }
  enum class Step : uint8_t {
    kUnderWay,  // blocked, or the budget is used up
    kLost,      // just now: the memory of the message is gone, and its chunks go on without bytes
    kPassed,    // all its chunks are through
  };
  // Moves chunks of the message whose turn it is. `item`: null once its memory is lost. After an
  // error the flow is broken.
  Result<Step> advance(const MessageItem* item, uint64_t& budgetBytes, bool& moved, bool& hungry);
  // For receivers: the sender needs no more credits. Chunks that are in the ring can still be taken
  // out.
  void giveUpCredits() { needsCredits_ = false; }
  // Asks a running execution to end; true when none runs.
  bool abandon(Code code);

 private:
  Status bind(TargetId target, BoundTarget& out) override;
  Status open(Program program, Binding binding);
  bool running() const { return chunk_ < chunks_; }
  uint64_t nextChunk() const { return firstChunk_ + chunk_; }
  void begin(const MessageItem& item);
  Status startChunk();
  Status endChunk();

  const LaneEnvironment& env_;
  StagedRing ring_;
  std::shared_ptr<RegionRecord> own_;
  std::shared_ptr<ImportedRegion> used_;
  Mailbox* mailbox_ = nullptr;
  cpu::CpuProgram program_;
  cpu::CpuRun run_;
  bool isOpen_ = false;
  bool inRun_ = false;
  bool needsCredits_ = true;
  BoundTarget memory_;  // of the current message; no bytes: lost
  uint64_t bytes_ = 0;
  uint64_t firstChunk_ = 0;
  uint64_t chunk_ = 0;  // of the current message
  uint64_t chunks_ = 0;
  uint64_t chunksGiven_ = 0;  // by a receiver
};

}  // namespace peerlane
