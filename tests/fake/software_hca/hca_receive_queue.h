// SPDX-License-Identifier: Apache-2.0
//
// Receives that were posted and not yet used: of one pair, or shared by many. Any thread posts;
// take() is called with the context's lock held.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

#include "tests/fake/software_hca/hca_events.h"
#include "tests/fake/software_hca/hca_spin.h"

namespace peerlane::softhca {

class Context;
class Domain;

struct Receive {
  uint64_t id = 0;
  std::vector<ibv_sge> pieces;
};

class ReceiveQueue {
 public:
  ReceiveQueue(uint32_t requests, uint32_t pieces) : mostPieces_(pieces), ring_(requests) {
    for (Receive& receive : ring_) receive.pieces.reserve(pieces);
  }

  // 0, or an errno with `bad` at the first that was not taken.
  int post(ibv_recv_wr* request, ibv_recv_wr** bad);
  // False: there is none.
  bool take(Receive& receive);
  uint32_t size() const { return static_cast<uint32_t>(tail_.load() - head_.load()); }
  uint32_t room() const { return static_cast<uint32_t>(ring_.size()); }
  uint32_t mostPieces() const { return mostPieces_; }
  Count posted;
  void clear() { head_ = tail_.load(); }

 private:
  const uint32_t mostPieces_;
  std::vector<Receive> ring_;
  SpinLock posting_;
  std::atomic<uint64_t> head_{0}, tail_{0};
};

class SharedReceiveQueue : public ibv_srq {
 public:
  SharedReceiveQueue(Context& owner, Domain& of, const ibv_srq_init_attr& attributes);
  ~SharedReceiveQueue();
  SharedReceiveQueue(const SharedReceiveQueue&) = delete;
  static SharedReceiveQueue& of(ibv_srq* queue) { return *static_cast<SharedReceiveQueue*>(queue); }

  // As ReceiveQueue's; below the limit there is one event.
  bool take(Receive& receive);
  int modify(const ibv_srq_attr& attributes, int mask);
  void query(ibv_srq_attr& attributes) const;

  ReceiveQueue receives;
  EventDebt asyncEvents;
  int users = 0;  // pairs; under the context's lock
  Domain& domain;

 private:
  Context& owner_;
  std::atomic<uint32_t> limit_;
};

}  // namespace peerlane::softhca
