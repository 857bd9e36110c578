// SPDX-License-Identifier: Apache-2.0
//
// LaneSender: the sending end of a lane. Message n waits for its slot, publishes its envelope, and
// ends when the answer says how the receiver took it. A message that the receiver wants staged goes
// through the receiver's ring first. Threads: as LaneEnd.
//
// A message that is cancelled before it began is still sent, as void, because its number is taken:
// the receive with the same number ends with kCancelled. A message that is cancelled later is
// withdrawn: the sender asks the receiver to refuse it, and the answer decides, because the
// receiver may be reading the payload already.
#pragma once

#include <array>
#include <memory>

#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/channel/message/host/message_run.h"
#include "peerlane/channel/message/host/named_import_cache.h"
#include "peerlane/channel/message/host/staged_sends.h"

namespace peerlane {

class LaneSender final : public LaneEnd {
 public:
  explicit LaneSender(const LaneEnvironment& env)
      : LaneEnd(env), cache_(*env.peer), staged_(env, cache_) {}

  // For explain().
  uint64_t sent(MessageKind kind) const {
    return sent_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  }

 protected:
  bool step(uint64_t budgetBytes) override;
  void handle(const LaneNote& note) override;
  bool abandon() override;
  std::string describeWindow() const override;

 private:
  enum class Phase : uint8_t {
    kFree,
    kHeld,      // waits for its stream
    kSending,   // its program runs, to its end or, for puts, until the envelope is out
    kAsking,    // put: waits for the answer
    kReaching,  // put: waits for the import of the buffer
    kPushing,   // put: copies
    kStaging,   // waits for its turn in the ring, or is in it
  };
  struct Entry {
    Phase phase = Phase::kFree;
    uint64_t number = 0;
    Posted posted;
    MessageKind kind = MessageKind::kVoid;
    bool withdrawn = false;
    std::unique_ptr<MessageRun> run;  // made when first used, kept
  };

  Entry& entryOf(uint64_t number) { return window_[number % kSlots]; }
  const MessageItem& itemOf(const Entry& entry) const {
    return entry.posted.batch->item(entry.posted.index);
  }
  void admit();
  void begin(Entry& entry);
  bool look(Entry& entry, uint64_t& budget);
  void withdrawIfCancelled(Entry& entry);
  void judge(Entry& entry);
  void loseMemory(Entry& entry);
  void voidPayload(Entry& entry);
  void conclude(Entry& entry);
  bool readAnswer(Entry& entry);
  void beginPush(Entry& entry);
  void giveUp(Entry& entry, const Status& why);
  void beginStaging(Entry& entry);
  bool stage(Entry& entry, uint64_t& budget);
  void takeAnswer(Entry& entry);
  void end(Entry& entry, const Status& status);
  LanePrograms* programsFor(Entry& entry, bool agent);

  // The sender's own words of rendezvous and eager: messages that left a slot.
  struct alignas(64) FreeWords {
    std::array<std::byte, size_t{kSlots} * kWordSlotBytes> bytes{};
  };
  FreeWords free_;
  std::unique_ptr<LanePrograms> programs_;  // where the peer's area is mapped
  std::array<Entry, kSlots> window_;
  uint64_t head_ = 0;  // oldest message not ended
  uint64_t next_ = 0;  // the next to admit
  NamedImportCache cache_;
  StagedSends staged_;
  bool again_ = false;                           // an entry looked at earlier may go on now
  std::array<std::atomic<uint64_t>, 8> sent_{};  // by kind; written by the runner
};

}  // namespace peerlane
