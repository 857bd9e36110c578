// SPDX-License-Identifier: Apache-2.0
//
// A work's `scratch` here: until it is taken, [0] is its bytes and 1, so that they are counted
// once. Of a shared one both are 0, which tells an agent that it is not its own.
#include "peerlane/transport/striped_agent.h"

#include <algorithm>

namespace peerlane {
namespace {

// 0 for a word.
uint64_t bytesOf(AgentWork& work) {
  if (work.scratch[0] == 0) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < work.entry->pieceCount; ++i) bytes += work.entry->pieces[i].bytes;
    work.scratch[0] = bytes + 1;
  }
  return work.scratch[0] - 1;
}

}  // namespace

StripedAgent::StripedAgent(const std::vector<FrameAgent*>& agents, cpu::CopyTeam* team,
                           std::function<void()> workArrived, const StripeBytes& shared)
    : agents_(agents),
      team_(team),
      workArrived_(std::move(workArrived)),
      shared_(shared),
      made_(static_cast<uint32_t>(agents.size())) {}

StripedAgent::~StripedAgent() {
  close(Code::kClosed);
}

uint32_t StripedAgent::partsOf(uint64_t bytes) const {
  if (bytes < shared_.least) return 1;
  return static_cast<uint32_t>(std::min<uint64_t>(made(), bytes / shared_.leastPart));
}

uint32_t StripedAgent::agentFor(uint64_t bytes) {
  if (bytes < shared_.leastElsewhere) return 0;
  const uint32_t usable = made();
  for (uint32_t agent = 0; agent < usable; ++agent)
    if (agents_[agent]->isIdle()) return agent;
  return turns_.fetch_add(1, std::memory_order_relaxed) % usable;
}

Served StripedAgent::serve(AgentWork& work) {
  if (agents_.size() == 1) return agents_.front()->serve(work);
  // A shared one is the oldest of its mailbox, and those after it do not begin: so the one before
  // is the only one that can be it.
  const AgentWork* const previous = work.mailbox->previous(work);
  if (previous != nullptr && isShared(*previous)) return Served::kAgain;
  const bool isNew = work.scratch[0] == 0;
  const uint64_t bytes = bytesOf(work);
  const uint32_t parts = partsOf(bytes);
  uint32_t& agent = work.mailbox->agentPart;
  if (previous == nullptr && isNew) agent = agentFor(bytes);
  if (parts < 2) return agents_[agent]->serve(work);
  if (previous != nullptr) {
    agents_[agent]->sendOwed();  // it may have counted on this one
    return Served::kAgain;
  }
  share(work, bytes, parts);
  return Served::kSent;
}

void StripedAgent::share(AgentWork& work, uint64_t bytes, uint32_t parts) {
  work.scratch = {};
  StripedTransfer* transfer = nullptr;
  {
    const MutexLock lock(lock_);
    if (free_.empty()) {
      transfers_.push_back(std::make_unique<StripedTransfer>(agents_));
      free_.push_back(transfers_.back().get());
    }
    transfer = free_.back();
    free_.pop_back();
    transfer->begin(work, bytes, parts);
    transfer->users = 1;
    transfer->number = ++lastNumber_;
    live_.push_back(transfer);
    liveCount_.store(live_.size(), std::memory_order_release);
  }
  if (team_ != nullptr)
    team_->shareWork(parts, [transfer](uint32_t part) { (void)transfer->serve(part); });
  serveParts(*transfer);
  if (leave(*transfer) && workArrived_) workArrived_();
}

void StripedAgent::abandon(AgentWork& work, Code code) {
  StripedTransfer* const transfer = useOf(work);
  const uint32_t agent = agents_.size() == 1 ? 0 : work.mailbox->agentPart;
  if (transfer == nullptr) return agents_[agent]->abandon(work, code);
  transfer->abort(code);
  serveParts(*transfer);
  if (leave(*transfer) && workArrived_) workArrived_();
}

// Where another thread is serving a part, the agent may have refused it what it would take now: a
// poll asks once more. When the agents have ended no poll may follow, so then it is asked here:
// the other thread is soon through.
void StripedAgent::serveParts(StripedTransfer& transfer) {
  bool isServed = true;
  do {
    isServed = true;
    for (uint32_t part = 0; part < transfer.parts(); ++part) isServed &= transfer.serve(part);
  } while (!isServed && hasFailed_.load(std::memory_order_seq_cst));
  if (!isServed && workArrived_) workArrived_();
}

// The thread that serves a mailbox has shared what is shared of it, so it sees the count.
bool StripedAgent::isShared(const AgentWork& work) const {
  if (liveCount_.load(std::memory_order_acquire) == 0) return false;
  const MutexLock lock(lock_);
  return liveOf(work) != nullptr;
}

