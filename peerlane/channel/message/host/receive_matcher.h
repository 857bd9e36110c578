// SPDX-License-Identifier: Apache-2.0
//
// ReceiveMatcher: which posted receive of a lane takes which envelope. It numbers the receives in
// their order, holds those whose numbers are in the window, and says of an envelope whether it is
// for the receive with the same number. It knows nothing of phases, programs or memory, and tells
// nobody that a receive has ended: its LaneReceiver, which owns it, does. Only the runner of the
// lane calls it.
//
// Message n is for receive n, as long as every message has as many pieces as its receive; a message
// in pieces takes a number for each. Where the numbers of pieces differ, all pieces of both end,
// and the receives after it get new numbers, those of the messages after it. The ordinal and the
// part in each envelope tell:
//
//   sent      A0 A1 A2 B        A has three pieces, its receive has two; the envelope of A0 comes
//   receives  a0 a1 b           at number 0, and shows it
//   ended     a0 a1             with kSizeMismatch
//   numbers   0 1 2: left over (no receive; their messages are refused)    3: b, which B then meets
//
// Numbers that the sender withdrew are kept here as well: their messages may come before a receive
// is posted, and must be refused then.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "peerlane/channel/message/host/message_lane.h"

namespace peerlane {

// Where receives come from that have no number yet.
class ReceiveQueue {
 public:
  // The next one, in the order of posting; false when there is none.
  virtual bool nextReceive(LaneEnd::Posted& receive) = 0;

 protected:
  ~ReceiveQueue() = default;
};

class ReceiveMatcher {
 public:
  using Posted = LaneEnd::Posted;
  static constexpr uint32_t kSlots = LaneEnd::kSlots;

  // One number of the window.
  struct Slot {
    uint64_t number = 0;
    bool posted = false;      // a receive took this number, or it is left over
    bool isLeftOver = false;  // its message has more pieces than its receive had: there is none
    bool isMet = false;       // the message that came is for that receive
    Posted wanted;            // without a batch: it has ended already
  };

  enum class Match : uint8_t {
    kMeant,      // the envelope is for the receive with its number, or there is none yet
    kNotYet,     // it is not; the envelope of an earlier number will show where pieces differ
    kRealigned,  // it is not: receives have new numbers, and some have ended without a message
    kCorrupt,    // it is not, and no honest sender numbers its pieces like that
  };

  explicit ReceiveMatcher(ReceiveQueue& queue) : queue_(queue) {}
  ReceiveMatcher(const ReceiveMatcher&) = delete;
  ReceiveMatcher& operator=(const ReceiveMatcher&) = delete;

  // --- The window ---
  uint64_t head() const { return head_; }  // the oldest number that is not done
  uint64_t next() const { return next_; }  // the number of the next receive
  uint64_t end() const { return end_; }    // no number from here on was ever a receive's
  Slot& at(uint64_t number) { return slots_[number % kSlots]; }
  const Slot& at(uint64_t number) const { return slots_[number % kSlots]; }
  bool isInWindow(uint64_t number) const { return number >= head_ && number < head_ + kSlots; }

  // Gives numbers to receives while the window has room. Returns how many numbers were found left
  // over: each is one more thing to run, until its message is refused.
  uint32_t admit();
  // Receives, or messages that have none, wait for room in the window.
  bool hasMore() const { return !returned_.empty() || !leftOver_.empty(); }
  // The oldest number has met its message, so it may be passed once that is done.
  bool canPass() const { return head_ < next_ && at(head_).isMet; }
  void pass();

  // --- Envelopes ---
  // Requires: `envelope` came with the slot's number. `ended` gets the receives of kRealigned: all
  // pieces of the message that has another number of them.
  Match match(const Slot& slot, const Envelope& envelope, std::vector<Posted>& ended);

  // --- Numbers that the sender wants refused ---
  // True when that was not known.
  bool withdraw(uint64_t number);
  bool isWithdrawn(uint64_t number) const { return withdrawn_.count(number) != 0; }
  // True when it was withdrawn.
  bool endWithdrawal(uint64_t number) { return withdrawn_.erase(number) != 0; }
  // Those that were passed meanwhile; returns how many.
  uint32_t dropPassedWithdrawals();
  // Those in the window that no receive has taken.
  std::vector<uint64_t> withdrawnUnposted();
  bool hasWithdrawals() const { return !withdrawn_.empty(); }

  // For the end of a lane: receives that lost their number and got no new one.
  std::deque<Posted> takeReturned() { return std::exchange(returned_, {}); }

 private:
  struct NumberRange {
    uint64_t first = 0;
    uint64_t end = 0;
  };
  bool nextReceive(Posted& receive);
  bool isLeftOver(uint64_t number) const;
  bool isMeant(const Slot& slot, const Envelope& envelope) const;
  bool canRealign(const Slot& slot, const Part& sent) const;
  void realign(uint64_t first, const Part& sent, const Part& wanted, std::vector<Posted>& ended);

  ReceiveQueue& queue_;
  std::array<Slot, kSlots> slots_;
  uint64_t head_ = 0;
  uint64_t next_ = 0;
  uint64_t end_ = 0;
  std::deque<Posted> returned_;        // go before the queue: their numbers were taken back
  std::vector<NumberRange> leftOver_;  // of messages that have no receive
  std::set<uint64_t> withdrawn_;
};

}  // namespace peerlane
