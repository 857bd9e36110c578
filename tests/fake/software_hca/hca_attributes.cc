// SPDX-License-Identifier: Apache-2.0
//
// How a queue pair goes from state to state, and which attributes each step needs, as the
// standard's table says for reliable connections.
#include <cerrno>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

struct Step {
  ibv_qp_state from, to;
  int needed, allowed;
};

constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kPath = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kTuned = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kPath;

constexpr Step kSteps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kTuned},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kTuned},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kTuned},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     kTuned | kInit | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC},
};

bool isAllowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
    return (mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE)) == 0;
  for (const Step& step : kSteps)
    if (step.from == from && step.to == to)
      return (mask & step.needed) == step.needed &&
             (mask & ~(step.needed | step.allowed | IBV_QP_STATE)) == 0;
  return false;
}

bool areValuesGood(const Context& context, const ibv_qp_attr& change, int mask) {
  constexpr uint8_t kMostRetries = 7, kMostCode = 31;
  const size_t gids = context.device.gids().size();
  const uint32_t ports = context.settings.limits.ports;
  if ((mask & IBV_QP_PORT) != 0 && (change.port_num < 1 || change.port_num > ports)) return false;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && change.pkey_index != 0) return false;
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (change.path_mtu < IBV_MTU_256 || change.path_mtu > IBV_MTU_4096 ||
       (128u << change.path_mtu) > context.settings.limits.mtu))
    return false;
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& path = change.ah_attr;
    if (path.port_num < 1 || path.port_num > ports) return false;
    if (path.is_global != 0 ? path.grh.sgid_index >= gids : !context.device.isInfiniband())
      return false;
  }
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 &&
      change.max_rd_atomic > context.settings.limits.maxReads)
    return false;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 &&
      change.max_dest_rd_atomic > context.settings.limits.maxReads)
    return false;
  return !((mask & IBV_QP_RETRY_CNT) != 0 && change.retry_cnt > kMostRetries) &&
         !((mask & IBV_QP_RNR_RETRY) != 0 && change.rnr_retry > kMostRetries) &&
         !((mask & IBV_QP_TIMEOUT) != 0 && change.timeout > kMostCode) &&
         !((mask & IBV_QP_MIN_RNR_TIMER) != 0 && change.min_rnr_timer > kMostCode);
}

void adopt(ibv_qp_attr& to, const ibv_qp_attr& from, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) to.qp_access_flags = from.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) to.pkey_index = from.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) to.port_num = from.port_num;
  if ((mask & IBV_QP_AV) != 0) to.ah_attr = from.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) to.path_mtu = from.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) to.dest_qp_num = from.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) to.rq_psn = from.rq_psn & kPsnMask;
  if ((mask & IBV_QP_SQ_PSN) != 0) to.sq_psn = from.sq_psn & kPsnMask;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) to.max_rd_atomic = from.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) to.min_rnr_timer = from.min_rnr_timer;
  if ((mask & IBV_QP_TIMEOUT) != 0) to.timeout = from.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) to.retry_cnt = from.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) to.rnr_retry = from.rnr_retry;
}

}  // namespace

int QueuePair::modify(const ibv_qp_attr& change, int mask) {
  const ibv_qp_state from = state();
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? change.qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && change.cur_qp_state != from) return EINVAL;
  if (!isAllowed(from, to, mask) || !areValuesGood(context, change, mask)) return EINVAL;
  if (to == IBV_QPS_RESET) {
    enter(to);
    attributes = {};
    sender.reset();
    responder.reset();
    requests.reset();
    if (receives_ != nullptr) receives_->clear();
    sendQueue().forget(this);
    receiveQueue().forget(this);
    return 0;
  }
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_RESET) enter(to);
    fail(IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  adopt(attributes, change, mask);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) responder.begin(attributes.rq_psn);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) sender.begin(attributes.sq_psn);
  enter(to);
  if (to == IBV_QPS_SQD && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 &&
      change.en_sqd_async_notify != 0)
    raise(IBV_EVENT_SQ_DRAINED);
  context.makeActive(*this);
  return 0;
}

void QueuePair::query(ibv_qp_attr& out, ibv_qp_init_attr& made) const {
  out = attributes;
  out.qp_state = out.cur_qp_state = state();
  out.cap = made_.cap;
  made = made_;
}

}  // namespace peerlane::softhca
