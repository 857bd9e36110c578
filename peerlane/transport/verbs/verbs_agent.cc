// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_agent.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/transport/verbs/request_failure.h"
#include "peerlane/transport/verbs/work_checks.h"

namespace peerlane {
namespace {

using Cut = RequestCutter::Cut;

}  // namespace

VerbsAgent::VerbsAgent(std::string name, const Surroundings& around,
                       std::unique_ptr<QueuePair> pair, ControlBlock control, uint32_t receives,
                       const VerbsAgreement& agreed)
    : name_(std::move(name)),
      around_(around),
      control_(std::move(control)),
      receives_(receives),
      agreed_(agreed),
      cutter_(around_.keys, around_.bounces, control_, agreed_, pair->limits()),
      news_(around_.regions,
            {control_.data() + control_block::kMail, receives_ * control_block::kMailBytes},
            receives_, agreed_.ordersWrites),
      lanes_(std::move(pair)) {
  around_.queues.add(lanes_.first().pair->number(), *this);
}

VerbsAgent::~VerbsAgent() {
  close(Code::kClosed);
  lanes_.endAll();  // before another link gets the control block
  for (const uint32_t number : lanes_.numbers()) around_.queues.remove(number);
  around_.queues.giveBack(0, receives_);
  for (const auto& lane : lanes_.all()) around_.queues.giveBack(lane->pair->limits().requests, 0);
}

Served VerbsAgent::serve(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Code code = refusalOf(entry);
  const AgentWork* before = work.mailbox->previous(work);
  if (before != nullptr && before->finished.load(std::memory_order_acquire)) before = nullptr;
  if (code == Code::kOk && entry.onlyAfterPrevious) code = failureBefore(work);
  if (code == Code::kOk) {
    const bool isShared = mayBeShared(entry);
    const TurnHolder turn(right_);
    if (state_ != State::kOver) {
      if (before != nullptr && (isShared || !isReady(entry, *before))) return Served::kAgain;
      accept(work, before, isShared);
      return Served::kSent;
    }
    code = health().code();
  }
  work.code.store(code, std::memory_order_relaxed);
  return Served::kDone;
}

// Whether it may be posted while the one before it in its mailbox is under way.
bool VerbsAgent::isReady(const MailboxEntry& entry, const AgentWork& before) const {
  if (WorkState::of(before).isStriped()) return false;
  return agreed_.ordersWrites || isWord(entry.verb);
}

void VerbsAgent::accept(AgentWork& work, const AgentWork* before, bool isShared) {
  WorkState state(work);
  if (before != nullptr && readsBack(before->entry->verb)) state.setFenced();
  if (isShared) state.setStriped();
  waiting_.add(work);
}

bool VerbsAgent::mayBeShared(const MailboxEntry& entry) {
  const bool isShared = pairs_.load(std::memory_order_relaxed) > 1;
  if ((!isShared && !around_.wantPairs) || !StripeCutter::isLarge(entry)) return false;
  if (!isShared && !hasAsked_.exchange(true, std::memory_order_relaxed)) around_.wantPairs();
  return isShared;
}

void VerbsAgent::handedOut() {
  (void)pumpAndTell();
}

void VerbsAgent::abandon(AgentWork& work, Code code) {
  {
    const TurnHolder turn(right_);
    const bool waits = waiting_.remove(work);
    WorkState state(work);
    // Posted whole: it ends by its answer. None comes when the pairs have failed.
    if (!waits && (state_ != State::kBroken || state.underWay() == 0)) return;
    state.setWhole();
    if (work.code.load(std::memory_order_relaxed) == Code::kOk)
      work.code.store(code, std::memory_order_relaxed);
    if (isStopped_) forget(work);
    if (isStopped_ || state.underWay() == 0) finished_.add(work);
  }
  (void)pumpAndTell();
}

bool VerbsAgent::advance() {
  return isWaiting_.load(std::memory_order_relaxed) && pumpAndTell();
}

bool VerbsAgent::settle(bool isPolled) {
  {
    const TurnHolder turn(right_);
    news_.setPolled(isPolled);
  }
  (void)pumpAndTell();
  const TurnHolder turn(right_);
  return news_.isBelieved() && state_ != State::kOver;
}

// Works are told after the right was let go: the mailbox may ask the agent to serve its next entry.
bool VerbsAgent::pumpAndTell() {
  right_.take();
  const uint32_t before = posts_;
  pump();
  const bool hasNews = std::exchange(hasNews_, false);
  const bool hasFailed = std::exchange(owesFailure_, false);
  const bool moved = posts_ != before || !finished_.isEmpty() || hasNews;
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  while (AgentWork* const work = finished.takeFirst())
    Mailbox::finish(*work, work->code.load(std::memory_order_relaxed));
  if (hasFailed) around_.pairFailed();
  if (hasNews && around_.workArrived) around_.workArrived();
  return moved;
}

Status VerbsAgent::health() const {
  const MutexLock lock(failureLock_);
  return failure_;
}

void VerbsAgent::close(Code code) {
  {
    const TurnHolder turn(right_);
    end(Status(code, name_ + " was closed"), nullptr, /*mayAnswer=*/code == Code::kClosed);
  }
  (void)pumpAndTell();
}

bool VerbsAgent::isBroken() const {
  const TurnHolder turn(right_);
  return state_ == State::kBroken;
}

bool VerbsAgent::isUnderWay() const {
  const TurnHolder turn(right_);
  return state_ == State::kRunning && !lanes_.isIdle();
}

// The caller settles.
void VerbsAgent::fail(const Status& why) {
  const TurnHolder turn(right_);
  if (state_ != State::kOver) PEERLANE_LOG_WARN("{}: {}", name_, why.message());
  end(why, nullptr);
}

void VerbsAgent::breakOff(const Status& why) {
  const TurnHolder turn(right_);
  if (state_ == State::kRunning) PEERLANE_LOG_WARN("{}: {}", name_, why.message());
  halt(why, nullptr);
}

void VerbsAgent::pump() {
  // Large, and of one agent at a time.
  constinit thread_local RequestChain chain;
  chain.clear();
  if (state_ == State::kRunning) {
    news_.tell(cutter_, chain, lanes_.first().ledger);
    pumpWorks(chain);
    // The work that would have brought the answer was abandoned.
    if (state_ == State::kRunning && lanes_.first().ledger.owesAnswer())
      (void)news_.tellAlways(cutter_, chain, lanes_.first().ledger);
    post(chain);
  }
  isWaiting_.store(state_ == State::kRunning && (!waiting_.isEmpty() || news_.isOwing()),
                   std::memory_order_relaxed);
}

// Makes and posts requests for the works that wait, in their order, as far as there is room.
void VerbsAgent::pumpWorks(RequestChain& chain) {
  RequestLedger& ledger = lanes_.first().ledger;
  StalledMailboxes stalled;
  AgentWork* before = nullptr;  // the last one that stays
  for (AgentWork* work = waiting_.first(); work != nullptr && state_ == State::kRunning;) {
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

RequestCutter::Cut VerbsAgent::cut(AgentWork& work, RequestChain& chain) {
  if (work.code.load(std::memory_order_relaxed) != Code::kOk || isInVain(work)) return Cut::kWhole;
  RequestLedger& ledger = lanes_.first().ledger;
  if (!WorkState(work).isStriped()) return cutter_.cut(work, chain, ledger);
  if (!chain.isEmpty() && ledger.owesAnswer()) ledger.sign(chain);
  post(chain);
  Status failure;
  const Cut made = stripes_.cut(work, lanes_.all(), failure);
  ++posts_;
  if (!failure.isOk()) refused(failure);
  return failure.isOk() ? made : Cut::kStalled;
}

// No request will be made for it any more. The answer to a later entry of its mailbox does for it,
// too.
void VerbsAgent::makeWhole(AgentWork& work, AgentWork* before, RequestChain& chain) {
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

void VerbsAgent::post(RequestChain& chain) {
  if (chain.isEmpty()) return;
  ++posts_;
  if (const Status status = lanes_.first().post(chain); !status.isOk()) refused(status);
}

void VerbsAgent::refused(const Status& why) {
  const Status named = why.withContext(name_);
  PEERLANE_LOG_WARN("{}", named.message());
  end(named, nullptr);
}

void VerbsAgent::ended(const ibv_wc& completion) {
  const TurnHolder turn(right_);
  PairLane* const lane = state_ == State::kOver ? nullptr : lanes_.of(completion.wr_id);
  if (lane == nullptr) return;
  RequestLedger& ledger = lane->ledger;
  if (completion.status == IBV_WC_SUCCESS) {
    while (const Request* const each = ledger.takeUntil(completion.wr_id))
      release(*each, /*isGood=*/true);
    return;
  }
  const bool isFirst = completion.status != IBV_WC_WR_FLUSH_ERR;
  if (!isFirst && state_ == State::kBroken) return;
  const Status why = requestFailure(name_, lane->pair->name(), completion);
  PEERLANE_LOG_WARN("{}", why.message());
  // The first one that failed: all before it have ended well.
  while (const Request* const each = isFirst ? ledger.takeBefore(completion.wr_id) : nullptr)
    release(*each, /*isGood=*/true);
  AgentWork* const guilty =
      isToBlame(completion.status) ? ledger.find(completion.wr_id)->work : nullptr;
  noneExecuted_ |= isToBlame(completion.status) && lane == &lanes_.first();
  halt(why, guilty);
}

// A peer that stopped polling says so before it sleeps. Either it said so before the word was
// acknowledged, and this side sees that now, or it sees the word in its last look.
void VerbsAgent::release(const Request& request, bool isGood) {
  if (request.isQuiet && isGood && !cutter_.peerPolls()) news_.oweWake();
  giveSlotBack(request, isGood);
  if (request.work == nullptr) return;
  if (isGood) remakes_ = 0;
  WorkState state(*request.work);
  state.ended();
  if (state.isWhole() && state.underWay() == 0) finished_.add(*request.work);
}

void VerbsAgent::giveSlotBack(const Request& request, bool isGood) {
  if (request.slot == BounceSlots::kNone) return;
  if (isGood && request.to != nullptr)
    std::memcpy(request.to, around_.bounces.at(request.slot), request.bytes);
  hasNews_ |= around_.bounces.giveBack(request.slot);
}

void VerbsAgent::arrived(uint32_t number) {
  const TurnHolder turn(right_);
  if (state_ == State::kOver) return;
  News news;
  const Status status = news_.take(number, news);
  if (news.kind == News::Kind::kTaken) endMails();
  if (status.isOk()) return;
  PEERLANE_LOG_WARN("{}: {}", name_, status.message());
  if (status.code() == Code::kCorrupt) end(status, nullptr);
}

// Those that the peer has applied.
void VerbsAgent::endMails() {
  while (!mailed_.isEmpty() && mailed_.first()->offset <= cutter_.taken()) {
    AgentWork& work = *mailed_.takeFirst();
    WorkState state(work);
    state.ended();
    if (state.underWay() == 0) finished_.add(work);
  }
}

// One work is to blame for a refusal. All others wait until the pairs are made anew, or else end.
void VerbsAgent::halt(const Status& why, AgentWork* guilty) {
  if (state_ == State::kOver) return;
  if (!around_.pairFailed || remakes_ >= kMostRemakes) return end(why, guilty);
  if (guilty != nullptr && guilty->code.load(std::memory_order_relaxed) == Code::kOk)
    guilty->code.store(why.code(), std::memory_order_relaxed);
  if (state_ == State::kBroken) return;
  state_ = State::kBroken;
  ++remakes_;
  owesFailure_ = hasNews_ = true;
  const MutexLock lock(failureLock_);
  failure_ = Status(Code::kTryAgain,
                    name_ + ": its pairs are made anew, because " + std::string(why.message()));
}

// The device is done with all memory before a work is told to have ended. One work is to blame for
// a refusal, and the link ends for all.
void VerbsAgent::end(const Status& why, const AgentWork* guilty, bool mayAnswer) {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  hasNews_ = true;
  const Code shared = why.code() == Code::kPermissionDenied ? Code::kPeerLost : why.code();
  {
    const MutexLock lock(failureLock_);
    failure_ = shared == why.code() ? why : Status(shared, std::string(why.message()));
  }
  if (!mayAnswer || !lanes_.isIdle()) lanes_.endAll();
  const auto mark = [&](AgentWork& work) {
    if (work.code.load(std::memory_order_relaxed) == Code::kOk)
      work.code.store(&work == guilty ? why.code() : shared, std::memory_order_relaxed);
  };
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

void VerbsAgent::addPairs(std::vector<std::unique_ptr<QueuePair>> pairs) {
  for (auto& pair : pairs) {
    around_.queues.add(pair->number(), *this);
    const TurnHolder turn(right_);
    lanes_.add(std::move(pair));
    pairs_.store(static_cast<uint32_t>(lanes_.all().size()), std::memory_order_relaxed);
  }
}

std::optional<uint64_t> VerbsAgent::stopPairs() {
  std::vector<uint32_t> numbers;
  {
    const TurnHolder turn(right_);
    halt(Status(Code::kPeerLost, "the peer makes them anew"), nullptr);
    owesFailure_ = false;
    if (state_ == State::kOver) return std::nullopt;
    lanes_.stopAll();
    numbers = lanes_.numbers();
  }
  const bool isAll = around_.queues.takeRest(numbers.front());
  for (const uint32_t number : numbers) around_.queues.remove(number);
  const uint64_t taken = endPairs();
  (void)pumpAndTell();
  return isAll ? std::optional(taken) : std::nullopt;
}

uint64_t VerbsAgent::endPairs() {
  const TurnHolder turn(right_);
  lanes_.endAll();
  if (state_ == State::kOver) return 0;
  isStopped_ = true;
  // They would have ended by an answer.
  for (AgentWork* const work : lanes_.failedWorks()) {
    forget(*work);
    finished_.add(*work);
  }
  control_.clear();
  return news_.taken();
}

void VerbsAgent::join(std::unique_ptr<QueuePair> pair, std::optional<uint64_t> taken) {
  const uint32_t number = pair->number();
  std::vector<std::unique_ptr<PairLane>> old;
  {
    const TurnHolder turn(right_);
    if (state_ != State::kBroken) return;
    replay(taken);
    old = lanes_.replace(std::move(pair));
    pairs_.store(1, std::memory_order_relaxed);
    hasAsked_.store(false, std::memory_order_relaxed);
    cutter_.startAgain();
    news_.startAgain();
    isStopped_ = noneExecuted_ = false;
    state_ = State::kJoined;
  }
  for (size_t i = 1; i < old.size(); ++i)
    around_.queues.giveBack(old[i]->pair->limits().requests, 0);
  around_.queues.add(number, *this);
  (void)pumpAndTell();
}

// In the order of their mailboxes. Works of different mailboxes have none.
void VerbsAgent::replay(std::optional<uint64_t> taken) {
  Replay replay(taken, noneExecuted_);
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
  for (const Replay::Judged& each : judged) {
    AgentWork& work = *each.work;
    if (each.fate == Replay::Fate::kLost) work.code.store(Code::kPeerLost);
    if (each.fate != Replay::Fate::kAgain) {
      finished_.add(work);
      continue;
    }
    work.piece = 0;
    work.offset = 0;
    WorkState(work).startAgain();
    const AgentWork* const before = work.mailbox->previous(work);
    accept(work, before, /*isShared=*/false);
  }
}

// Requires: the pairs have ended.
void VerbsAgent::forget(const AgentWork& work) {
  mailed_.remove(work);
  lanes_.forget(work);
}

void VerbsAgent::goOn() {
  {
    const TurnHolder turn(right_);
    if (state_ != State::kJoined) return;
    state_ = State::kRunning;
    hasNews_ = true;
    const MutexLock lock(failureLock_);
    failure_ = Status::ok();
  }
  PEERLANE_LOG_INFO("{}: its pairs were made anew", name_);
  (void)pumpAndTell();
}

}  // namespace peerlane
