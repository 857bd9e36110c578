// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_tables.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

int pollQueue(ibv_cq* queue, int most, ibv_wc* out) {
  CompletionQueue& of = CompletionQueue::of(queue);
  const int count = of.pollMany(most, out);
  if (count > 0 || most <= 0) return count;
  of.owner().assist();
  return of.pollMany(most, out);
}

int armQueue(ibv_cq* queue, int solicitedOnly) {
  if (Context::of(queue->context).isRemoved()) return EIO;
  return CompletionQueue::of(queue).arm(solicitedOnly != 0);
}

int postSend(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  return QueuePair::of(pair).postSend(request, bad);
}

int postReceive(ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  return QueuePair::of(pair).postReceive(request, bad);
}

int postShared(ibv_srq* queue, ibv_recv_wr* request, ibv_recv_wr** bad) {
  if (Context::of(queue->context).isRemoved()) {
    *bad = request;
    return EIO;
  }
  return SharedReceiveQueue::of(queue).receives.post(request, bad);
}

int queryPort(ibv_context* face, uint8_t port, ibv_port_attr* attributes, size_t bytes) {
  Context& context = Context::of(face);
  if (context.isRemoved()) return EIO;
  if (port < 1 || port > context.settings.limits.ports) return EINVAL;
  ibv_port_attr all;
  context.device.describePort(context.settings, all);
  memset(attributes, 0, bytes);
  memcpy(attributes, &all, std::min(bytes, sizeof all));
  return 0;
}

int queryDevice(ibv_context* face, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes,
                size_t bytes) {
  Context& context = Context::of(face);
  if (context.isRemoved()) return EIO;
  ibv_device_attr_ex all = {};
  context.device.describe(context.settings, all.orig_attr);
  all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
  all.phys_port_cnt_ex = all.orig_attr.phys_port_cnt;
  if (context.settings.onDemand != OnDemand::kNo) {
    constexpr uint32_t kAll = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                              IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
                              IBV_ODP_SUPPORT_SRQ_RECV;
    all.odp_caps.general_caps = IBV_ODP_SUPPORT;
    all.odp_caps.per_transport_caps.rc_odp_caps = kAll;
  }
  memset(attributes, 0, bytes);
  memcpy(attributes, &all, std::min(bytes, sizeof all));
  return 0;
}

ibv_qp* createPair(ibv_context*, ibv_qp_init_attr_ex* asked) {
  constexpr uint32_t kUnderstood =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  constexpr uint64_t kOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  const bool isBuildable = (asked->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  const bool hasFlags =
      (asked->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && asked->create_flags != 0;
  if ((asked->comp_mask & ~kUnderstood) != 0 || hasFlags ||
      (isBuildable && (asked->send_ops_flags & ~kOperations) != 0)) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // The extended attributes begin with the plain ones.
  ibv_qp* pair = ibv_create_qp(asked->pd, reinterpret_cast<ibv_qp_init_attr*>(asked));
  if (pair != nullptr) QueuePair::of(pair).isBuildable = isBuildable;
  return pair;
}

}  // namespace

void fillTables(verbs_context& tables) {
  tables.context.ops.poll_cq = pollQueue;
  tables.context.ops.req_notify_cq = armQueue;
  tables.context.ops.post_send = postSend;
  tables.context.ops.post_recv = postReceive;
  tables.context.ops.post_srq_recv = postShared;
  tables.query_port = queryPort;
  tables.query_device_ex = queryDevice;
  tables.create_qp_ex = createPair;
}

}  // namespace peerlane::softhca
