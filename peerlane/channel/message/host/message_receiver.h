// SPDX-License-Identifier: Apache-2.0
//
// LaneReceiver: the receiving end of a lane, which carries each message from its envelope to the
// end of its receive. ReceiveMatcher says which receive an envelope is for; the phases below
// carry the two from there. The receiver answers a message that it refuses with the reason, so that
// both sides end and the lane goes on. Threads: as LaneEnd. The communicator's pair owns it.
//
//   phase      the runner                            then
//   Waiting    looks for the envelope, judges it     eager: Copying; get: Copying, or Reaching;
//                                                    put: Landing; ring: Agreeing; or Refusing
//   Reaching   looks for the import of the payload   Copying; out of reach: Agreeing or Refusing
//   Copying    runs: copy, answer "accepted"         Answering; copy failed or cancelled: Refusing
//   Answering  the receive has ended; the run goes   Done
//              on until the peer has the answer
//   Landing    runs: answer "accepted", wait until   Done
//              the sender has written
//   Agreeing   runs: answer "staged"                 Staging
//   Staging    waits for its turn in the ring, then  Done
//              takes its chunks out
//   Refusing   runs: answer "refused"                Done
//   Done       nothing; its number is passed when it is the oldest and its receive is known
//
// Where a program fails because the link did, the lane breaks, and all its messages end.
//
// A cancelled receive ends at once where nothing was begun; its number stays taken, and the message
// with that number is refused when it comes.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/message/host/lane_inbox.h"
#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/channel/message/host/message_run.h"
#include "peerlane/channel/message/host/named_import_cache.h"
#include "peerlane/channel/message/host/receive_matcher.h"
#include "peerlane/channel/message/host/received_counts.h"
#include "peerlane/channel/message/host/staged_flow.h"

namespace peerlane {

class LaneReceiver final : public LaneEnd, private ReceiveQueue {
 public:
  explicit LaneReceiver(const LaneEnvironment& env);

  uint64_t received(MessageKind kind) const { return counts_.of(kind); }
  // The ring of chunks, if one was needed. Once the lane is over.
  const std::shared_ptr<RegionRecord>& ring() const { return staged_.ownRegion(); }

 protected:
  bool step(uint64_t budgetBytes) override;
  void handle(const LaneNote& note) override;
  bool abandon() override;
  std::string describeWindow() const override;

 private:
  using Slot = ReceiveMatcher::Slot;
  enum class Phase : uint8_t {
    kWaiting,
    kReaching,
    kCopying,
    kAnswering,
    kLanding,
    kAgreeing,
    kStaging,
    kRefusing,
    kDone,
  };
  static constexpr size_t kPhaseCount = static_cast<size_t>(Phase::kDone) + 1;
  // One number of the window.
  struct Entry {
    Slot* slot = nullptr;  // the matcher's half; constant
    Phase phase = Phase::kWaiting;
    // Of a message that ended before it was posted, is refused, or has lost its memory, at either
    // side, while its chunks go on.
    Status outcome;
    bool isGivenUp = false;  // in the ring, by its sender, which was told that this is known
    std::unique_ptr<MessageRun> run;

    uint64_t number() const { return slot->number; }
    MessageBatch* batch() const { return slot->wanted.batch.get(); }
    const MessageItem& item() const { return batch()->item(slot->wanted.index); }
  };
  // The work of one phase. Those with `ended` run a program.
  struct PhaseRow {
    bool (LaneReceiver::*look)(Entry&, uint64_t& budget);  // true when something moved
    void (LaneReceiver::*ended)(Entry&, Code);             // follows its program
    const char* waitsFor;                                  // for dumps, where no program says so
  };
  static const std::array<PhaseRow, kPhaseCount> kPhases;
  static const PhaseRow& rowOf(const Entry& entry) {
    return kPhases[static_cast<size_t>(entry.phase)];
  }

  Entry& entryOf(uint64_t number) { return window_[number % kSlots]; }
  bool nextReceive(Posted& receive) override { return next(receive); }

  // Waiting
  void admit();
  bool lookAll(uint64_t& budget);
  bool look(Entry& entry, uint64_t& budget);
  bool meet(Entry& entry, bool& moved);
  bool readEnvelope(Entry& entry);
  bool takeUp(Entry& entry);
  void endRealigned(const Entry& entry, const Part& wanted, std::vector<Posted>& ended);
  void judge(Entry& entry);
  void beginEager(Entry& entry);
  void beginGet(Entry& entry);
  void beginPut(Entry& entry);
  void beginStaging(Entry& entry);
  void stageOrRefuse(Entry& entry, const Status& why);
  void refuse(Entry& entry, const Status& why);
  void start(Entry& entry, const cpu::CpuProgram& program, Verdict verdict, Phase phase);
  LanePrograms* programsFor(Entry& entry, bool agent);

  // The phases' own, as in the table
  bool reach(Entry& entry, uint64_t& budget);
  bool run(Entry& entry, uint64_t& budget);
  bool copy(Entry& entry, uint64_t& budget);
  bool stage(Entry& entry, uint64_t& budget);
  void copied(Entry& entry, Code code);
  void answered(Entry& entry, Code code);
  void landed(Entry& entry, Code code);
  void agreed(Entry& entry, Code code);
  void refused(Entry& entry, Code code);

  // Ends
  void taken(Entry& entry);
  void settle(Entry& entry, const Status& status);
  void linkFailed(const Entry& entry, Code code);
  void giveUp(Entry& entry, Code code);
  Status moveStaged(Entry& entry, uint64_t& budget, bool& moved);
  void takeRest();
  bool abandonEntry(Entry& entry, bool othersEnded);
  bool holdsPayload(const Entry& entry) const;
  void passDone();
  std::string nameOf(const Entry& entry) const;

  std::unique_ptr<LanePrograms> programs_;  // where the peer's area is mapped
  LaneInbox inbox_;
  ReceiveMatcher matcher_{*this};
  std::array<Entry, kSlots> window_;
  NamedImportCache cache_;
  StagedFlow staged_;
  bool again_ = false;  // an entry looked at earlier may go on now
  ReceivedCounts counts_;
};

}  // namespace peerlane
