// SPDX-License-Identifier: Apache-2.0
//
// WorkList: entries of mailboxes in an agent's hands, in the order in which they came, linked
// through the room that an AgentWork keeps for its link: it asks for no memory. WorkState: what the
// agent knows of one, in the same room. External synchronization.
#pragma once

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

 private:
  static constexpr uint64_t kWhole = uint64_t{1} << 32;
  static constexpr uint64_t kFenced = uint64_t{1} << 33;
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
  // False: it is not in the list.
  bool remove(AgentWork& work) {
    AgentWork* before = nullptr;
    for (AgentWork* at = first_; at != nullptr; before = at, at = after(*at)) {
      if (at != &work) continue;
      if (before == nullptr) {
        (void)takeFirst();
        return true;
      }
      before->scratch[0] = work.scratch[0];
      if (last_ == &work) last_ = before;
      return true;
    }
    return false;
  }

 private:
  AgentWork* first_ = nullptr;
  AgentWork* last_ = nullptr;
};

}  // namespace peerlane
