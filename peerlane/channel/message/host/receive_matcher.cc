// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/receive_matcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace peerlane {
namespace {

// Withdrawals that are ahead of the window. An honest sender is never this far ahead.
constexpr size_t kMaxWithdrawn = 2 * LaneArea::kSlots;

}  // namespace

bool ReceiveMatcher::nextReceive(Posted& receive) {
  if (returned_.empty()) return queue_.nextReceive(receive);
  receive = std::move(returned_.front());
  returned_.pop_front();
  return true;
}

bool ReceiveMatcher::isLeftOver(uint64_t number) const {
  return std::any_of(leftOver_.begin(), leftOver_.end(), [number](const NumberRange& range) {
    return number >= range.first && number < range.end;
  });
}

uint32_t ReceiveMatcher::admit() {
  std::erase_if(leftOver_, [this](const NumberRange& range) { return range.end <= head_; });
  for (Posted& receive : returned_)
    if (receive.batch && receive.batch->cancelled()) {
      receive.batch->itemEnded(Status(Code::kCancelled, "cancelled before it began"));
      receive.batch = nullptr;
    }
  uint32_t found = 0;
  while (next_ < head_ + kSlots) {
    // It met its message while those before it got other numbers, or is known to have none.
    if (next_ < end_ && (at(next_).isMet || at(next_).isLeftOver)) {
      ++next_;
      continue;
    }
    Posted receive;
    const bool hasNone = isLeftOver(next_);
    if (hasNone)
      ++found;
    else if (!nextReceive(receive))
      return found;
    Slot& slot = at(next_);
    slot.number = next_++;
    end_ = std::max(end_, next_);
    slot.posted = true;
    slot.isLeftOver = hasNone;
    slot.wanted = std::move(receive);
  }
  return found;
}

void ReceiveMatcher::pass() {
  Slot& slot = at(head_++);
  slot.posted = slot.isLeftOver = slot.isMet = false;
}

bool ReceiveMatcher::isMeant(const Slot& slot, const Envelope& envelope) const {
  return !slot.posted || slot.isLeftOver ||
         (envelope.ordinal == slot.wanted.ordinal && envelope.part == slot.wanted.part);
}

ReceiveMatcher::Match ReceiveMatcher::match(const Slot& slot, const Envelope& envelope,
                                            std::vector<Posted>& ended) {
  if (isMeant(slot, envelope)) return Match::kMeant;
  const Part sent = envelope.part;
  const Part wanted = slot.wanted.part;
  // Another message than the receive's, or another of its pieces: a message before this one has
  // another number of pieces. Its own envelope tells, unless all before have met theirs.
  if (envelope.ordinal != slot.wanted.ordinal || sent.index != wanted.index) {
    for (uint64_t number = head_; number < slot.number; ++number)
      if (!at(number).isMet) return Match::kNotYet;
    return Match::kCorrupt;
  }
  if (!canRealign(slot, sent)) return Match::kCorrupt;
  realign(slot.number - sent.index, sent, wanted, ended);
  return Match::kRealigned;
}

// The message's first piece is in the window, and none of its pieces was taken for a receive's.
bool ReceiveMatcher::canRealign(const Slot& slot, const Part& sent) const {
  const uint64_t first = slot.number - sent.index;
  if (first < head_) return false;
  for (uint64_t number = first; number < std::min(first + sent.pieces(), end_); ++number)
    if (number != slot.number && at(number).isMet) return false;
  return true;
}

// Takes the numbers from `first` on back from all receives, ends those of the message, and keeps
// the rest for admit(), which comes to the numbers after the message's.
void ReceiveMatcher::realign(uint64_t first, const Part& sent, const Part& wanted,
                             std::vector<Posted>& ended) {
  std::deque<Posted> all;
  for (uint64_t number = first; number < end_; ++number) {
    Slot& slot = at(number);
    // Those that are met are so by their own: their ordinals say so.
    if (!slot.posted || slot.isLeftOver || slot.isMet) continue;
    all.push_back(std::exchange(slot.wanted, {}));
    slot.posted = false;
  }
  Posted more;
  while (all.size() < wanted.pieces() && nextReceive(more)) all.push_back(std::move(more));
  for (uint64_t i = 0; i < wanted.pieces() && !all.empty(); ++i) {
    ended.push_back(std::move(all.front()));
    all.pop_front();
  }
  returned_.insert(returned_.begin(), std::make_move_iterator(all.begin()),
                   std::make_move_iterator(all.end()));
  next_ = first;
  leftOver_.push_back({first, first + sent.pieces()});
}

bool ReceiveMatcher::withdraw(uint64_t number) {
  if (number < head_ || withdrawn_.size() >= kMaxWithdrawn) return false;
  return withdrawn_.insert(number).second;
}

uint32_t ReceiveMatcher::dropPassedWithdrawals() {
  uint32_t dropped = 0;
  for (; !withdrawn_.empty() && *withdrawn_.begin() < head_; ++dropped)
    withdrawn_.erase(withdrawn_.begin());
  return dropped;
}

std::vector<uint64_t> ReceiveMatcher::withdrawnUnposted() {
  std::vector<uint64_t> numbers;
  for (const uint64_t number : withdrawn_) {
    if (!isInWindow(number)) break;
    if (at(number).posted) continue;
    at(number).number = number;
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace peerlane
