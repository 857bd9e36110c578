// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/request_cutter.h"

#include <endian.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "peerlane/core/log.h"
#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {
namespace {

// RemoteMemory::linkKey.
uint32_t keyOf(const RemoteMemory& memory) {
  return static_cast<uint32_t>(memory.linkKey >> 32);
}
uint64_t addressOf(const RemoteMemory& memory, uint64_t offset) {
  return (memory.linkKey & 0xffffffff) + offset;
}

// False: the program lost some of the memory since it was registered.
bool readProgram(std::byte* to, std::byte* from, uint64_t bytes) {
  const IoSlice target{to, bytes};
  const IoSlice source{from, bytes};
  return nofaultRead({&target, 1}, {&source, 1}) == bytes;
}

}  // namespace

RequestCutter::RequestCutter(MemoryKeys& keys, BounceSlots& bounces, const ControlBlock& control,
                             const VerbsAgreement& agreed, const QueuePair::Limits& limits)
    : keys_(keys), bounces_(bounces), control_(control), agreed_(agreed), limits_(limits) {
  startAgain();
}

void RequestCutter::startAgain() {
  credits_.begin(control_.data() + control_block::kTaken, agreed_.newsToPeer);
}

RequestCutter::Cut RequestCutter::cut(AgentWork& work, RequestChain& chain, RequestLedger& ledger) {
  switch (work.entry->verb) {
    case Verb::kPut:
    case Verb::kGet: return cutCopy(work, chain, ledger);
    case Verb::kStore: return cutWord(work, chain, ledger);
    case Verb::kAdd64: return cutAddition(work, chain, ledger);
    case Verb::kFlush: return cutFlush(work, chain, ledger);
  }
  return Cut::kWhole;
}

RequestCutter::Cut RequestCutter::cutCopy(AgentWork& work, RequestChain& chain,
                                          RequestLedger& ledger) {
  const MailboxEntry& entry = *work.entry;
  skipEmptyPieces(work);
  if (work.piece == entry.pieceCount) return Cut::kWhole;
  if (!ledger.hasRoom(chain, 1)) return Cut::kStalled;
  const bool isPut = entry.verb == Verb::kPut;
  const Piece& piece = entry.pieces[work.piece];
  ibv_send_wr& request = chain.add(isPut ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
  request.wr.rdma.rkey = peerlane::keyOf(*piece.remote);
  request.wr.rdma.remote_addr = addressOf(*piece.remote, piece.remoteOffset + work.offset);
  const uint64_t left = piece.bytes - work.offset;
  const MemoryKeys::Key* const key = keyOf(piece.local + work.offset, left);
  if (key == nullptr && noKey_.code() != Code::kUnavailable) {
    chain.drop();
    if (lines_.allows()) PEERLANE_LOG_WARN("verbs: {}{}", noKey_.message(), lines_.leftOut());
    work.code.store(noKey_.code(), std::memory_order_relaxed);
    return Cut::kWhole;
  }
  if (isPut && (key == nullptr || key->isHost) &&
      left <= std::min(limits_.inlineBytes, RequestChain::kInlineBytes)) {
    std::byte* const room = chain.carry(static_cast<uint32_t>(left));
    std::byte* const from = piece.local + work.offset;
    // Memory that nobody can cut is read at once: the safe way takes as long as all of the post.
    if (entry.isOurs || (key != nullptr && !key->mayBeCut))
      std::memcpy(room, from, left);
    else if (!readProgram(room, from, left))
      return endGone(work, chain);
    work.offset += left;
    ledger.note(chain, &work);
  } else if (gather(work, chain)) {
    ledger.note(chain, &work);
  } else if (const Cut made = bounce(work, chain, ledger); made != Cut::kMade) {
    return made;
  }
  skipEmptyPieces(work);
  return work.piece == entry.pieceCount ? Cut::kWhole : Cut::kMade;
}

// Adds as much registered memory to the last request as lies side by side at the peer. False: the
// next byte's memory is not registered.
bool RequestCutter::gather(AgentWork& work, RequestChain& chain) {
  const MailboxEntry& entry = *work.entry;
  const RemoteMemory* const remote = entry.pieces[work.piece].remote;
  uint64_t next = entry.pieces[work.piece].remoteOffset + work.offset;
  uint64_t bytes = 0;
  while (work.piece < entry.pieceCount && bytes < kMostBytes &&
         static_cast<uint32_t>(chain.last().num_sge) < limits_.pieces) {
    const Piece& piece = entry.pieces[work.piece];
    if (piece.remote != remote || piece.remoteOffset + work.offset != next) break;
    const std::byte* const local = piece.local + work.offset;
    const uint64_t some = std::min(piece.bytes - work.offset, kMostBytes - bytes);
    const MemoryKeys::Key* const key = keyOf(local, some);
    // In whole packets only from a packet's begin on.
    if (key == nullptr || bytes % key->unit != 0) break;
    chain.addPiece(key->addressOf(local), static_cast<uint32_t>(some), key->local);
    bytes += some;
    next += some;
    work.offset += some;
    skipEmptyPieces(work);
  }
  return bytes != 0;
}

// Every one is answered, because links share the slots.
RequestCutter::Cut RequestCutter::bounce(AgentWork& work, RequestChain& chain,
                                         RequestLedger& ledger) {
  const Result<uint32_t> slot = bounces_.take();
  if (!slot) {
    chain.drop();
    if (slot.status().code() == Code::kTryAgain) return Cut::kStalled;
    if (lines_.allows())
      PEERLANE_LOG_WARN("verbs: {}{}", slot.status().message(), lines_.leftOut());
    work.code.store(slot.status().code(), std::memory_order_relaxed);
    return Cut::kWhole;
  }
  const Piece& piece = work.entry->pieces[work.piece];
  const auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(piece.bytes - work.offset, BounceSlots::kSlotBytes));
  std::byte* const local = piece.local + work.offset;
  if (work.entry->verb == Verb::kPut && !readProgram(bounces_.at(*slot), local, bytes)) {
    hasFreed_ |= bounces_.giveBack(*slot);
    return endGone(work, chain);
  }
  chain.addPiece(bounces_.address(*slot), bytes, bounces_.key());
  RequestLedger::Request& request = ledger.note(chain, &work);
  ledger.sign(chain);
  request.slot = *slot;
  request.bytes = bytes;
  if (work.entry->verb == Verb::kGet) request.to = local;
  work.offset += bytes;
  return Cut::kMade;
}

