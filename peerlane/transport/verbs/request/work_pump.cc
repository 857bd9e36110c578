// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/work_pump.h"

#include <algorithm>
#include <map>

#include "peerlane/core/log.h"
#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/transport/verbs/request/replay.h"
#include "peerlane/transport/verbs/request/work_checks.h"

namespace peerlane {
namespace {

using Cut = RequestCutter::Cut;

bool mustBeProven(const AgentWork& work) {
  return work.mustStand && work.entry->verb == Verb::kPut &&
         work.code.load(std::memory_order_relaxed) == Code::kOk;
}

}  // namespace

WorkPump::WorkPump(MemoryKeys& keys, BounceSlots& bounces, RegionDirectory& regions,
                   const ControlBlock& control, uint32_t receives, const VerbsAgreement& agreed,
                   std::unique_ptr<QueuePair> first)
    : bounces_(bounces),
      agreed_(agreed),
      cutter_(keys, bounces, control, agreed_, first->limits()),
      news_(regions, {control.data() + control_block::kMail, receives * control_block::kMailBytes},
            receives, agreed_.ordersWrites, keys.writes()),
      lanes_(std::move(first)) {}

void WorkPump::prepare(AgentWork& work, const AgentWork* before, Way way) {
  WorkState state(work);
  if (before != nullptr && readsBack(before->entry->verb)) state.setFenced();
  if (way.isShared) state.setStriped();
  if (way.goesAsMail) state.setGoesAsMail();
}

bool WorkPump::stop(AgentWork& work) {
  WorkState(work).setWhole();
  return waiting_.remove(work);
}

bool WorkPump::pump() {
  // Large, and of one link at a time.
  constinit thread_local RequestChain chain;
  chain.clear();
  news_.tell(cutter_, chain, lanes_.first().ledger);
  pumpWorks(chain);
  // The work that would have brought the answer was abandoned.
  if (failure_.isOk() && lanes_.first().ledger.owesAnswer())
    (void)news_.tellAlways(cutter_, chain, lanes_.first().ledger);
  post(chain);
  return failure_.isOk();
}

// Makes and posts requests for the works that wait, in their order, as far as there is room.
void WorkPump::pumpWorks(RequestChain& chain) {
  RequestLedger& ledger = lanes_.first().ledger;
  StalledMailboxes stalled;
  AgentWork* before = nullptr;  // the last one that stays
  for (AgentWork* work = waiting_.first(); work != nullptr && failure_.isOk();) {
    const Cut made = stalled.holds(work->mailbox) ? Cut::kStalled : cut(*work, chain);
    if (made == Cut::kMade) continue;
    if (made == Cut::kWhole) {
      makeWhole(*work, before, chain);
      work = before == nullptr ? waiting_.first() : WorkList::after(*before);
      continue;
    }
    // A chain that is full goes, and the next one begins.
    if (!ledger.hasRoom(chain, 2)) {
      if (chain.isEmpty()) return;
      post(chain);
      continue;
    }
    if (!stalled.holds(work->mailbox)) {
      // What waits may wait for long, or be abandoned: its answer is none for what goes now.
      if (!chain.isEmpty() && ledger.owesAnswer()) ledger.sign(chain);
      if (stalled.isFull()) return;
      stalled.add(work->mailbox);
    }
    before = work;
    work = WorkList::after(*work);
  }
}

RequestCutter::Cut WorkPump::cut(AgentWork& work, RequestChain& chain) {
  if (work.code.load(std::memory_order_relaxed) != Code::kOk || isInVain(work)) return Cut::kWhole;
  RequestLedger& ledger = lanes_.first().ledger;
  if (!WorkState(work).isStriped()) {
    const Cut made = cutter_.cut(work, chain, ledger);
    return made == Cut::kWhole && mustBeProven(work) ? prove(work, chain) : made;
  }
  if (!chain.isEmpty() && ledger.owesAnswer()) ledger.sign(chain);
  post(chain);
  const Cut made = stripes_.cut(work, lanes_.all(), failure_);
  ++posts_;
  return failure_.isOk() ? made : Cut::kStalled;
}

RequestCutter::Cut WorkPump::prove(AgentWork& work, RequestChain& chain) {
  RequestLedger& ledger = lanes_.first().ledger;
  const bool mayOvertake = cutter_.mayReadsOvertake() && WorkState(work).underWay() != 0;
  if (mayOvertake || !ledger.hasRoom(chain, 1)) return Cut::kStalled;
  cutter_.prove(work, chain, ledger);
  return Cut::kWhole;
}

// No request will be made for it any more. The answer to a later entry of its mailbox does for it,
// too.
void WorkPump::makeWhole(AgentWork& work, AgentWork* before, RequestChain& chain) {
  WorkState state(work);
  state.setWhole();
  waiting_.takeAfter(before);
  if (state.underWay() == 0) return finished_.add(work);
  if (state.isMailed()) {
    state.began();  // the peer's word that it has applied it
    mailed_.add(work);
  }
  const AgentWork* const next = before == nullptr ? waiting_.first() : WorkList::after(*before);
  if (!chain.isEmpty() && (next == nullptr || next->mailbox != work.mailbox))
    lanes_.first().ledger.sign(chain);
}

void WorkPump::post(RequestChain& chain) {
  if (chain.isEmpty() || !failure_.isOk()) return;
  ++posts_;
  failure_ = lanes_.first().post(chain);
}

void WorkPump::endBefore(PairLane& lane, uint64_t request) {
  while (const Request* const each = lane.ledger.takeBefore(request))
    release(*each, /*isGood=*/true);
}

void WorkPump::endUntil(PairLane& lane, uint64_t request) {
  while (const Request* const each = lane.ledger.takeUntil(request))
    release(*each, /*isGood=*/true);
}

// A peer that stopped polling says so before it sleeps. Either it said so before the word was
// acknowledged, and this side sees that now, or it sees the word in its last look.
void WorkPump::release(const Request& request, bool isGood) {
  if (request.isQuiet && isGood && !cutter_.peerPolls()) news_.oweWake();
  giveSlotBack(request, isGood);
  if (request.work == nullptr) return;
  hasProgress_ |= isGood;
  WorkState state(*request.work);
  state.ended();
  if (state.isWhole() && state.underWay() == 0) finished_.add(*request.work);
}

void WorkPump::giveSlotBack(const Request& request, bool isGood) {
  if (request.slot == BounceSlots::kNone) return;
  if (isGood && request.to != nullptr) bring(request);
  hasFreed_ |= bounces_.giveBack(request.slot);
}

// Out of the slot. The program may have lost the memory since the get was posted: then the get
// alone fails.
void WorkPump::bring(const Request& request) {
  const IoSlice to{request.to, request.bytes};
  const IoSlice from{bounces_.at(request.slot), request.bytes};
  if (nofaultWrite({&to, 1}, {&from, 1}) == request.bytes) return;
  PEERLANE_LOG_DEBUG("verbs: memory to be filled cannot be written");
  Code none = Code::kOk;
  request.work->code.compare_exchange_strong(none, Code::kRevoked, std::memory_order_relaxed);
}

void WorkPump::endMails() {
  while (!mailed_.isEmpty() && mailed_.first()->offset <= cutter_.taken()) {
    AgentWork& work = *mailed_.takeFirst();
    WorkState state(work);
    state.ended();
    if (state.underWay() == 0) finished_.add(work);
  }
}

void WorkPump::endAll(const std::function<void(AgentWork&)>& mark) {
  while (AgentWork* const work = refused_.takeFirst()) finished_.add(*work);
  while (AgentWork* const work = waiting_.takeFirst()) {
    mark(*work);
    WorkState state(*work);
    state.setWhole();
    if (state.underWay() == 0) finished_.add(*work);
  }
  while (AgentWork* const work = mailed_.takeFirst()) {
    mark(*work);
    WorkState state(*work);
    state.ended();
    if (state.underWay() == 0) finished_.add(*work);
  }
  for (const auto& lane : lanes_.all())
    while (const Request* const each = lane->ledger.takeOldest()) {
      if (each->work != nullptr) mark(*each->work);
      release(*each, /*isGood=*/false);
    }
}

void WorkPump::endFailed() {
  for (AgentWork* const work : lanes_.failedWorks()) {
    drop(*work);
    const bool isRefused = work->code.load(std::memory_order_relaxed) == Code::kPermissionDenied;
    (isRefused ? refused_ : finished_).add(*work);
  }
}

void WorkPump::forget(AgentWork& work) {
  drop(work);
  finished_.add(work);
}

void WorkPump::drop(AgentWork& work) {
  mailed_.remove(work);
  lanes_.forget(work);
  WorkState state(work);
  state.startAgain();
  state.setWhole();
}

std::vector<std::unique_ptr<PairLane>> WorkPump::startAgain(std::unique_ptr<QueuePair> pair,
                                                            std::optional<uint64_t> taken,
                                                            bool noneExecuted) {
  while (AgentWork* const work = refused_.takeFirst()) finished_.add(*work);
  replay(taken, noneExecuted);
  cutter_.startAgain();
  news_.startAgain();
  return lanes_.replace(std::move(pair));
}

// In the order of their mailboxes. Works of different mailboxes have none.
void WorkPump::replay(std::optional<uint64_t> taken, bool noneExecuted) {
  Replay replay(taken, noneExecuted);
  for (const auto& lane : lanes_.all())
    lane == lanes_.all().front() ? replay.addFirst(lane->ledger) : replay.addOther(lane->ledger);
  while (AgentWork* const work = mailed_.takeFirst()) replay.add(*work);
  while (AgentWork* const work = waiting_.takeFirst()) replay.add(*work);
  const std::vector<Replay::Judged> judged = replay.judge();
  const auto isDone = [&](const AgentWork* work) {
    return std::any_of(judged.begin(), judged.end(), [work](const Replay::Judged& each) {
      return each.work == work && each.fate == Replay::Fate::kDone;
    });
  };
  for (const auto& lane : lanes_.all())
    while (const Request* const each = lane->ledger.takeOldest())
      giveSlotBack(*each, isDone(each->work));
  std::map<const Mailbox*, const AgentWork*> again;  // the last of each
  for (const Replay::Judged& each : judged) {
    AgentWork& work = *each.work;
    if (each.fate == Replay::Fate::kLost) work.code.store(Code::kPeerLost);
    if (each.fate != Replay::Fate::kAgain) {
      finished_.add(work);
      continue;
    }
    work.piece = 0;
    work.offset = 0;
    WorkState state(work);
    const bool goesAsMail = state.goesAsMail();
    state.startAgain();
    prepare(work, again[work.mailbox], {.goesAsMail = goesAsMail});
    again[work.mailbox] = &work;
    accept(work);
  }
}

}  // namespace peerlane
