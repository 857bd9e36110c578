// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/replay.h"

#include <algorithm>

namespace peerlane {
namespace {

// In their mailbox. Requires: both are unfinished.
bool isBefore(const AgentWork& first, const AgentWork& second) {
  for (const AgentWork* at = second.mailbox->previous(second); at != nullptr;
       at = at->mailbox->previous(*at))
    if (at == &first) return true;
  return false;
}

bool isWord(const AgentWork& work) {
  return work.entry->verb == Verb::kStore || work.entry->verb == Verb::kAdd64;
}

// The user gets bytes of the peer, or knows that they are there.
bool needsAnswer(const AgentWork& work) {
  return work.entry->verb == Verb::kGet || work.entry->verb == Verb::kFlush;
}

}  // namespace

Replay::Known& Replay::known(AgentWork& work) {
  std::vector<Known>& all = mailboxes_[work.mailbox];
  for (Known& each : all)
    if (each.work == &work) return each;
  all.push_back({.work = &work});
  return all.back();
}

void Replay::addFirst(RequestLedger& ledger) {
  uint32_t executed = 0;                   // of them, at least
  uint32_t untouched = ledger.underWay();  // from here on none
  for (uint32_t i = 0; i < ledger.underWay(); ++i) {
    const uint64_t news = ledger.at(i).news;
    if (news != 0 && isTaken(news)) executed = i + 1;
    if (news != 0 && taken_ && !isTaken(news)) untouched = std::min(untouched, i);
  }
  for (uint32_t i = 0; i < ledger.underWay(); ++i) {
    const RequestLedger::Request& request = ledger.at(i);
    if (request.work == nullptr) continue;
    Known& one = known(*request.work);
    if (!one.isPosted) {
      one.wasExecuted = i < executed;
      one.isUntouched = i >= untouched;
    }
    one.isPosted = true;
    one.isExecuted = i < executed;
    if (!one.isExecuted) continue;
    for (Known& other : mailboxes_[request.work->mailbox])
      if (other.work != request.work && isBefore(*other.work, *request.work))
        other.broughtBytes = true;
  }
}

// Nothing tells how far it got. A work that is shared is alone in its mailbox, so it goes again.
void Replay::addOther(RequestLedger& ledger) {
  for (uint32_t i = 0; i < ledger.underWay(); ++i)
    if (AgentWork* const work = ledger.at(i).work; work != nullptr) {
      Known& one = known(*work);
      one.isPosted = true;
      one.isExecuted = false;
    }
}

Replay::Fate Replay::fateOf(const Known& one) const {
  AgentWork& work = *one.work;
  const WorkState state(work);
  if (work.code.load(std::memory_order_relaxed) != Code::kOk) return Fate::kDone;
  if (state.isMailed()) {
    if (isTaken(work.offset)) return Fate::kDone;
    return taken_ || noneExecuted_ ? Fate::kAgain : Fate::kLost;
  }
  const bool isExecuted = one.isExecuted && state.isWhole() && !state.isStriped();
  if (!one.isPosted) return Fate::kAgain;
  if (needsAnswer(work)) return isExecuted && one.broughtBytes ? Fate::kDone : Fate::kAgain;
  if (isExecuted) return Fate::kDone;
  if (!isWord(work) || noneExecuted_ || one.isUntouched) return Fate::kAgain;
  if (work.entry->verb == Verb::kAdd64) return one.wasExecuted ? Fate::kDone : Fate::kLost;
  return Fate::kLost;
}

std::vector<Replay::Judged> Replay::judge() const {
  std::vector<Judged> judged;
  for (const auto& [mailbox, works] : mailboxes_) {
    std::vector<const Known*> inOrder;
    inOrder.reserve(works.size());
    for (const Known& each : works) inOrder.push_back(&each);
    std::sort(inOrder.begin(), inOrder.end(), [](const Known* a, const Known* b) {
      return a != b && isBefore(*a->work, *b->work);
    });
    const size_t begin = judged.size();
    bool isLost = false;
    for (const Known* each : inOrder) {
      Fate fate = fateOf(*each);
      if (isLost && fate == Fate::kAgain) fate = Fate::kLost;
      judged.push_back({each->work, fate});
      if (fate != Fate::kLost || isLost) continue;
      isLost = true;
      for (size_t i = begin; i < judged.size(); ++i)
        if (judged[i].fate == Fate::kAgain) judged[i].fate = Fate::kLost;
    }
  }
  return judged;
}

}  // namespace peerlane