// The program's own memory is what is missing: who posted the work is told, and no one else need
// know.
RequestCutter::Cut RequestCutter::endGone(AgentWork& work, RequestChain& chain) {
  chain.drop();
  PEERLANE_LOG_DEBUG("verbs: memory to be put cannot be read");
  work.code.store(Code::kRevoked, std::memory_order_relaxed);
  return Cut::kWhole;
}

const MemoryKeys::Key* RequestCutter::keyOf(const std::byte* at, uint64_t bytes) {
  const uint64_t ended = keys_.ended();
  if (key_ && keysEnded_ == ended && key_->holds(at, bytes)) return &*key_;
  keysEnded_ = ended;
  Result<MemoryKeys::Key> found = keys_.find(at, bytes);
  if (!found) {
    key_.reset();
    noKey_ = found.status();
    return nullptr;
  }
  if (found->unit > agreed_.packetBytes) {
    key_.reset();
    noKey_ = Status(Code::kUnavailable, "packets of less than a page");
    return nullptr;
  }
  key_ = *found;
  return &*key_;
}

RequestCutter::Cut RequestCutter::cutWord(AgentWork& work, RequestChain& chain,
                                          RequestLedger& ledger) {
  const bool isMail = WorkState(work).goesAsMail();
  const bool isQuiet = !isMail && peerPolls();
  if (!ledger.hasRoom(chain, 1) || (!isQuiet && !credits_.maySend())) return Cut::kStalled;
  if (isMail) {
    addMail(work, chain, ledger);
    return Cut::kWhole;
  }
  const MailboxEntry& entry = *work.entry;
  const uint32_t bytes = entry.width == Width::k32 ? 4 : 8;
  ibv_send_wr& request = chain.add(isQuiet ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM);
  request.wr.rdma.rkey = peerlane::keyOf(*entry.remote);
  request.wr.rdma.remote_addr = addressOf(*entry.remote, entry.remoteOffset);
  std::memcpy(chain.carry(bytes), &entry.operand, bytes);
  if (!isQuiet) addNews(chain, {.kind = News::Kind::kWord});
  RequestLedger::Request& noted = ledger.note(chain, &work);
  noted.isQuiet = isQuiet;
  noted.news = isQuiet ? 0 : credits_.sent();
  return Cut::kWhole;
}

// The news follows the addition, which cannot carry any.
RequestCutter::Cut RequestCutter::cutAddition(AgentWork& work, RequestChain& chain,
                                              RequestLedger& ledger) {
  const bool isByDevice = !WorkState(work).goesAsMail();
  const bool isQuiet = isByDevice && peerPolls();
  if (!ledger.hasRoom(chain, 2) || (!isQuiet && !credits_.maySend())) return Cut::kStalled;
  if (!isByDevice) {
    addMail(work, chain, ledger);
    return Cut::kWhole;
  }
  const MailboxEntry& entry = *work.entry;
  ibv_send_wr& request = chain.add(IBV_WR_ATOMIC_FETCH_AND_ADD);
  request.wr.atomic.rkey = peerlane::keyOf(*entry.remote);
  request.wr.atomic.remote_addr = addressOf(*entry.remote, entry.remoteOffset);
  request.wr.atomic.compare_add = entry.operand;
  chain.addPiece(control_.address() + control_block::kLanding, 8, control_.local());
  ledger.note(chain, &work).isQuiet = isQuiet;
  if (!isQuiet) addWake(chain, ledger, &work);
  return Cut::kWhole;
}

