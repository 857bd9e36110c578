// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/mailbox.h"

#include "peerlane/core/device_code.h"

namespace peerlane {
namespace {

// So many slices of a long entry are performed by one call, because a turn of the progress engine
// must serve other work, too.
constexpr uint32_t kSlicesPerServe = 8;

}  // namespace

void MailboxMirror::fail(Code code) const {
  uint64_t none = 0;
  status->compare_exchange_strong(none, static_cast<uint64_t>(code), std::memory_order_acq_rel);
  count->exchange(kPoison, std::memory_order_acq_rel);
}

void Mailbox::mirrorTo(const MailboxMirror* mirror) {
  while (serving_.exchange(true, std::memory_order_seq_cst)) cpuRelax();
  mirror_ = mirror;
  serving_.store(false, std::memory_order_seq_cst);
  serve();  // a finisher that found it taken relies on this
}

MailboxEntry* Mailbox::claim() {
  if (claimed_ - completion_.load(std::memory_order_acquire) > mask_) return nullptr;
  MailboxEntry* entry = &entries_[claimed_ & mask_];
  *entry = {};
  ++claimed_;
  return entry;
}

bool Mailbox::serve() {
  bool moved = false;
  (void)serveLoop(moved);
  return moved;
}

bool Mailbox::serveHere() {
  bool moved = false;
  return serveLoop(moved);
}

bool Mailbox::serveLoop(bool& moved) {
  // A thread that finds `serving_` taken returns and relies on the thread that holds it: a finisher
  // for the work that it finished, the poster for the entries that it rang or aborted. Both stored
  // that before they tried (all sequentially consistent), so the holder sees it after it has let
  // go.
  for (;;) {
    if (serving_.exchange(true, std::memory_order_seq_cst)) return false;
    const uint64_t seen = doorbell_.load(std::memory_order_seq_cst);
    const Code aborted = abort_.load(std::memory_order_seq_cst);
    moved |= serveLocked();
    const uint64_t head = completion_.load(std::memory_order_relaxed);
    const bool handedOut = head < next_;
    serving_.store(false, std::memory_order_seq_cst);
    const bool rung = doorbell_.load(std::memory_order_seq_cst) != seen;
    const bool ended = handedOut && works_[head & mask_].finished.load(std::memory_order_seq_cst);
    const bool asked = abort_.load(std::memory_order_seq_cst) != aborted;
    if (!rung && !ended && !asked) return true;
  }
}

// The slots of unfinished works are not reused while `serving_` is held.
void Mailbox::abandonSent(Code code) {
  for (uint64_t at = completion_.load(std::memory_order_relaxed); at < next_; ++at) {
    AgentWork& work = works_[at & mask_];
    if (!work.finished.load(std::memory_order_acquire)) agent_.abandon(work, code);
  }
}

bool Mailbox::serveLocked() {
  bool moved = publish();
  if (const Code aborted = abort_.load(std::memory_order_acquire); aborted != Code::kOk)
    abandonSent(aborted);
  uint32_t slices = kSlicesPerServe;
  AgentWork* firstSent = nullptr;
  AgentWork* lastSent = nullptr;
  const uint64_t rung = doorbell_.load(std::memory_order_acquire);
  while (next_ < rung) {
    AgentWork& work = works_[next_ & mask_];
    if (work.entry == nullptr) {
      work.entry = &entries_[next_ & mask_];
      work.mailbox = this;
      work.piece = 0;
      work.offset = 0;
      work.scratch = {};
      work.code.store(Code::kOk, std::memory_order_relaxed);
      work.finished.store(false, std::memory_order_relaxed);
    }
    const Code aborted = abort_.load(std::memory_order_acquire);
    if (aborted != Code::kOk) {
      work.code.store(aborted, std::memory_order_relaxed);
      work.finished.store(true, std::memory_order_release);
    } else {
      const Served served = agent_.serve(work);
      if (served == Served::kAgain) break;
      moved = true;
      if (served == Served::kMore) {
        if (--slices == 0) break;
        continue;
      }
      if (served == Served::kDone) work.finished.store(true, std::memory_order_release);
      if (served == Served::kSent) {
        if (firstSent == nullptr) firstSent = &work;
        lastSent = &work;
      }
    }
    ++next_;
    moved = true;
    publish();
  }
  if (firstSent != nullptr) agent_.handedOut(*firstSent, *lastSent);
  return moved;
}

// Not over a poison that another thread has put there: the count may then have been given up.
void Mailbox::tellMirror(uint64_t from, uint64_t to) {
  const Code code = code_.load(std::memory_order_relaxed);
  if (code != Code::kOk) {
    abort_.store(code, std::memory_order_seq_cst);  // nothing more is begun once it is told
    mirror_->fail(code);
    return;
  }
  mirror_->count->compare_exchange_strong(from, to, std::memory_order_acq_rel);
}

bool Mailbox::publish() {
  bool moved = false;
  uint64_t head = completion_.load(std::memory_order_relaxed);
  while (head < next_) {
    AgentWork& work = works_[head & mask_];
    if (!work.finished.load(std::memory_order_acquire)) break;
    const Code code = work.code.load(std::memory_order_relaxed);
    if (code != Code::kOk && code_.load(std::memory_order_relaxed) == Code::kOk)
      code_.store(code, std::memory_order_relaxed);
    work.entry = nullptr;
    if (mirror_ != nullptr) tellMirror(head, head + 1);
    ++head;
    completion_.store(head, std::memory_order_release);
    moved = true;
  }
  return moved;
}

void Mailbox::finish(AgentWork& work, Code code) {
  Mailbox* mailbox = work.mailbox;
  work.code.store(code, std::memory_order_relaxed);
  work.finished.store(true, std::memory_order_seq_cst);
  // After this the slot may be reused by a serving thread: only `mailbox` may be touched.
  if (mailbox->serving_.exchange(true, std::memory_order_seq_cst)) return;
  mailbox->publish();
  const uint64_t head = mailbox->completion_.load(std::memory_order_relaxed);
  const uint64_t next = mailbox->next_;
  mailbox->serving_.store(false, std::memory_order_seq_cst);
  const bool rung = mailbox->doorbell_.load(std::memory_order_seq_cst) > next;
  const bool aborted = mailbox->abort_.load(std::memory_order_seq_cst) != Code::kOk;
  if (rung || (aborted && head < next) ||
      (head < next &&
       mailbox->works_[head & mailbox->mask_].finished.load(std::memory_order_seq_cst)))
    mailbox->serve();
}

}  // namespace peerlane
