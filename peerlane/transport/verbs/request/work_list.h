// SPDX-License-Identifier: Apache-2.0
//
// WorkList: entries of mailboxes in an agent's hands, in the order in which they came, linked
// through the room that an AgentWork keeps for its link: it asks for no memory. WorkState: what the
// agent knows of one, in the same room. External synchronization.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "peerlane/program/model/mailbox.h"

namespace peerlane {

class WorkState {
 public:
  explicit WorkState(AgentWork& work) : bits_(work.scratch[1]) {}

  // Requests that are under way for it.
  uint32_t underWay() const { return static_cast<uint32_t>(bits_); }
  void began() { ++bits_; }
  void ended() { --bits_; }
  // No further request will be made for it.
  bool isWhole() const { return (bits_ & kWhole) != 0; }
  void setWhole() { bits_ |= kWhole; }
  // Its next request must wait, at the device, until reads before it have ended.
  bool isFenced() const { return (bits_ & kFenced) != 0; }
  void setFenced() { bits_ |= kFenced; }
  void clearFenced() { bits_ &= ~kFenced; }
  // It is cut for all pairs of the link (StripeCutter).
  bool isStriped() const { return (bits_ & kStriped) != 0; }
  void setStriped() { bits_ |= kStriped; }
  // Pairs that have requests of it and no proof yet, by place.
  uint32_t unproven() const { return static_cast<uint32_t>(bits_ >> kPairs) & 0xff; }
  void setUnproven(uint32_t place) { bits_ |= uint64_t{1} << (kPairs + place); }
  void clearUnproven(uint32_t place) { bits_ &= ~(uint64_t{1} << (kPairs + place)); }
  // All requests that move its bytes were posted, and the proofs may be.
  bool isProving() const { return (bits_ & kProving) != 0; }
  void setProving() { bits_ |= kProving; }
  // A word in a mail: it has ended when the peer says that it has applied it. Its `offset` is the
  // number of the news.
  bool isMailed() const { return (bits_ & kMailed) != 0; }
  void setMailed() { bits_ |= kMailed; }
  // A word that goes as a mail. Decided when it is served, because it says what may follow at once.
  bool goesAsMail() const { return (bits_ & kAsMail) != 0; }
  void setGoesAsMail() { bits_ |= kAsMail; }
  // As when it came: none of its requests counts.
  void startAgain() { bits_ = 0; }

 private:
  static constexpr uint32_t kPairs = 40;
  static constexpr uint64_t kWhole = uint64_t{1} << 32;
  static constexpr uint64_t kFenced = uint64_t{1} << 33;
  static constexpr uint64_t kStriped = uint64_t{1} << 34;
  static constexpr uint64_t kMailed = uint64_t{1} << 35;
  static constexpr uint64_t kAsMail = uint64_t{1} << 36;
  static constexpr uint64_t kProving = uint64_t{1} << 37;
  static_assert(((kWhole | kFenced | kStriped | kMailed | kAsMail | kProving) >> 32) == 0x3f,
                "one bit each, none of underWay() or unproven()");
  uint64_t& bits_;
};

// Steps over pieces of a put or get that are done, and over empty ones.
inline void skipEmptyPieces(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  while (work.piece < entry.pieceCount && work.offset == entry.pieces[work.piece].bytes) {
    ++work.piece;
    work.offset = 0;
  }
}

class WorkList {
 public:
  bool isEmpty() const { return first_ == nullptr; }
  AgentWork* first() const { return first_; }
  static AgentWork* after(const AgentWork& work) {
    return reinterpret_cast<AgentWork*>(work.scratch[0]);
  }
  void add(AgentWork& work) {
    work.scratch[0] = 0;
    if (last_ == nullptr)
      first_ = &work;
    else
      last_->scratch[0] = reinterpret_cast<uintptr_t>(&work);
    last_ = &work;
  }
  AgentWork* takeFirst() {
    AgentWork* const work = first_;
    if (work == nullptr) return nullptr;
    first_ = after(*work);
    if (first_ == nullptr) last_ = nullptr;
    return work;
  }
  // Takes the one after `before` out; null: the first. Requires: there is one.
  void takeAfter(AgentWork* before) {
    if (before == nullptr) return void(takeFirst());
    const AgentWork& work = *after(*before);
    before->scratch[0] = work.scratch[0];
    if (last_ == &work) last_ = before;
  }
  // False: it is not in the list.
  bool remove(const AgentWork& work) {
    AgentWork* before = nullptr;
    for (AgentWork* at = first_; at != nullptr; before = at, at = after(*at)) {
      if (at != &work) continue;
      takeAfter(before);
      return true;
    }
    return false;
  }

 private:
  AgentWork* first_ = nullptr;
  AgentWork* last_ = nullptr;
};

// Mailboxes whose next work has to wait for something else than room, in one pass.
class StalledMailboxes {
 public:
  bool isFull() const { return count_ == all_.size(); }
  bool holds(const Mailbox* mailbox) const {
    return std::find(all_.begin(), all_.begin() + count_, mailbox) != all_.begin() + count_;
  }
  void add(const Mailbox* mailbox) { all_[count_++] = mailbox; }

 private:
  std::array<const Mailbox*, 16> all_;
  size_t count_ = 0;
};

}  // namespace peerlane