// Of no bytes.
void RequestCutter::addWake(RequestChain& chain, RequestLedger& ledger, AgentWork* work) {
  addToControl(chain, IBV_WR_RDMA_WRITE_WITH_IMM, control_block::kTaken);
  addNews(chain, {.kind = News::Kind::kWord});
  ledger.note(chain, work).news = credits_.sent();
}

bool RequestCutter::wake(RequestChain& chain, RequestLedger& ledger) {
  if (!ledger.hasRoom(chain, 1) || !credits_.maySend()) return false;
  addWake(chain, ledger, nullptr);
  return true;
}

bool RequestCutter::peerPolls() const {
  const auto* const polls =
      reinterpret_cast<const uint64_t*>(control_.data() + control_block::kPolls);
  // The peer's device writes it.
  return std::atomic_ref<const uint64_t>(*polls).load(std::memory_order_acquire) != 0;
}

// An answer to a write only says that the peer's device has it. The answer to a read after it says
// that it stands in memory, and comes after everything that the peer's device wrote here before.
bool RequestCutter::tellPolls(bool polls, RequestChain& chain, RequestLedger& ledger) {
  if (!ledger.hasRoom(chain, 2)) return false;
  addToControl(chain, IBV_WR_RDMA_WRITE, control_block::kPolls);
  const uint64_t word = polls ? 1 : 0;
  std::memcpy(chain.carry(sizeof word), &word, sizeof word);
  ledger.note(chain, nullptr);
  if (polls) return true;
  addToControl(chain, IBV_WR_RDMA_READ, control_block::kPolls);
  chain.addPiece(control_.address() + control_block::kLanding, 8, control_.local());
  ledger.note(chain, nullptr);
  ledger.sign(chain);
  return true;
}

// The peer has applied the mail that was in the slot, because it has taken that news. It is asked,
// because the word has not been written before it has taken this one, too: the work ends then.
void RequestCutter::addMail(AgentWork& work, RequestChain& chain, RequestLedger& ledger) {
  const MailboxEntry& entry = *work.entry;
  const auto slot = static_cast<uint16_t>(credits_.sent() % credits_.window());
  addToControl(chain, IBV_WR_RDMA_WRITE_WITH_IMM,
               control_block::kMail + slot * control_block::kMailBytes);
  const std::array<uint64_t, 4> mail{entry.remote->grant.allocation, entry.remote->grant.generation,
                                     entry.remoteOffset, entry.operand};
  std::memcpy(chain.carry(sizeof mail), mail.data(), sizeof mail);
  const News::Kind kind = entry.verb == Verb::kAdd64  ? News::Kind::kAdd64
                          : entry.width == Width::k32 ? News::Kind::kStore32
                                                      : News::Kind::kStore64;
  addNews(chain, {.kind = kind, .asks = true, .slot = slot});
  ledger.note(chain, &work).news = credits_.sent();
  WorkState(work).setMailed();
  work.offset = credits_.sent();
}

void RequestCutter::addNews(RequestChain& chain, News news) {
  news.asks |= credits_.isNextLast();
  chain.last().imm_data = htobe32(news.encode());
  chain.last().send_flags |= IBV_SEND_SOLICITED;
  credits_.use();
}

ibv_send_wr& RequestCutter::addToControl(RequestChain& chain, ibv_wr_opcode opcode,
                                         uint64_t offset) {
  ibv_send_wr& request = chain.add(opcode);
  request.wr.rdma.rkey = agreed_.controlKey;
  request.wr.rdma.remote_addr = agreed_.control + offset;
  return request;
}

RequestCutter::Cut RequestCutter::cutFlush(AgentWork& work, RequestChain& chain,
                                           RequestLedger& ledger) {
  if (!ledger.hasRoom(chain, 1)) return Cut::kStalled;
  prove(work, chain, ledger);
  return Cut::kWhole;
}

// Of the peer's control block, which may always be read.
void RequestCutter::prove(AgentWork& work, RequestChain& chain, RequestLedger& ledger) {
  addToControl(chain, IBV_WR_RDMA_READ, control_block::kTaken);
  chain.addPiece(control_.address() + control_block::kLanding, 8, control_.local());
  ledger.note(chain, &work);
}

bool RequestCutter::tellTaken(uint64_t taken, bool isAsked, RequestChain& chain,
                              RequestLedger& ledger) {
  if (!ledger.hasRoom(chain, 1) || (isAsked && !credits_.mayAnswer())) return false;
  addToControl(chain, isAsked ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
               control_block::kTaken);
  std::memcpy(chain.carry(sizeof taken), &taken, sizeof taken);
  if (isAsked) {
    // It asks as a word does: nothing else would wake this side once it waits for credits.
    addNews(chain, {.kind = News::Kind::kTaken});
  }
  ledger.note(chain, nullptr).news = isAsked ? credits_.sent() : 0;
  return true;
}

}  // namespace peerlane