StripedTransfer* StripedAgent::liveOf(const AgentWork& work) const {
  for (StripedTransfer* live : live_)
    if (&live->work() == &work) return live;
  return nullptr;
}

StripedTransfer* StripedAgent::use(uint64_t number) {
  const MutexLock lock(lock_);
  for (StripedTransfer* live : live_)
    if (live->number > number) {
      ++live->users;
      return live;
    }
  return nullptr;
}

StripedTransfer* StripedAgent::useOf(const AgentWork& work) {
  if (liveCount_.load(std::memory_order_acquire) == 0) return nullptr;
  const MutexLock lock(lock_);
  StripedTransfer* const live = liveOf(work);
  if (live != nullptr) ++live->users;
  return live;
}

bool StripedAgent::leave(StripedTransfer& transfer) {
  AgentWork* ended = nullptr;
  Code code = Code::kOk;
  bool haveOthers = false;
  {
    const MutexLock lock(lock_);
    if (--transfer.users == 0 && transfer.hasEnded()) {
      ended = &transfer.work();
      code = transfer.code();
      live_.erase(std::find(live_.begin(), live_.end(), &transfer));
      liveCount_.store(live_.size(), std::memory_order_release);
      free_.push_back(&transfer);
    }
    haveOthers = std::any_of(live_.begin(), live_.end(), [](const StripedTransfer* live) {
      return live->users == 0 && live->hasEnded();
    });
  }
  if (ended != nullptr) Mailbox::finish(*ended, code);
  return haveOthers;
}

void StripedAgent::serveTransfers() {
  uint64_t last = 0;
  bool haveOthers = false;
  while (StripedTransfer* const transfer = use(last)) {
    last = transfer->number;
    serveParts(*transfer);
    haveOthers = leave(*transfer);
  }
  if (haveOthers && workArrived_) workArrived_();
}

bool StripedAgent::poll() {
  if (agents_.size() == 1) return agents_.front()->poll();
  if (isPolling_.exchange(true, std::memory_order_acquire)) return false;
  const bool moved = pollAgents();
  isPolling_.store(false, std::memory_order_release);
  if (liveCount_.load(std::memory_order_acquire) != 0) serveTransfers();
  return moved;
}

// Alone, unless several agents are busy, or one has moved much: to wake helpers for an answer costs
// more than to read it.
bool StripedAgent::pollAgents() {
  awake_.clear();
  for (FrameAgent* agent : agents_)
    if (!agent->isQuiet()) awake_.push_back(agent);
  // By the first one comes what is small.
  if (awake_.size() > 2 || (awake_.size() == 2 && awake_.front() != agents_.front()))
    isBulk_ = true;
  const std::span<FrameAgent* const> awake(awake_);
  std::atomic<size_t> moved = 0;
  std::atomic<uint32_t> busy = 0;
  const auto pollOne = [&](uint32_t i) {
    const size_t bytes = awake[i]->move();
    moved += bytes;
    if (bytes >= kBulkBytes) ++busy;
  };
  const auto count = static_cast<uint32_t>(awake.size());
  uint32_t polled = 0;
  while (polled < count && (team_ == nullptr || (!isBulk_ && busy == 0))) pollOne(polled++);
  if (polled + 1 == count)
    pollOne(polled);
  else if (polled < count)
    team_->shareWork(count - polled, [&](uint32_t i) { pollOne(polled + i); });
  isBulk_ = busy > 1;
  if (!awake.empty() && !hasFailed_.load(std::memory_order_relaxed))
    if (const Status failure = health(); !failure.isOk()) failWith(failure);
  return moved != 0;
}

// The others may have been answered before the peer went away, too.
void StripedAgent::failWith(const Status& why) {
  for (int polls = 0; polls < kMostLastPolls; ++polls) {
    size_t moved = 0;
    for (FrameAgent* agent : agents_) moved += agent->move();
    if (moved == 0) break;
  }
  endAgents(why.code());
  if (workArrived_) workArrived_();  // what waits for an agent ends now
}

// What each still has to send leaves before the first stream ends.
void StripedAgent::endAgents(Code code) {
  for (FrameAgent* agent : agents_) agent->sendOwed();
  for (FrameAgent* agent : agents_) agent->close(code);
  hasFailed_.store(true, std::memory_order_seq_cst);
}

Status StripedAgent::health() const {
  if (agents_.size() == 1) return agents_.front()->health();
  const MutexLock lock(lock_);
  for (size_t i = 0; failure_.isOk() && i < agents_.size(); ++i) failure_ = agents_[i]->health();
  return failure_;
}

void StripedAgent::close(Code code) {
  if (agents_.size() == 1) return agents_.front()->close(code);
  {
    const MutexLock lock(lock_);
    if (failure_.isOk()) failure_ = Status(code, "the link was closed");
  }
  endAgents(code);
  serveTransfers();
}

}  // namespace peerlane
