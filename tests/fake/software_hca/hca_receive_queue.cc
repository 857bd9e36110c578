// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_receive_queue.h"

#include <cerrno>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_memory.h"

namespace peerlane::softhca {

int ReceiveQueue::post(ibv_recv_wr* request, ibv_recv_wr** bad) {
  const SpinHeld held(posting_);
  int failed = 0;
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  for (; request != nullptr && failed == 0; request = request->next) {
    if (request->num_sge < 0 || static_cast<uint32_t>(request->num_sge) > mostPieces_) {
      failed = EINVAL;
    } else if (tail - head_.load(std::memory_order_acquire) == ring_.size()) {
      failed = ENOMEM;
    } else {
      Receive& receive = ring_[tail % ring_.size()];
      receive.id = request->wr_id;
      receive.pieces.assign(request->sg_list, request->sg_list + request->num_sge);
      ++tail;
      posted.add(1);
    }
    if (failed != 0) *bad = request;
  }
  tail_.store(tail, std::memory_order_release);
  return failed;
}

bool ReceiveQueue::take(Receive& receive) {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  if (head == tail_.load(std::memory_order_acquire)) return false;
  const Receive& first = ring_[head % ring_.size()];
  receive.id = first.id;
  receive.pieces.assign(first.pieces.begin(), first.pieces.end());
  head_.store(head + 1, std::memory_order_release);
  return true;
}

SharedReceiveQueue::SharedReceiveQueue(Context& owner, Domain& of,
                                       const ibv_srq_init_attr& attributes)
    : ibv_srq{},
      receives(attributes.attr.max_wr, attributes.attr.max_sge),
      domain(of),
      owner_(owner),
      limit_(attributes.attr.srq_limit) {
  context = owner.face();
  srq_context = attributes.srq_context;
  pd = &of;
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

SharedReceiveQueue::~SharedReceiveQueue() {
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

bool SharedReceiveQueue::take(Receive& receive) {
  if (!receives.take(receive)) return false;
  if (receives.size() < limit_.load() && limit_.exchange(0) != 0)
    owner_.raise({{.srq = this}, IBV_EVENT_SRQ_LIMIT_REACHED});
  return true;
}

int SharedReceiveQueue::modify(const ibv_srq_attr& attributes, int mask) {
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EOPNOTSUPP;
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attributes.srq_limit > receives.room()) return EINVAL;
  limit_ = attributes.srq_limit;
  // As hardware: at once, where there are fewer already.
  if (receives.size() < limit_.load() && limit_.exchange(0) != 0)
    owner_.raise({{.srq = this}, IBV_EVENT_SRQ_LIMIT_REACHED});
  return 0;
}

void SharedReceiveQueue::query(ibv_srq_attr& attributes) const {
  attributes = {receives.room(), receives.mostPieces(), limit_.load()};
}

}  // namespace peerlane::softhca
