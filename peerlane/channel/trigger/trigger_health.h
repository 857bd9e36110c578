// SPDX-License-Identifier: Apache-2.0
//
// TriggerHealth: the words of one triggered queue, what they say of its operations, and the first
// failure, which ends the queue. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/channel/protocol/trigger_protocol.h"
#include "peerlane/channel/trigger/posted_work.h"
#include "peerlane/channel/trigger/trigger_words.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class TriggerHealth {
 public:
  // `peer` outlives it.
  explicit TriggerHealth(PeerCore& peer) : peer_(peer) {}

  TriggerWords& words() { return *words_; }
  const std::shared_ptr<TriggerWords>& sharedWords() const { return words_; }
  const MailboxMirror& mirror() const { return mirror_; }

  bool hasFailed() const { return words_->status.load(std::memory_order_acquire) != 0; }
  // Operations up to `last` are complete; those of a queue that has failed are not known to be.
  bool isComplete(uint64_t last) const {
    const uint64_t count = words_->count.load(std::memory_order_acquire);
    return !isPoison(count) && count >= last;
  }
  bool haveArrived(std::span<const TriggerArrival> arrivals) const;
  bool isReached(uint64_t last, std::span<const TriggerArrival> arrivals) const {
    return isComplete(last) && haveArrived(arrivals);
  }

  // The first one counts. Every wait for the count is released.
  void fail(const Status& why);
  // Releases again: the program of a mapped queue may have stored its count over the poison, and a
  // link that ended an operation knows only the count.
  void failAgain();
  // Of a mapped queue: its program stored `last` to the count, or a later one did, before or after
  // the poison.
  bool wasStored(uint64_t last) const {
    const uint64_t count = words_->count.load(std::memory_order_acquire);
    return (!isPoison(count) && count >= last) || stored_.load(std::memory_order_acquire) >= last;
  }
  // A link ended an operation among these, and nobody has said more than its code. Requires: it has
  // failed.
  void explain(const PostedWorks& works);
  // OK, or the first failure.
  Status status() const;

 private:
  Status inWords(Code code) const;

  PeerCore& peer_;
  // Shared with the pin of a device, which may end later.
  const std::shared_ptr<TriggerWords> words_ = std::make_shared<TriggerWords>();
  std::atomic<uint64_t> stored_{0};  // the highest count that a poison replaced
  const MailboxMirror mirror_{&words_->count, &words_->status};
  mutable Mutex mutex_;
  Status failure_ PEERLANE_GUARDED_BY(mutex_);  // OK also while only the code is known
};

}  // namespace peerlane
