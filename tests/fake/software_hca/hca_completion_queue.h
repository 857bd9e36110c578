// SPDX-License-Identifier: Apache-2.0
//
// A completion queue and the channel that its events go to. push() is called with the context's
// lock held (by its engine, or by what moves a pair to error); everything else by any thread.
// Polling takes one short lock and never waits for the engine.
#pragma once

#include <vector>

#include "tests/fake/software_hca/hca_events.h"
#include "tests/fake/software_hca/hca_spin.h"

namespace peerlane::softhca {

class CompletionQueue;
class Context;
class QueuePair;

class Channel : public ibv_comp_channel {
 public:
  explicit Channel(ibv_context* of) : ibv_comp_channel{of, -1, 0} { fd = events.fd(); }
  static Channel& of(ibv_comp_channel* channel) { return *static_cast<Channel*>(channel); }
  EventQueue<CompletionQueue*> events;
};

class CompletionQueue : public ibv_cq {
 public:
  // `entries` is what was asked for; there is room for more.
  CompletionQueue(Context& owner, int entries, void* userContext, Channel* to);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  static CompletionQueue& of(ibv_cq* queue) { return *static_cast<CompletionQueue*>(queue); }

  // `sent`: how far the pair's send queue is free again once this is polled. False: no room, and
  // from now on the queue is in error.
  bool push(const ibv_wc& completion, QueuePair* pair, bool isSolicited, uint64_t sent = 0);
  int pollMany(int most, ibv_wc* out);
  int arm(bool solicitedOnly);
  // Room for so many. EINVAL: more are in it. Under the context's lock.
  int resize(int entries);
  // Of a pair that goes away.
  void forget(const QueuePair* pair);
  // The queue is in error.
  void overrun();

  EventDebt completionEvents, asyncEvents;
  int users = 0;  // pairs; under the context's lock
  Context& owner() { return owner_; }

 private:
  struct Entry {
    ibv_wc completion;
    QueuePair* pair;
    uint64_t sent;
  };
  enum Armed : uint32_t { kNot, kSolicited, kAny };
  void raise(bool isSolicited);

  Context& owner_;
  std::vector<Entry> ring_;
  SpinLock polling_;
  std::atomic<uint64_t> head_{0};  // polled
  std::atomic<uint64_t> tail_{0};  // pushed
  std::atomic<uint32_t> armed_{kNot};
  bool isOverrun_ = false;
};

}  // namespace peerlane::softhca
