// SPDX-License-Identifier: Apache-2.0
//
// Mailbox: how a program asks an agent to do what plain loads and stores cannot (a socket,
// process_vm_*, a staged ring). Posting fills a 64-byte entry and stores the doorbell; the program
// then waits for the completion word. One poster at a time (a run owns its mailbox); any thread may
// serve, one at a time (`serving_`). The protocol is the one of mailbox_protocol.h, which the
// explorer checks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/program/model/op.h"

namespace peerlane {

class Mailbox;
struct Waker;

// One contiguous copy between local memory and a peer's region.
struct Piece {
  std::byte* local = nullptr;
  const RemoteMemory* remote = nullptr;
  uint64_t remoteOffset = 0;
  uint64_t bytes = 0;
};

enum class Verb : uint8_t { kPut, kGet, kStore, kAdd64, kFlush };

struct alignas(64) MailboxEntry {
  Verb verb = Verb::kFlush;
  Width width = Width::k64;
  Order order = Order::kRelaxed;
  // Of a word: it takes no effect unless the entry before it, a put, did. Only for memory that says
  // RemoteMemory::refusesInOrder.
  bool onlyAfterPrevious = false;
  // No user waits for it here: the agent may hold it back for the next thing that goes to the peer,
  // for as long as it holds back acknowledgements.
  bool mayLinger = false;
  // Of a put: this side's memory is the library's and stays. Else it may be the program's, which
  // may lose it at any time.
  bool isOurs = false;
  // It takes no effect before every entry before it is complete, nor after one of those failed.
  bool afterAll = false;
  // Its memory is mapped here: the thread that serves copies or stores by itself (LinkDispatch).
  bool isMapped = false;
  // Where isMapped: BoundTarget::mayBeCut of this side's memory or of the peer's.
  bool mayBeCut = false;
  uint32_t pieceCount = 0;
  const Piece* pieces = nullptr;         // kPut, kGet; alive until the entry completed
  const RemoteMemory* remote = nullptr;  // kStore, kAdd64, kFlush: where the word is
  uint64_t remoteOffset = 0;
  uint64_t operand = 0;
  // Of a word where isMapped: rung after it. Outlives the entry.
  const Waker* waker = nullptr;
};
static_assert(sizeof(MailboxEntry) == 64, "one entry is one cache line");

// One entry in an agent's hands. `offset`, `piece` and `scratch` belong to the link between calls
// of serve().
struct AgentWork {
  const MailboxEntry* entry = nullptr;
  Mailbox* mailbox = nullptr;
  uint32_t piece = 0;
  uint64_t offset = 0;  // bytes already moved of the current piece
  std::array<uint64_t, 2> scratch{};
  // Words about it go by another wire: a put must stand in the peer's memory when it has ended, for
  // all who look there, not only be acknowledged. Set before each call of serve().
  bool mustStand = false;
  std::atomic<bool> finished{false};  // release by the finishing thread; acquire by Mailbox::serve
  std::atomic<Code> code{Code::kOk};  // written before `finished`
};

enum class Served : uint8_t {
  kDone,   // performed (or failed: work.code); the agent touches its memory no more
  kMore,   // moved something and can go on at once; cancellation is looked at in between
  kAgain,  // no or partial progress; call serve() again later with the same work
  kSent,   // handed to the wire; the link calls Mailbox::finish(work) exactly once
};

// Performs mailbox entries: the part of a link that copies and stores where plain loads and stores
// do not reach. One thread at a time calls serve() for one mailbox; several threads may call it for
// several mailboxes. Entries of one mailbox take effect in order.
class Agent {
 public:
  virtual ~Agent() = default;
  virtual Served serve(AgentWork& work) = 0;
  // The answer for `work` was kSent, and its poster no longer wants the rest of it. The agent must
  // not begin a further part. It ends the work by Mailbox::finish as before, after it has stopped
  // touching the memory; with `code` if it left anything out. Threads call it like serve(), perhaps
  // several times for one work. Agents that never answer kSent need not override it.
  virtual void abandon(AgentWork& /*work*/, Code /*code*/) {}
  // For now no entry of the mailbox follows those from `first` to `last`, which were answered by
  // kSent since the last call; those in between that are finished were not. An agent may hold them
  // back until then, so that entries that belong together go out together. Threads as serve().
  virtual void handedOut(AgentWork& /*first*/, AgentWork& /*last*/) {}
};

// Where a mailbox tells what became of its entries, for those who wait without it: a device, or a
// thread that has a program of the mailbox's queue. Words of the waiter's choice.
struct MailboxMirror {
  // Entries completed, all of them well. Whoever gives the queue up exchanges it for kPoison, after
  // which it keeps that value.
  std::atomic<uint64_t>* count = nullptr;
  // 0, or the Code of the first failure; stored before the poison.
  std::atomic<uint64_t>* status = nullptr;

  // Any thread, any number of times; the first one counts.
  void fail(Code code) const;
};

class Mailbox {
 public:
  static constexpr uint32_t kSlots = 8;

