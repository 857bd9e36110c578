// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_agent.h"

#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/transport/verbs/request/request_failure.h"
#include "peerlane/transport/verbs/request/work_checks.h"

namespace peerlane {

VerbsAgent::VerbsAgent(std::string name, const Surroundings& around,
                       std::unique_ptr<QueuePair> pair, ControlBlock control, uint32_t receives,
                       const VerbsAgreement& agreed)
    : name_(std::move(name)),
      around_(around),
      control_(std::move(control)),
      receives_(receives),
      ordersWrites_(agreed.ordersWrites),
      adds_(agreed.adds),
      works_(around_.keys, around_.bounces, around_.regions, control_, receives_, agreed,
             std::move(pair)) {
  around_.queues.add(works_.lanes().first().pair->number(), *this);
}

VerbsAgent::~VerbsAgent() {
  close(Code::kClosed);
  PairLanes& lanes = works_.lanes();
  lanes.endAll();  // before another link gets the control block
  for (const uint32_t number : lanes.numbers()) around_.queues.remove(number);
  around_.queues.giveBack(0, receives_);
  for (const auto& lane : lanes.all()) around_.queues.giveBack(lane->pair->limits().requests, 0);
}

Served VerbsAgent::serve(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Code code = refusalOf(entry);
  const AgentWork* before = work.mailbox->previous(work);
  if (before != nullptr && before->finished.load(std::memory_order_acquire)) before = nullptr;
  if (code == Code::kOk && entry.onlyAfterPrevious) code = failureBefore(work);
  if (code != Code::kOk) {
    work.code.store(code, std::memory_order_relaxed);
    return Served::kDone;
  }
  const WorkPump::Way way{.isShared = mayBeShared(entry), .goesAsMail = goesAsMail(entry)};
  uint32_t& last = work.mailbox->agentPart;
  if (before != nullptr && (way.isShared || !mayFollow(entry, last))) return Served::kAgain;
  last = way.isShared ? kShared : way.goesAsMail ? kAsMail : kAlone;
  WorkPump::prepare(work, before, way);
  return Served::kSent;
}

// Whether it may be posted while the one before it, which goes like this, is under way.
bool VerbsAgent::mayFollow(const MailboxEntry& entry, uint32_t before) const {
  if (before == kShared) return false;
  // What the peer does before it writes a mailed word takes no time of the pair's.
  return isWord(entry.verb) || (ordersWrites_ && before == kAlone);
}

bool VerbsAgent::goesAsMail(const MailboxEntry& entry) const {
  if (!isWord(entry.verb)) return false;
  return mailsWords_.load(std::memory_order_acquire) || (entry.verb == Verb::kAdd64 && !adds_);
}

bool VerbsAgent::mayBeShared(const MailboxEntry& entry) {
  const bool isShared = pairs_.load(std::memory_order_relaxed) > 1;
  if ((!isShared && !around_.wantPairs) || !StripeCutter::isLarge(entry)) return false;
  if (!isShared && !hasAsked_.exchange(true, std::memory_order_relaxed)) around_.wantPairs();
  return isShared;
}

void VerbsAgent::handedOut(AgentWork& first, AgentWork& last) {
  (void)pumpAndTell(&first, &last);
}

void VerbsAgent::accept(AgentWork& work) {
  if (state_ != State::kOver) return works_.accept(work);
  work.code.store(health().code(), std::memory_order_relaxed);
  works_.finish(work);
}

void VerbsAgent::abandon(AgentWork& work, Code code) {
  {
    const TurnHolder turn(right_);
    WorkState state(work);
    const bool isRefused = works_.takeRefused(work);
    const bool wasWhole = state.isWhole() && !isRefused;
    // Posted whole: it ends by its answer. None comes when the pairs have failed.
    if (wasWhole && (state_ != State::kBroken || state.underWay() == 0)) return;
    if (!wasWhole && !isRefused && !works_.stop(work)) return;
    if (work.code.load(std::memory_order_relaxed) == Code::kOk)
      work.code.store(code, std::memory_order_relaxed);
    if (isStopped_)
      works_.forget(work);
    else if (state.underWay() == 0)
      works_.finish(work);
  }
  (void)pumpAndTell();
}

bool VerbsAgent::advance() {
  return isWaiting_.load(std::memory_order_relaxed) && pumpAndTell();
}

bool VerbsAgent::settle(bool isPolled) {
  {
    const TurnHolder turn(right_);
    works_.news().setPolled(isPolled);
  }
  (void)pumpAndTell();
  const TurnHolder turn(right_);
  return works_.news().isBelieved() && state_ != State::kOver;
}

// Works are told after the right was let go: the mailbox may ask the agent to serve its next entry.
bool VerbsAgent::pumpAndTell(AgentWork* first, AgentWork* last) {
  right_.take();
  for (AgentWork* work = first; work != nullptr;
       work = work == last ? nullptr : &work->mailbox->next(*work))
    if (!work->finished.load(std::memory_order_relaxed)) accept(*work);
  const uint32_t before = works_.posts();
  if (state_ == State::kRunning && !works_.pump()) {
    const Status named = works_.failure().withContext(name_);
    PEERLANE_LOG_WARN("{}", named.message());
    end(named, nullptr);
  }
  isWaiting_.store(state_ == State::kRunning && works_.isWaiting(), std::memory_order_relaxed);
  const bool isFreed = works_.takeFreed();
  const bool hasNews = std::exchange(hasNews_, false) || isFreed;
  const bool hasFailed = std::exchange(owesFailure_, false);
  const bool moved = works_.posts() != before || works_.hasFinished() || hasNews;
  WorkList finished = works_.takeFinished();
  right_.letGo();
  flushGets(finished);
  while (AgentWork* const work = finished.takeFirst())
    Mailbox::finish(*work, work->code.load(std::memory_order_relaxed));
  if (hasFailed) around_.pairFailed();
  if (hasNews && around_.workArrived) around_.workArrived();
  return moved;
}

// What gets brought is visible to the GPUs whose memory it is before anybody is told.
void VerbsAgent::flushGets(const WorkList& finished) const {
  const DeviceWrites& writes = around_.keys.writes();
  if (!writes.areFlushed()) return;
  const auto eachGet = [&finished](const auto& visit) {
    for (AgentWork* work = finished.first(); work != nullptr; work = WorkList::after(*work))
      if (work->entry->verb == Verb::kGet) visit(*work);
  };
  bool hasGets = false;
  eachGet([&](const AgentWork&) { hasGets = true; });
  if (!hasGets) return;
  const Status flushed = writes.flush();
  if (flushed.isOk()) return;
  if (const auto leftOut = flushLines_.take())
    PEERLANE_LOG_WARN("{}: {}{}", name_, flushed.message(), *leftOut);
  eachGet([&](AgentWork& work) {
    if (work.code.load(std::memory_order_relaxed) == Code::kOk)
      work.code.store(flushed.code(), std::memory_order_relaxed);
  });
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

void VerbsAgent::expectFirstAnswer() {
  const TurnHolder turn(right_);
  isAnswered_ = false;
}

bool VerbsAgent::isBroken() const {
  const TurnHolder turn(right_);
  return state_ == State::kBroken;
}

bool VerbsAgent::isUnderWay() const {
  const TurnHolder turn(right_);
  return state_ == State::kRunning && !works_.isIdle();
}

// The caller settles.
void VerbsAgent::fail(const Status& why) {
  const TurnHolder turn(right_);
  if (state_ != State::kOver) PEERLANE_LOG_WARN("{}: {}", name_, why.message());
  end(why, nullptr);
}

void VerbsAgent::breakOff(const Status& why, bool isOfPeer) {
  const TurnHolder turn(right_);
  if (state_ == State::kBroken && flush_) {
    if (isOfPeer) {
      --remakes_;
      flush_.reset();
    } else {
      flush_ = why;
    }
  }
  if (state_ == State::kRunning) PEERLANE_LOG_WARN("{}: {}", name_, why.message());
  halt(why, nullptr, !isAnswered_ ? 0 : isOfPeer ? kNotCounted : kMostRemakes);
}

void VerbsAgent::ended(const ibv_wc& completion) {
  const TurnHolder turn(right_);
  PairLane* const lane = state_ == State::kOver ? nullptr : works_.lanes().of(completion.wr_id);
  if (lane == nullptr) return;
  if (completion.status == IBV_WC_SUCCESS) {
    isAnswered_ = true;
    works_.endUntil(*lane, completion.wr_id);
    if (works_.takeProgress()) {
      remakes_ = 0;
      flush_.reset();
    }
    return;
  }
  const bool isFirst = completion.status != IBV_WC_WR_FLUSH_ERR;
  if (!isFirst && state_ == State::kBroken) return;
  const Status why = requestFailure(name_, lane->pair->name(), completion);
  PEERLANE_LOG_WARN("{}", why.message());
  // The first one that failed: all before it have ended well.
  if (isFirst) works_.endBefore(*lane, completion.wr_id);
  const bool isBlamed = isToBlame(completion.status);
  noneExecuted_ |= isBlamed && lane == &works_.lanes().first();
  const bool isSilent = completion.status == IBV_WC_RETRY_EXC_ERR;
  const bool isRefused = why.code() == Code::kPermissionDenied;
  AgentWork* const guilty = isBlamed ? lane->ledger.find(completion.wr_id)->work : nullptr;
  halt(why, guilty,
       !isAnswered_ ? 0
       : isRefused  ? kNotCounted
       : isSilent   ? kMostRetries
       : isFirst    ? kMostRemakes
                    : kMostRemakes + 1);
  if (!isFirst && state_ == State::kBroken) flush_ = why;
}

void VerbsAgent::arrived(uint32_t number) {
  const TurnHolder turn(right_);
  if (state_ == State::kOver) return;
  News news;
  const Status status = works_.news().take(number, news);
  if (news.kind == News::Kind::kTaken) works_.endMails();
  if (status.isOk()) return;
  if (newsLines_.allows())
    PEERLANE_LOG_WARN("{}: {}{}", name_, status.message(), newsLines_.leftOut());
  if (status.code() == Code::kCorrupt || status.code() == Code::kSystem) end(status, nullptr);
}

// One work is to blame for a refusal. All others wait until the pairs are made anew, or else end.
void VerbsAgent::halt(const Status& why, AgentWork* guilty, uint32_t mostRemakes) {
  if (state_ == State::kOver) return;
  if (state_ != State::kBroken && (!around_.pairFailed || remakes_ >= mostRemakes))
    return end(why, guilty);
  if (guilty != nullptr && guilty->code.load(std::memory_order_relaxed) == Code::kOk)
    guilty->code.store(why.code(), std::memory_order_relaxed);
  if (state_ == State::kBroken) return;
  state_ = State::kBroken;
  if (mostRemakes != kNotCounted) ++remakes_;
  flush_.reset();
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
  if (!mayAnswer || !works_.lanes().isIdle()) works_.lanes().endAll();
  works_.endAll([&](AgentWork& work) {
    if (work.code.load(std::memory_order_relaxed) == Code::kOk)
      work.code.store(&work == guilty ? why.code() : shared, std::memory_order_relaxed);
  });
}

void VerbsAgent::addPairs(std::vector<std::unique_ptr<QueuePair>> pairs) {
  for (auto& pair : pairs) {
    around_.queues.add(pair->number(), *this);
    const TurnHolder turn(right_);
    works_.lanes().add(std::move(pair));
    pairs_.store(static_cast<uint32_t>(works_.lanes().all().size()), std::memory_order_relaxed);
  }
}

std::optional<uint64_t> VerbsAgent::stopPairs() {
  std::vector<uint32_t> numbers;
  {
    const TurnHolder turn(right_);
    halt(Status(Code::kPeerLost, "the peer makes them anew"), nullptr, kNotCounted);
    owesFailure_ = false;
    if (state_ == State::kBroken) {
      works_.lanes().stopAll();
      numbers = works_.lanes().numbers();
    }
  }
  const bool isAll = !numbers.empty() && around_.queues.takeRest(numbers.front());
  for (const uint32_t number : numbers) around_.queues.remove(number);
  const uint64_t taken = endPairs();
  (void)pumpAndTell();
  return isAll ? std::optional(taken) : std::nullopt;
}

uint64_t VerbsAgent::endPairs() {
  const TurnHolder turn(right_);
  // The events that were there are read, and none named a refusal.
  if (flush_ && remakes_ > kMostRemakes) end(*flush_, nullptr);
  works_.lanes().endAll();
  if (state_ == State::kOver) return 0;
  isStopped_ = true;
  works_.endFailed();
  control_.clear();
  return works_.news().taken();
}

void VerbsAgent::join(std::unique_ptr<QueuePair> pair, std::optional<uint64_t> taken) {
  const uint32_t number = pair->number();
  std::vector<std::unique_ptr<PairLane>> old;
  {
    const TurnHolder turn(right_);
    if (state_ != State::kBroken) return;
    old = works_.startAgain(std::move(pair), taken, noneExecuted_);
    pairs_.store(1, std::memory_order_relaxed);
    hasAsked_.store(false, std::memory_order_relaxed);
    isStopped_ = noneExecuted_ = false;
    state_ = State::kJoined;
  }
  for (size_t i = 1; i < old.size(); ++i)
    around_.queues.giveBack(old[i]->pair->limits().requests, 0);
  around_.queues.add(number, *this);
  (void)pumpAndTell();
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
