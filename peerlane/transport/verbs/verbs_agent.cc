// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_agent.h"

#include <cstring>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/transport/verbs/request_failure.h"

namespace peerlane {
namespace {

using Cut = RequestCutter::Cut;

bool isCopy(Verb verb) {
  return verb == Verb::kPut || verb == Verb::kGet;
}

// It brings bytes back, so an entry after it in its mailbox must wait for the answer.
bool readsBack(Verb verb) {
  return verb == Verb::kGet || verb == Verb::kAdd64 || verb == Verb::kFlush;
}

Code refusalOf(const RegionGrant& grant, uint64_t offset, uint64_t bytes, Access wanted) {
  if (bytes > grant.bytes || offset > grant.bytes - bytes) return Code::kInvalidArgument;
  return allows(grant.access, wanted) ? Code::kOk : Code::kPermissionDenied;
}

// As this side can see it before the peer's device does, which would end the pair.
Code refusalOf(const MailboxEntry& entry) {
  if (entry.verb == Verb::kFlush) return Code::kOk;
  if (!isCopy(entry.verb)) {
    const uint64_t bytes = entry.width == Width::k32 ? 4 : 8;
    if (entry.remoteOffset % bytes != 0) return Code::kInvalidArgument;
    return refusalOf(entry.remote->grant, entry.remoteOffset, bytes, Access::kRemoteWrite);
  }
  const Access wanted = entry.verb == Verb::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  for (uint32_t i = 0; i < entry.pieceCount; ++i) {
    const Piece& piece = entry.pieces[i];
    const Code code = refusalOf(piece.remote->grant, piece.remoteOffset, piece.bytes, wanted);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

// The failure of the entries before this one in its mailbox, as far as it is known: one that is
// under way ends the pair, if it fails, before the device gets to this one.
Code failureBefore(const AgentWork& work) {
  const AgentWork* const before = work.mailbox->previous(work);
  if (before == nullptr) return work.mailbox->code();
  const Code code = before->code.load(std::memory_order_acquire);
  // Its place may have been used again meanwhile.
  return work.mailbox->previous(work) == nullptr ? work.mailbox->code() : code;
}

// One before it could not be made, which was not known when it came.
bool isInVain(AgentWork& work) {
  if (!work.entry->onlyAfterPrevious) return false;
  const Code code = failureBefore(work);
  if (code != Code::kOk) work.code.store(code, std::memory_order_relaxed);
  return code != Code::kOk;
}

}  // namespace

VerbsAgent::VerbsAgent(std::string name, const Surroundings& around,
                       std::unique_ptr<QueuePair> pair, ControlBlock control, uint32_t receives,
                       const VerbsAgreement& agreed)
    : name_(std::move(name)),
      around_(around),
      pair_(std::move(pair)),
      control_(std::move(control)),
      receives_(receives),
      agreed_(agreed),
      cutter_(around_.keys, around_.bounces, control_, agreed_, pair_->limits()),
      ledger_(pair_->limits().requests),
      mail_(around_.regions,
            {control_.data() + control_block::kMail, receives_ * control_block::kMailBytes}) {
  around_.queues.add(pair_->number(), *this);
}

VerbsAgent::~VerbsAgent() {
  close(Code::kClosed);
  pair_->end();  // before another link gets the control block
  around_.queues.remove(pair_->number());
  around_.queues.giveBack(pair_->limits().requests, receives_);
}

Served VerbsAgent::serve(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Code code = refusalOf(entry);
  const AgentWork* const before = work.mailbox->previous(work);
  const bool isUnfinished = before != nullptr && !before->finished.load(std::memory_order_acquire);
  if (code == Code::kOk && entry.onlyAfterPrevious) code = failureBefore(work);
  const bool isWord = entry.verb == Verb::kStore || entry.verb == Verb::kAdd64;
  if (code == Code::kOk && isUnfinished && !agreed_.ordersWrites && !isWord) return Served::kAgain;
  if (code == Code::kOk) {
    const TurnHolder turn(right_);
    if (!isOver_) {
      if (isUnfinished && readsBack(before->entry->verb)) WorkState(work).setFenced();
      waiting_.add(work);
      return Served::kSent;
    }
    code = health().code();
  }
  work.code.store(code, std::memory_order_relaxed);
  return Served::kDone;
}

void VerbsAgent::handedOut() {
  (void)pumpAndTell();
}

void VerbsAgent::abandon(AgentWork& work, Code code) {
  {
    const TurnHolder turn(right_);
    if (!waiting_.remove(work)) return;  // posted whole: it ends by its answer
    WorkState state(work);
    state.setWhole();
    work.code.store(code, std::memory_order_relaxed);
    if (state.underWay() == 0) finished_.add(work);
  }
  (void)pumpAndTell();
}

bool VerbsAgent::advance() {
  return isWaiting_.load(std::memory_order_relaxed) && pumpAndTell();
}

bool VerbsAgent::settle(bool isPolled) {
  {
    const TurnHolder turn(right_);
    isPolled_ = isPolled;
    if (!isPolled) newsPolled_ = 0;
  }
  (void)pumpAndTell();
  const TurnHolder turn(right_);
  return isBelieved_ && !isOver_;
}

// Works are told after the right was let go: the mailbox may ask the agent to serve its next entry.
bool VerbsAgent::pumpAndTell() {
  right_.take();
  const uint32_t before = ledger_.ever();
  pump();
  const bool hasNews = std::exchange(hasNews_, false);
  const bool moved = ledger_.ever() != before || !finished_.isEmpty() || hasNews;
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  while (AgentWork* const work = finished.takeFirst())
    Mailbox::finish(*work, work->code.load(std::memory_order_relaxed));
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

bool VerbsAgent::isUnderWay() const {
  const TurnHolder turn(right_);
  return !isOver_ && !ledger_.isIdle();
}

// The caller settles.
void VerbsAgent::fail(const Status& why) {
  const TurnHolder turn(right_);
  if (!isOver_) PEERLANE_LOG_WARN("{}: {}", name_, why.message());
  end(why, nullptr);
}

// Makes and posts requests for the works that wait, in their order, as far as there is room.
void VerbsAgent::pump() {
  // Large, and of one agent at a time.
  constinit thread_local RequestChain chain;
  chain.clear();
  if (!isOver_) tellPeer(chain);
  while (!waiting_.isEmpty()) {
    AgentWork& work = *waiting_.first();
    const Cut made = isInVain(work) ? Cut::kWhole : cutter_.cut(work, chain, ledger_);
    if (made == Cut::kWhole) makeWhole(work, chain);
    if (made != Cut::kStalled) continue;
    // A chain that is full goes, and the next one begins.
    const bool isOnlyFull = !chain.isEmpty() && !ledger_.hasRoom(chain, 2);
    // What waits may wait for long, or be abandoned: its answer is none for what goes now.
    if (!isOnlyFull && !chain.isEmpty() && ledger_.owesAnswer()) ledger_.sign(chain);
    post(chain);
    if (!isOnlyFull) break;
  }
  // The work that would have brought the answer was abandoned.
  if (ledger_.owesAnswer() && !isOver_ &&
      cutter_.tellTaken(taken_, /*isAsked=*/false, chain, ledger_)) {
    told_ = taken_;
    ledger_.sign(chain);
  }
  post(chain);
  isWaiting_.store(!isOver_ && (!waiting_.isEmpty() || isAsked_ || owesWake_),
                   std::memory_order_relaxed);
}

// No request will be made for it any more. The answer to a later entry of its mailbox does for it,
// too.
void VerbsAgent::makeWhole(AgentWork& work, RequestChain& chain) {
  WorkState state(work);
  state.setWhole();
  (void)waiting_.takeFirst();
  if (state.underWay() == 0) return finished_.add(work);
  const AgentWork* const next = waiting_.first();
  if (!chain.isEmpty() && (next == nullptr || next->mailbox != work.mailbox)) ledger_.sign(chain);
}

void VerbsAgent::post(RequestChain& chain) {
  if (chain.isEmpty()) return;
  ibv_send_wr* refused = nullptr;
  const int error = pair_->post(chain.first(), &refused);
  chain.clear();
  if (error == 0) return;
  const Status why = Status::system(error, name_ + ": " + pair_->name() + " takes no request");
  PEERLANE_LOG_WARN("{}", why.message());
  end(why, nullptr);
}

// News taken: at once when the peer asks. Where writes are placed in order, as soon as half of its
// news is not told yet: elsewhere an earlier count could be placed over a later one.
void VerbsAgent::tellPeer(RequestChain& chain) {
  const bool isEarly = agreed_.ordersWrites && taken_ - told_ >= receives_ / 2;
  const bool isDue = isAsked_ || isEarly;
  if (isDue && cutter_.tellTaken(taken_, isAsked_, chain, ledger_)) {
    told_ = taken_;
    isAsked_ = false;
  }
  if (owesWake_ && cutter_.wake(chain, ledger_)) owesWake_ = false;
  tellPolls(chain);
}

// Words of a peer that keeps sending them need no news while threads of this side poll.
void VerbsAgent::tellPolls(RequestChain& chain) {
  constexpr uint32_t kFewNews = 4;
  const bool polls = isPolled_ && (isBelieved_ || newsPolled_ >= kFewNews);
  if (agreed_.ordersWrites && polls != isBelieved_ && cutter_.tellPolls(polls, chain, ledger_))
    isBelieved_ = polls;
}

void VerbsAgent::ended(const ibv_wc& completion) {
  const TurnHolder turn(right_);
  const Request* const request = isOver_ ? nullptr : ledger_.find(completion.wr_id);
  if (request == nullptr) return;
  if (completion.status == IBV_WC_SUCCESS) {
    while (const Request* const each = ledger_.takeUntil(completion.wr_id))
      release(*each, /*isGood=*/true);
    return;
  }
  const Status why = requestFailure(name_, pair_->name(), completion);
  PEERLANE_LOG_WARN("{}", why.message());
  end(why, request->work);
}

// A peer that stopped polling says so before it sleeps. Either it said so before the word was
// acknowledged, and this side sees that now, or it sees the word in its last look.
void VerbsAgent::release(const Request& request, bool isGood) {
  if (request.isQuiet && isGood && !cutter_.peerPolls()) owesWake_ = true;
  if (request.slot != BounceSlots::kNone) {
    if (isGood && request.to != nullptr)
      std::memcpy(request.to, around_.bounces.at(request.slot), request.bytes);
    hasNews_ |= around_.bounces.giveBack(request.slot);
  }
  if (request.work == nullptr) return;
  WorkState state(*request.work);
  state.ended();
  if (state.isWhole() && state.underWay() == 0) finished_.add(*request.work);
}

void VerbsAgent::arrived(uint32_t number) {
  const TurnHolder turn(right_);
  if (isOver_) return;
  News news;
  Status status;
  if (!News::decode(number, news))
    status = Status(Code::kCorrupt,
                    "the peer sent news of no known kind (" + std::to_string(number) + ")");
  else if (news.kind != News::Kind::kWord && news.kind != News::Kind::kTaken)
    status = mail_.apply(news);
  ++taken_;
  // It would take up receives that were promised to others.
  if (taken_ - told_ > receives_)
    status = Status(Code::kCorrupt, "the peer sent more news than there are receives for it");
  ++newsPolled_;
  isAsked_ |= news.asks;
  if (status.isOk()) return;
  PEERLANE_LOG_WARN("{}: {}", name_, status.message());
  if (status.code() == Code::kCorrupt) end(status, nullptr);
}

// The device is done with all memory before a work is told to have ended. One work is to blame for
// a refusal, and the pair ends for all.
void VerbsAgent::end(const Status& why, const AgentWork* guilty, bool mayAnswer) {
  if (isOver_) return;
  isOver_ = true;
  hasNews_ = true;
  const Code shared = why.code() == Code::kPermissionDenied ? Code::kPeerLost : why.code();
  {
    const MutexLock lock(failureLock_);
    failure_ = shared == why.code() ? why : Status(shared, std::string(why.message()));
  }
  if (!mayAnswer || !ledger_.isIdle()) pair_->end();
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
  while (const Request* const each = ledger_.takeOldest()) {
    if (each->work != nullptr) mark(*each->work);
    release(*each, /*isGood=*/false);
  }
}

}  // namespace peerlane