  // `slots`: entries in flight at once, a power of two.
  explicit Mailbox(Agent& agent, uint32_t slots = kSlots)
      : agent_(agent),
        mask_(slots - 1),
        entries_(std::make_unique<MailboxEntry[]>(slots)),
        works_(std::make_unique<AgentWork[]>(slots)) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // --- Poster ---
  // A free entry to fill, or null when all are in flight (serve first).
  MailboxEntry* claim();
  // Takes back the last `count` entries that were claimed. Requires: they were not rung.
  void unclaim(uint64_t count) { claimed_ -= count; }
  // Entries claimed since the mailbox was made: the number of the last one.
  uint64_t claimed() const { return claimed_; }
  uint32_t slots() const { return mask_ + 1; }
  // Stores the doorbell, which makes every claimed entry visible to the agent.
  void ring() { ringTo(claimed_); }
  // The same for the entries up to number `last` alone. For the poster, or for the one thread that
  // rings in its stead: then the poster must not, and that thread must have heard of `last` from
  // the poster.
  void ringTo(uint64_t last) { doorbell_.store(last, std::memory_order_seq_cst); }
  // From now on completions are told there, too; null: no more. Entries that come after a failure
  // then end with its code. Requires: idle().
  void mirrorTo(const MailboxMirror* mirror);
  bool idle() const { return completion_.load(std::memory_order_acquire) == claimed_; }
  // The first failure among the entries of this use; valid when idle().
  Code code() const { return code_.load(std::memory_order_acquire); }
  // Forgets a failure before the next use. Requires: idle().
  void resetCode() { code_.store(Code::kOk, std::memory_order_relaxed); }

  // --- Agent side, any thread ---
  // Performs what it can. Returns true when something moved. When another thread is serving it
  // returns false.
  bool serve();
  // The same. False: another thread was serving, and perhaps the agent refused it something before
  // this call, which then has to be repeated.
  bool serveHere();
  // The entry before this one; null: it is complete. For the agent, inside serve().
  const AgentWork* previous(const AgentWork& work) const {
    return isOldest(work) ? nullptr : &work == works_.get() ? &works_[mask_] : &work - 1;
  }
  // The entry after this one. For the agent, where it has that one in its hands, too.
  AgentWork& next(AgentWork& work) { return &work == &works_[mask_] ? works_[0] : *(&work + 1); }
  // An entry after this one has been rung. For the agent, inside serve().
  bool hasMore(const AgentWork& work) const {
    return &work != &works_[(doorbell_.load(std::memory_order_acquire) - 1) & mask_];
  }
  // Every entry before this one is complete. For the agent, inside serve().
  bool isOldest(const AgentWork& work) const {
    return &work == &works_[completion_.load(std::memory_order_acquire) & mask_];
  }
  // True while a thread is inside serve() or finish().
  bool beingServed() const { return serving_.load(std::memory_order_acquire); }
  // The link calls it for work that was kSent. Never blocks. It publishes the completion, or leaves
  // that to the thread that serves at this moment.
  static void finish(AgentWork& work, Code code);
  // Every rung entry is in an agent's hands, so its answer is all that is waited for. A hint for
  // the poster: false while another thread serves.
  bool isInAgentsHands() {
    if (serving_.exchange(true, std::memory_order_seq_cst)) return false;
    const bool is = next_ == doorbell_.load(std::memory_order_relaxed);
    serving_.store(false, std::memory_order_seq_cst);
    serve();  // a finisher that found it taken relies on this
    return is;
  }
  // True when entries are rung and not completed. Any thread.
  bool pending() const {
    return completion_.load(std::memory_order_acquire) != doorbell_.load(std::memory_order_acquire);
  }
  // For cancellation and lost peers. The next serve(), or the one in progress, ends the entries
  // that the agent has not begun with `code` and asks the agent to abandon the others.
  void abort(Code code) { abort_.store(code, std::memory_order_seq_cst); }
  void clearAbort() { abort_.store(Code::kOk, std::memory_order_release); }

  // The agent's own, for an agent of several parts: which one has the entries that are in its
  // hands; or of what kind the last of them is. Inside serve() and abandon().
  uint32_t agentPart = 0;

 private:
  bool serveLoop(bool& moved);
  bool serveLocked();
  void abandonSent(Code code);
  bool publish();
  void tellMirror(uint64_t from, uint64_t to);

  Agent& agent_;
  const uint32_t mask_;
  uint64_t claimed_ = 0;                             // poster only
  alignas(64) std::atomic<uint64_t> doorbell_{0};    // poster release -> agent acquire
  alignas(64) std::atomic<uint64_t> completion_{0};  // agent release -> poster acquire
  std::atomic<Code> code_{Code::kOk};                // agent, before completion_
  std::atomic<Code> abort_{Code::kOk};               // canceller -> agent
  std::atomic<bool> serving_{false};                 // exclusive right to serve
  uint64_t next_ = 0;                                // first entry not handed out; under serving_
  const MailboxMirror* mirror_ = nullptr;            // under serving_
  const std::unique_ptr<MailboxEntry[]> entries_;
  const std::unique_ptr<AgentWork[]> works_;
};

}  // namespace peerlane
