// SPDX-License-Identifier: Apache-2.0
//
// LaneReceiver: the receiving end of a lane. Receive n waits for envelope n, judges it (size,
// protocol, cancelled?), and then runs the receiver of the protocol that the envelope names. What
// it refuses it answers with the reason, so that both sides end and the lane goes on. Threads: as
// LaneEnd.
//
// A cancelled receive ends at once where nothing was begun; its number stays taken, and the message
// with that number is refused when it comes.
//
// A message in pieces takes a number for each. Where the sender's has another number of pieces than
// the receiver's, all of both ends, and the receives behind get new numbers: those of the messages
// behind.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "peerlane/channel/message/host/import_shelf.h"
#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/channel/message/host/message_run.h"
#include "peerlane/channel/message/host/staged_flow.h"

namespace peerlane {

class LaneReceiver final : public LaneEnd {
 public:
  explicit LaneReceiver(const LaneGround& ground)
      : LaneEnd(ground), shelf_(*ground.peer), staged_(ground) {}

  uint64_t received(MessageKind kind) const {
    return received_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  }
  // The ring of chunks, if one was needed. Once the lane is over.
  const std::shared_ptr<RegionRecord>& ring() const { return staged_.ownRegion(); }

 protected:
  bool step(uint64_t budgetBytes) override;
  void handle(const LaneNote& note) override;
  bool abandon() override;
  std::string describeWindow() const override;

 private:
  enum class Phase : uint8_t {
    kWaiting,   // for the envelope
    kReaching,  // get: waits for the import of the payload's region
    kCopying,   // eager, get: copies and answers
    kLanding,   // put: answers, waits until the sender has written
    kRefusing,  // answers no
    kAgreeing,  // answers that it will be staged
    kStaging,   // waits for its turn in the ring, or is in it
    kDone,
  };
  struct Entry {
    Phase phase = Phase::kWaiting;
    uint64_t number = 0;
    bool posted = false;      // a receive took this number
    bool isLeftOver = false;  // its message has more pieces than its receive had: there is none
    bool isMet = false;       // the message that came is for that receive
    Posted wanted;            // without a batch: it has ended already
    Status outcome;           // of a message that ended before it was posted, or when it is refused
    uint64_t firstChunk = 0;
    std::unique_ptr<MessageRun> run;
  };

  Entry& entryOf(uint64_t number) { return window_[number % kSlots]; }
  const MessageItem& itemOf(const Entry& entry) const {
    return entry.wanted.batch->item(entry.wanted.index);
  }
  void admit();
  bool nextReceive(Posted& posted);
  bool isLeftOver(uint64_t number) const;
  bool fits(const Entry& entry) const;
  bool realign(Entry& entry);
  bool lookAll(uint64_t& budget);
  bool look(Entry& entry, uint64_t& budget);
  bool meet(Entry& entry, bool& moved);
  bool arrived(const Entry& entry) const;
  bool readEnvelope(Entry& entry);
  void judge(Entry& entry);
  void beginEager(Entry& entry);
  void beginGet(Entry& entry);
  void beginPut(Entry& entry);
  void stageOrRefuse(Entry& entry, const Status& why);
  void beginStaging(Entry& entry);
  void refuse(Entry& entry, const Status& why);
  void copied(Entry& entry);
  void taken(Entry& entry);
  bool stage(Entry& entry, uint64_t& budget);
  Status moveStaged(Entry& entry, uint64_t& budget, bool& moved);
  void takeRest();
  bool holdsPayload(const Entry& entry) const;
  void settle(Entry& entry, const Status& status);
  void start(Entry& entry, const cpu::CpuProgram& program, Verdict verdict, Phase phase);
  LanePrograms* programsFor(Entry& entry, bool agent);
  void count(MessageKind kind, const char* engine, uint64_t bytes);
  std::string nameOf(const Entry& entry) const;

  std::unique_ptr<LanePrograms> programs_;  // where the peer's area is mapped
  std::array<Entry, kSlots> window_;
  uint64_t head_ = 0;            // oldest number that is not done
  uint64_t next_ = 0;            // the number of the next receive
  uint64_t end_ = 0;             // no number from here on was ever a receive's
  std::deque<Posted> receives_;  // go before the queue: their numbers were taken back
  struct NumberRange {
    uint64_t first = 0;
    uint64_t end = 0;
  };
  std::vector<NumberRange> leftOver_;  // of messages that have no receive
  std::set<uint64_t> withdrawn_;       // messages that their sender wants refused
  ImportShelf shelf_;
  StagedFlow staged_;
  bool again_ = false;        // an entry looked at earlier may go on now
  uint64_t chunksGiven_ = 0;  // of the ring, to accepted messages
  uint64_t stagedTurn_ = 0;   // the chunk at which the next staged message begins
  std::array<std::atomic<uint64_t>, 8> received_{};  // by kind; written by the runner
  std::array<std::pair<const char*, Counter*>, 8> counters_{};
};

}  // namespace peerlane
