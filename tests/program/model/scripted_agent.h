// SPDX-License-Identifier: Apache-2.0
//
// ScriptedAgent: an agent in this process that does what the test told it: perform at once, in
// pieces, later, or fail. Remote memory is memory of this process at RemoteMemory::linkKey. serve()
// may be called by any thread; the script is set before.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/words/word.h"

namespace peerlane {

class ScriptedAgent final : public Agent {
 public:
  enum class Answer : uint8_t { kDone, kAgain, kMore, kSent };

  // Answers of the next calls, in order; then kDone for ever.
  void script(std::vector<Answer> answers) {
    const std::lock_guard lock(mutex_);
    script_.assign(answers.begin(), answers.end());
  }
  // What entries end with from now on, instead of being performed.
  void failWith(Code code) {
    const std::lock_guard lock(mutex_);
    failure_ = code;
  }
  // Every entry is handed to the "wire": it ends by finishOne().
  void sendAll(bool on) {
    const std::lock_guard lock(mutex_);
    sendAll_ = on;
  }

  Served serve(AgentWork& work) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    Answer answer = sendAll_ ? Answer::kSent : Answer::kDone;
    if (!script_.empty()) {
      answer = script_.front();
      script_.pop_front();
    }
    if (answer == Answer::kAgain) return Served::kAgain;
    if (answer == Answer::kMore) return Served::kMore;
    verbs_.push_back(work.entry->verb);
    if (answer == Answer::kSent) {
      sent_.push_back(&work);
      return Served::kSent;
    }
    if (failure_ == Code::kOk)
      perform(*work.entry);
    else
      work.code.store(failure_);
    return Served::kDone;
  }

  // Performs and ends the oldest entry that was sent. False when there is none.
  bool finishOne(Code code = Code::kOk) {
    AgentWork* work = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (sent_.empty()) return false;
      work = sent_.front();
      sent_.pop_front();
      if (code == Code::kOk) perform(*work->entry);
    }
    Mailbox::finish(*work, code);
    return true;
  }

  std::vector<Verb> verbs() const {
    const std::lock_guard lock(mutex_);
    return verbs_;
  }
  size_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  size_t sent() const {
    const std::lock_guard lock(mutex_);
    return sent_.size();
  }

 private:
  static std::byte* at(const RemoteMemory& memory, uint64_t offset) {
    return std::bit_cast<std::byte*>(memory.linkKey) + offset;
  }
  static void perform(const MailboxEntry& entry) {
    switch (entry.verb) {
      case Verb::kPut:
      case Verb::kGet:
        for (uint32_t i = 0; i < entry.pieceCount; ++i) {
          const Piece& piece = entry.pieces[i];
          std::byte* there = at(*piece.remote, piece.remoteOffset);
          if (entry.verb == Verb::kPut)
            std::memcpy(there, piece.local, piece.bytes);
          else
            std::memcpy(piece.local, there, piece.bytes);
        }
        return;
      case Verb::kStore:
        storeWord(at(*entry.remote, entry.remoteOffset), entry.width, entry.operand,
                  std::memory_order_release);
        return;
      case Verb::kAdd64: addWord(at(*entry.remote, entry.remoteOffset), entry.operand); return;
      case Verb::kFlush: return;
    }
  }

  mutable std::mutex mutex_;
  std::deque<Answer> script_;
  std::deque<AgentWork*> sent_;
  std::vector<Verb> verbs_;
  size_t calls_ = 0;
  bool sendAll_ = false;
  Code failure_ = Code::kOk;
};

}  // namespace peerlane
