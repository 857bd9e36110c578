// SPDX-License-Identifier: Apache-2.0
//
// A reliable connected queue pair: its state and attributes, its send ring, its receives, and the
// two halves that the engine drives. Posting takes any thread and the queue's own lock; everything
// else is done with the context's lock held.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "tests/fake/software_hca/hca_completion_queue.h"
#include "tests/fake/software_hca/hca_events.h"
#include "tests/fake/software_hca/hca_memory.h"
#include "tests/fake/software_hca/hca_receive_queue.h"
#include "tests/fake/software_hca/hca_responder.h"
#include "tests/fake/software_hca/hca_send_ring.h"
#include "tests/fake/software_hca/hca_sender.h"
#include "tests/fake/software_hca/software_hca.h"

namespace peerlane::softhca {

class QueuePair : public ibv_qp_ex {
 public:
  // `attributes` are changed to what was made.
  QueuePair(Context& owner, ibv_pd* domain, ibv_qp_init_attr& attributes, uint32_t number);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  static QueuePair& of(ibv_qp* pair) {
    return *static_cast<QueuePair*>(reinterpret_cast<ibv_qp_ex*>(pair));
  }
  // 0, or an errno: the device is not able to make such a pair.
  static int check(const Context& owner, const ibv_qp_init_attr& attributes);

  int postSend(ibv_send_wr* request, ibv_send_wr** bad);
  int postReceive(ibv_recv_wr* request, ibv_recv_wr** bad);
  // 0, or an errno: nothing may be posted in this state.
  int maySend() const;

  int modify(const ibv_qp_attr& change, int mask);
  void query(ibv_qp_attr& attributes, ibv_qp_init_attr& made) const;

  ibv_qp_state state() const { return state_.load(std::memory_order_acquire); }
  uint32_t mtuBytes() const { return 128u << attributes.path_mtu; }
  Domain& domain() const { return Domain::of(qp_base.pd); }
  CompletionQueue& sendQueue() const { return CompletionQueue::of(qp_base.send_cq); }
  CompletionQueue& receiveQueue() const { return CompletionQueue::of(qp_base.recv_cq); }

  // What both halves have to do; true: something was done.
  bool turn(uint64_t now);
  // To error: the oldest request ends with this status, everything else is flushed.
  void fail(int status);
  void raise(ibv_event_type event);
  const ReceiveQueue* ownReceives() const { return receives_.get(); }
  // The first packet came in.
  void communicates();

  bool takeReceive(Receive& receive);
  Domain& receiveDomain() const;
  void completeReceive(uint64_t id, ibv_wc_status status);
  // Who sends it, and to whom.
  void address(Packet& packet) const;
  // `ring`: where it was reserved. The peer's pair may be gone since.
  void sendAnswer(Packet* packet, PacketRing& ring);
  bool isSettled() const { return sender.isSettled() && responder.isSettled(); }
  void addCounts(SoftwareHcaCounts& total) const;
  void resetCounts();

  Context& context;
  ibv_qp_attr attributes{};
  SendRing requests;
  Sender sender;
  Responder responder;
  EventDebt asyncEvents;
  // The engine's lists: rung by posts, and those with something under way.
  std::atomic<bool> isRung{false};
  QueuePair* nextRung = nullptr;
  bool isActive = false;
  bool isBuildable = false;  // made with operations for ibv_qp_ex
  // Of ibv_qp_ex: what is built, under requests.posting.
  SendEntry* built = nullptr;
  int buildError = 0;

 private:
  // Where hardware leaves it to the target.
  bool isRefusedByRxe(const ibv_send_wr& request) const;
  void enter(ibv_qp_state state);
  void flushReceives();

  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  ibv_qp_init_attr made_{};
  std::unique_ptr<ReceiveQueue> receives_;  // null: they are shared
  bool hasCommunicated_ = false;
};

// Of the code in a request to try again.
uint64_t rnrNanoseconds(uint32_t code);

}  // namespace peerlane::softhca
