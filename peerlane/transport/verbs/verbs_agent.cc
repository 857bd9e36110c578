// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_agent.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/program/words/word.h"
#include "peerlane/transport/verbs/request_failure.h"

namespace peerlane {
namespace {

std::atomic<uint64_t> lastSerial{0};

// RemoteMemory::linkKey.
uint32_t keyOf(const RemoteMemory& memory) {
  return static_cast<uint32_t>(memory.linkKey >> 32);
}
uint64_t addressOf(const RemoteMemory& memory, uint64_t offset) {
  return (memory.linkKey & 0xffffffff) + offset;
}

bool isCopy(Verb verb) {
  return verb == Verb::kPut || verb == Verb::kGet;
}

// It brings bytes back, so what comes after it in its mailbox must wait for the answer.
bool readsBack(Verb verb) {
  return verb == Verb::kGet || verb == Verb::kAdd64 || verb == Verb::kFlush;
}

Code refusalOf(const RegionGrant& grant, uint64_t offset, uint64_t bytes, Access wanted) {
  if (bytes > grant.bytes || offset > grant.bytes - bytes) return Code::kInvalidArgument;
  return allows(grant.access, wanted) ? Code::kOk : Code::kPermissionDenied;
}

// What has failed of the entries before it in its mailbox, as far as that is known: what is not is
// under way, and its failure ends the pair before the device gets to this one.
Code failureBefore(const AgentWork& work, const AgentWork* before) {
  if (before != nullptr) return before->code.load(std::memory_order_acquire);
  return work.mailbox->code();
}

// Steps over bytes of the entry, and over empty pieces after them.
void advanceOver(AgentWork& work, uint64_t bytes) {
  const MailboxEntry& entry = *work.entry;
  work.offset += bytes;
  while (work.piece < entry.pieceCount && work.offset == entry.pieces[work.piece].bytes) {
    ++work.piece;
    work.offset = 0;
  }
}

}  // namespace

VerbsAgent::VerbsAgent(std::string name, const Surroundings& around,
                       std::unique_ptr<QueuePair> pair, ControlBlock control, uint32_t receives,
                       const Agreement& agreed)
    : name_(std::move(name)),
      around_(around),
      pair_(std::move(pair)),
      control_(std::move(control)),
      receives_(receives),
      agreed_(agreed),
      mostUnsignalled_(std::min(kMostUnsignalled, pair_->limits().requests / 2)),
      serial_(lastSerial.fetch_add(1, std::memory_order_relaxed) & 0x7fffffff),
      ring_(pair_->limits().requests) {
  credits_.begin(control_.data() + control_block::kTaken, agreed_.newsToPeer);
  around_.queues.add(pair_->number(), *this);
}

VerbsAgent::~VerbsAgent() {
  close(Code::kClosed);
  around_.queues.remove(pair_->number());
  around_.queues.giveBack(pair_->limits().requests, receives_);
}

// What this side can see before the peer's device does, which would end the pair.
Code VerbsAgent::refusalOf(const MailboxEntry& entry) const {
  if (isCopy(entry.verb)) {
    const Access wanted =
        entry.verb == Verb::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
    for (uint32_t i = 0; i < entry.pieceCount; ++i) {
      const Piece& piece = entry.pieces[i];
      const Code code =
          peerlane::refusalOf(piece.remote->grant, piece.remoteOffset, piece.bytes, wanted);
      if (code != Code::kOk) return code;
    }
    return Code::kOk;
  }
  if (entry.verb == Verb::kFlush) return Code::kOk;
  const uint64_t bytes = entry.width == Width::k32 ? 4 : 8;
  if (entry.remoteOffset % bytes != 0) return Code::kInvalidArgument;
  return peerlane::refusalOf(entry.remote->grant, entry.remoteOffset, bytes, Access::kRemoteWrite);
}

Served VerbsAgent::serve(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Code code = refusalOf(entry);
  const AgentWork* const before = work.mailbox->previous(work);
  const bool isUnfinished = before != nullptr && !before->finished.load(std::memory_order_acquire);
  if (code == Code::kOk && entry.onlyAfterPrevious) code = failureBefore(work, before);
  // Only a mail is sure to come after what was posted before it.
  if (code == Code::kOk && !agreed_.ordersWrites && isUnfinished &&
      (readsBack(entry.verb) || isCopy(entry.verb)) && entry.verb != Verb::kAdd64)
    return Served::kAgain;
  if (code == Code::kOk) {
    const TurnHolder turn(right_);
    if (!isOver_) {
      WorkState state(work);
      if (isUnfinished && readsBack(before->entry->verb)) state.setFenced();
      if (isCopy(entry.verb)) advanceOver(work, 0);
      waiting_.add(work);
      return Served::kSent;
    }
    const MutexLock lock(failureLock_);
    code = failure_.code();
  }
  work.code.store(code, std::memory_order_relaxed);
  return Served::kDone;
}

void VerbsAgent::handedOut() {
  right_.take();
  pump();
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  finishAll(finished);
}

void VerbsAgent::abandon(AgentWork& work, Code code) {
  right_.take();
  // One that is posted whole ends by its answer.
  if (waiting_.remove(work)) {
    WorkState state(work);
    state.setWhole();
    work.code.store(code, std::memory_order_relaxed);
    if (state.underWay() == 0) finished_.add(work);
    pump();
  }
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  finishAll(finished);
}

bool VerbsAgent::advance() {
  if (!isWaiting_.load(std::memory_order_relaxed)) return false;
  right_.take();
  const uint32_t before = posted_;
  pump();
  const bool moved = posted_ != before || !finished_.isEmpty();
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  finishAll(finished);
  return moved;
}

Status VerbsAgent::health() const {
  const MutexLock lock(failureLock_);
  return failure_;
}

void VerbsAgent::close(Code code) {
  end(Status(code, name_ + " was closed"), nullptr, /*isLoud=*/false);
  settle();
}

// Told after the right was let go: the mailbox may ask the agent to serve its next entry.
void VerbsAgent::finishAll(WorkList finished) {
  while (AgentWork* const work = finished.takeFirst())
    Mailbox::finish(*work, work->code.load(std::memory_order_relaxed));
}

bool VerbsAgent::hasRoom(const RequestChain& chain, uint32_t requests) const {
  return !isOver_ && chain.count() + requests <= RequestChain::kRequests &&
         posted_ - retired_ + requests <= ring_.size();
}

// Makes and posts requests for the works that wait, in their order, as far as there is room.
void VerbsAgent::pump() {
  // Large, and of one thread at a time.
  thread_local RequestChain chain;
  chain.clear();
  if (!isOver_) payCredits(chain);
  while (!waiting_.isEmpty() && !isOver_) {
    AgentWork& work = *waiting_.first();
    const Cut made = cut(work, chain);
    if (made == Cut::kStalled) {
      // Full chains go, and the next one begins.
      if (chain.isEmpty() || posted_ - retired_ == ring_.size()) break;
      const bool wasFull = !hasRoom(chain, 2);
      post(chain);
      if (!wasFull) break;
      continue;
    }
    if (made == Cut::kMade) continue;
    WorkState state(work);
    state.setWhole();
    (void)waiting_.takeFirst();
    // The answer to a later entry of its mailbox does for it, too.
    const AgentWork* const next = waiting_.first();
    if (!chain.isEmpty() && (next == nullptr || next->mailbox != work.mailbox) &&
        state.underWay() != 0) {
      sign(chain);
    }
    if (state.underWay() == 0) finished_.add(work);
  }
  // What would have brought the answer was abandoned.
  if (waiting_.isEmpty() && owesAnswer_ && hasRoom(chain, 1)) {
    addCount(chain, IBV_WR_RDMA_WRITE);
    sign(chain);
  }
  post(chain);
  isWaiting_.store(!waiting_.isEmpty() || isAsked_, std::memory_order_relaxed);
}

// Remembers the last request of the chain. Each mostUnsignalled_-th is answered by a completion, so
// that the room of those before it comes back.
VerbsAgent::Request& VerbsAgent::note(RequestChain& chain, AgentWork* work) {
  Request& request = ring_[posted_ % ring_.size()];
  request = {.work = work, .to = nullptr, .bytes = 0, .slot = BounceSlots::kNone};
  ibv_send_wr& posted = chain.last();
  posted.wr_id = serial_ << 32 | posted_;
  ++posted_;
  owesAnswer_ |= work != nullptr;
  if (++unsignalled_ >= mostUnsignalled_) sign(chain);
  if (work == nullptr) return request;
  WorkState state(*work);
  state.began();
  if (state.isFenced()) posted.send_flags |= IBV_SEND_FENCE;
  state.clearFenced();
  return request;
}

// The last request is answered by a completion, and so all before it.
void VerbsAgent::sign(RequestChain& chain) {
  chain.last().send_flags |= IBV_SEND_SIGNALED;
  unsignalled_ = 0;
  owesAnswer_ = false;
}

void VerbsAgent::post(RequestChain& chain) {
  if (chain.isEmpty()) return;
  ibv_send_wr* refused = nullptr;
  const int error = pair_->post(chain.first(), &refused);
  chain.clear();
  if (error != 0)
    endLocked(Status::system(error, name_ + ": " + pair_->name() + " takes no request"), nullptr,
              /*isLoud=*/true);
}

VerbsAgent::Cut VerbsAgent::cut(AgentWork& work, RequestChain& chain) {
  switch (work.entry->verb) {
    case Verb::kPut:
    case Verb::kGet: return cutCopy(work, chain);
    case Verb::kStore: return cutWord(work, chain);
    case Verb::kAdd64: return cutAddition(work, chain);
    case Verb::kFlush: return cutFlush(work, chain);
  }
  return Cut::kWhole;
}

VerbsAgent::Cut VerbsAgent::cutCopy(AgentWork& work, RequestChain& chain) {
  const MailboxEntry& entry = *work.entry;
  if (work.piece == entry.pieceCount) return Cut::kWhole;
  if (!hasRoom(chain, 1)) return Cut::kStalled;
  const bool isPut = entry.verb == Verb::kPut;
  const Piece& piece = entry.pieces[work.piece];
  ibv_send_wr& request = chain.add(isPut ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
  request.wr.rdma.rkey = peerlane::keyOf(*piece.remote);
  request.wr.rdma.remote_addr = addressOf(*piece.remote, piece.remoteOffset + work.offset);
  const uint64_t left = piece.bytes - work.offset;
  if (isPut && left <= std::min(pair_->limits().inlineBytes, RequestChain::kInlineBytes)) {
    std::memcpy(chain.carry(static_cast<uint32_t>(left)), piece.local + work.offset, left);
    note(chain, &work);
    advanceOver(work, left);
  } else if (gather(work, chain)) {
    note(chain, &work);
  } else if (const Cut made = bounce(work, chain); made != Cut::kMade) {
    return made;
  }
  return work.piece == entry.pieceCount ? Cut::kWhole : Cut::kMade;
}

// Adds as much registered memory to the last request as lies side by side at the peer. False: the
// next byte's memory is not registered.
bool VerbsAgent::gather(AgentWork& work, RequestChain& chain) {
  const MailboxEntry& entry = *work.entry;
  const RemoteMemory* const remote = entry.pieces[work.piece].remote;
  uint64_t next = entry.pieces[work.piece].remoteOffset + work.offset;
  uint64_t bytes = 0;
  while (work.piece < entry.pieceCount && bytes < kMostBytes &&
         static_cast<uint32_t>(chain.last().num_sge) < pair_->limits().pieces) {
    const Piece& piece = entry.pieces[work.piece];
    if (piece.remote != remote || piece.remoteOffset + work.offset != next) break;
    const std::byte* const local = piece.local + work.offset;
    const uint64_t some = std::min(piece.bytes - work.offset, kMostBytes - bytes);
    const MemoryKeys::Key* const key = keyOf(local, some);
    if (key == nullptr) break;
    chain.addPiece(key->addressOf(local), static_cast<uint32_t>(some), key->local);
    bytes += some;
    next += some;
    advanceOver(work, some);
  }
  return bytes != 0;
}

// Every one is answered, because links share the slots.
VerbsAgent::Cut VerbsAgent::bounce(AgentWork& work, RequestChain& chain) {
  const Result<uint32_t> slot = around_.bounces.take();
  if (!slot) {
    chain.drop();
    if (slot.status().code() == Code::kTryAgain) return Cut::kStalled;
    PEERLANE_LOG_WARN("{}: {}", name_, slot.status().message());
    work.code.store(slot.status().code(), std::memory_order_relaxed);
    return Cut::kWhole;
  }
  const Piece& piece = work.entry->pieces[work.piece];
  const auto bytes = static_cast<uint32_t>(
      std::min<uint64_t>(piece.bytes - work.offset, BounceSlots::kSlotBytes));
  chain.addPiece(around_.bounces.address(*slot), bytes, around_.bounces.key());
  Request& request = note(chain, &work);
  sign(chain);
  request.slot = *slot;
  request.bytes = bytes;
  if (work.entry->verb == Verb::kPut)
    std::memcpy(around_.bounces.at(*slot), piece.local + work.offset, bytes);
  else
    request.to = piece.local + work.offset;
  advanceOver(work, bytes);
  return Cut::kMade;
}

const MemoryKeys::Key* VerbsAgent::keyOf(const std::byte* at, uint64_t bytes) {
  const uint64_t ended = around_.keys.ended();
  if (key_ && keysEnded_ == ended && key_->holds(at, bytes)) return &*key_;
  keysEnded_ = ended;
  key_ = around_.keys.find(at, bytes);
  return key_ ? &*key_ : nullptr;
}

VerbsAgent::Cut VerbsAgent::cutWord(AgentWork& work, RequestChain& chain) {
  if (!hasRoom(chain, 1) || !credits_.maySend()) return Cut::kStalled;
  if (!agreed_.ordersWrites) {
    addMail(work, chain);
    return Cut::kWhole;
  }
  const MailboxEntry& entry = *work.entry;
  const uint32_t bytes = entry.width == Width::k32 ? 4 : 8;
  ibv_send_wr& request = chain.add(IBV_WR_RDMA_WRITE_WITH_IMM);
  request.wr.rdma.rkey = peerlane::keyOf(*entry.remote);
  request.wr.rdma.remote_addr = addressOf(*entry.remote, entry.remoteOffset);
  std::memcpy(chain.carry(bytes), &entry.operand, bytes);
  addNews(chain, {.kind = News::Kind::kWord});
  note(chain, &work);
  return Cut::kWhole;
}

// Behind the addition the news, which an addition cannot carry.
VerbsAgent::Cut VerbsAgent::cutAddition(AgentWork& work, RequestChain& chain) {
  if (!hasRoom(chain, 2) || !credits_.maySend()) return Cut::kStalled;
  if (!agreed_.adds || !agreed_.ordersWrites) {
    addMail(work, chain);
    return Cut::kWhole;
  }
  const MailboxEntry& entry = *work.entry;
  ibv_send_wr& request = chain.add(IBV_WR_ATOMIC_FETCH_AND_ADD);
  request.wr.atomic.rkey = peerlane::keyOf(*entry.remote);
  request.wr.atomic.remote_addr = addressOf(*entry.remote, entry.remoteOffset);
  request.wr.atomic.compare_add = entry.operand;
  chain.addPiece(control_.address() + control_block::kLanding, 8, control_.local());
  note(chain, &work);
  ibv_send_wr& news = chain.add(IBV_WR_RDMA_WRITE_WITH_IMM);
  news.wr.rdma.rkey = agreed_.controlKey;
  news.wr.rdma.remote_addr = agreed_.control;
  addNews(chain, {.kind = News::Kind::kWord});
  note(chain, &work);
  return Cut::kWhole;
}

// The peer has applied the mail that was in the slot, because it has taken that news.
void VerbsAgent::addMail(AgentWork& work, RequestChain& chain) {
  const MailboxEntry& entry = *work.entry;
  const auto slot = static_cast<uint16_t>(credits_.sent() % credits_.window());
  ibv_send_wr& request = chain.add(IBV_WR_RDMA_WRITE_WITH_IMM);
  request.wr.rdma.rkey = agreed_.controlKey;
  request.wr.rdma.remote_addr =
      agreed_.control + control_block::kMail + slot * control_block::kMailBytes;
  const std::array<uint64_t, 4> mail{entry.remote->grant.allocation, entry.remote->grant.generation,
                                     entry.remoteOffset, entry.operand};
  std::memcpy(chain.carry(sizeof mail), mail.data(), sizeof mail);
  addNews(chain, {.kind = entry.verb == Verb::kAdd64     ? News::Kind::kAdd64
                          : entry.width == Width::k32 ? News::Kind::kStore32
                                                      : News::Kind::kStore64,
                  .asks = false,
                  .slot = slot});
  note(chain, &work);
}

void VerbsAgent::addNews(RequestChain& chain, News news) {
  news.asks = credits_.isNextLast();
  chain.last().imm_data = htobe32(news.encode());
  chain.last().send_flags |= IBV_SEND_SOLICITED;
  credits_.use();
}

// Of the peer's control block, which may always be read.
VerbsAgent::Cut VerbsAgent::cutFlush(AgentWork& work, RequestChain& chain) {
  if (!hasRoom(chain, 1)) return Cut::kStalled;
  ibv_send_wr& request = chain.add(IBV_WR_RDMA_READ);
  request.wr.rdma.rkey = agreed_.controlKey;
  request.wr.rdma.remote_addr = agreed_.control + control_block::kTaken;
  chain.addPiece(control_.address() + control_block::kLanding, 8, control_.local());
  note(chain, &work);
  return Cut::kWhole;
}

// Tells the peer how many of its news were taken: when half of what it may send is not told yet,
// and at once, waking it, when it asks.
void VerbsAgent::payCredits(RequestChain& chain) {
  if (taken_ == told_ || (!isAsked_ && taken_ - told_ < receives_ / 2)) return;
  if (!hasRoom(chain, 1) || (isAsked_ && !credits_.mayAnswer())) return;
  addCount(chain, isAsked_ ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
  if (!isAsked_) return;
  chain.last().imm_data = htobe32(News{.kind = News::Kind::kTaken}.encode());
  chain.last().send_flags |= IBV_SEND_SOLICITED;
  credits_.use();
  isAsked_ = false;
}

void VerbsAgent::addCount(RequestChain& chain, ibv_wr_opcode opcode) {
  ibv_send_wr& request = chain.add(opcode);
  request.wr.rdma.rkey = agreed_.controlKey;
  request.wr.rdma.remote_addr = agreed_.control + control_block::kTaken;
  std::memcpy(chain.carry(sizeof taken_), &taken_, sizeof taken_);
  note(chain, nullptr);
  told_ = taken_;
}

void VerbsAgent::ended(const ibv_wc& completion) {
  const TurnHolder turn(right_);
  if (isOver_ || completion.wr_id >> 32 != serial_) return;
  const auto index = static_cast<uint32_t>(completion.wr_id);
  if (index - retired_ >= posted_ - retired_) return;  // of none that is under way
  if (completion.status == IBV_WC_SUCCESS) return retire(index);
  endLocked(describe(completion), ring_[index % ring_.size()].work, /*isLoud=*/true);
}

void VerbsAgent::retire(uint32_t index) {
  for (const uint32_t next = index + 1; retired_ != next; ++retired_)
    release(ring_[retired_ % ring_.size()], /*isGood=*/true);
}

void VerbsAgent::release(Request& request, bool isGood) {
  if (request.slot != BounceSlots::kNone) {
    if (isGood && request.to != nullptr)
      std::memcpy(request.to, around_.bounces.at(request.slot), request.bytes);
    around_.bounces.giveBack(request.slot);
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
  if (!News::decode(number, news))
    return endLocked(Status(Code::kCorrupt, name_ + ": the peer sent news of no known kind (" +
                                                std::to_string(number) + ")"),
                     nullptr, /*isLoud=*/true);
  ++taken_;
  isAsked_ |= news.asks;
  if (news.kind != News::Kind::kWord && news.kind != News::Kind::kTaken) apply(news);
}

// A mail: rights and range are checked as for any agent that serves a peer.
void VerbsAgent::apply(const News& news) {
  std::array<uint64_t, 4> mail{};
  if (news.slot >= std::min(receives_, control_block::kMostMails))
    return endLocked(Status(Code::kCorrupt, name_ + ": the peer names mail " +
                                                std::to_string(news.slot) + "; there are " +
                                                std::to_string(receives_)),
                     nullptr, /*isLoud=*/true);
  std::memcpy(mail.data(), control_.data() + control_block::kMail +
                               news.slot * control_block::kMailBytes,
              sizeof mail);
  const Width width = news.kind == News::Kind::kStore32 ? Width::k32 : Width::k64;
  const uint64_t bytes = width == Width::k32 ? 4 : 8;
  const auto [allocation, generation, offset, value] = mail;
  const Result<std::byte*> word =
      offset % bytes != 0
          ? Result<std::byte*>(Status(Code::kInvalidArgument,
                                      "a word at offset " + std::to_string(offset)))
          : around_.regions.pin(allocation, generation, offset, bytes, Access::kRemoteWrite);
  if (!word) {
    PEERLANE_LOG_WARN("{}: a word of the peer is refused: {}", name_, word.status().message());
    return;
  }
  if (news.kind == News::Kind::kAdd64)
    (void)addWord(*word, value);
  else
    storeWord(*word, width, value, std::memory_order_release);
  around_.regions.unpin(allocation);
}

void VerbsAgent::settle() {
  right_.take();
  pump();
  WorkList finished = std::exchange(finished_, {});
  right_.letGo();
  finishAll(finished);
}

Status VerbsAgent::describe(const ibv_wc& completion) const {
  return requestFailure(name_, pair_->name(), completion);
}

void VerbsAgent::end(const Status& why, const AgentWork* guilty, bool isLoud) {
  const TurnHolder turn(right_);
  endLocked(why, guilty, isLoud);
}

// The device is done with all memory before a work is told to have ended.
void VerbsAgent::endLocked(const Status& why, const AgentWork* guilty, bool isLoud) {
  if (isOver_) return;
  isOver_ = true;
  const Code shared = why.code() == Code::kPermissionDenied ? Code::kPeerLost : why.code();
  {
    const MutexLock lock(failureLock_);
    failure_ = shared == why.code() ? why : Status(shared, std::string(why.message()));
  }
  if (isLoud) PEERLANE_LOG_WARN("{}", why.message());
  pair_->end();
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
  for (; retired_ != posted_; ++retired_) {
    Request& request = ring_[retired_ % ring_.size()];
    if (request.work != nullptr) mark(*request.work);
    release(request, /*isGood=*/false);
  }
  isWaiting_.store(false, std::memory_order_relaxed);
}

}  // namespace peerlane
