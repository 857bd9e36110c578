// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_queue_pair.h"

#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "tests/fake/software_hca/hca_builder.h"
#include "tests/fake/software_hca/hca_context.h"

namespace peerlane::softhca {
namespace {

// What a driver makes of what was asked for: queues have powers of two, and what is between an
// entry's header and the next 64 bytes is there for inlined data.
ibv_qp_cap rounded(const ibv_qp_cap& asked, bool isShared) {
  ibv_qp_cap made = asked;
  made.max_send_wr = std::bit_ceil(std::max(asked.max_send_wr, 1u));
  made.max_send_sge = std::max(asked.max_send_sge, 1u);
  const uint32_t inlined = std::max<uint32_t>(
      asked.max_inline_data, made.max_send_sge * static_cast<uint32_t>(sizeof(ibv_sge)));
  made.max_inline_data = (inlined + 15) / 16 * 16;
  made.max_recv_wr = isShared ? 0 : std::bit_ceil(std::max(asked.max_recv_wr, 1u));
  made.max_recv_sge = isShared ? 0 : std::max(asked.max_recv_sge, 1u);
  return made;
}

}  // namespace

uint64_t rnrNanoseconds(uint32_t code) {
  // In hundredths of a millisecond, by the code of 5 bits.
  constexpr std::array<uint32_t, 32> kTimes = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return uint64_t{kTimes[code % kTimes.size()]} * 10'000;
}

int QueuePair::check(const Context& owner, const ibv_qp_init_attr& asked) {
  const Limits& limits = owner.settings.limits;
  if (asked.qp_type != IBV_QPT_RC) return EOPNOTSUPP;
  if (asked.send_cq == nullptr || asked.recv_cq == nullptr) return EINVAL;
  const ibv_qp_cap& cap = asked.cap;
  const bool fits = cap.max_send_wr <= limits.maxWork && cap.max_send_sge <= limits.maxSge &&
                    cap.max_inline_data <= limits.maxInline &&
                    (asked.srq != nullptr ||
                     (cap.max_recv_wr <= limits.maxWork && cap.max_recv_sge <= limits.maxSge));
  return fits ? 0 : EINVAL;
}

QueuePair::QueuePair(Context& owner, ibv_pd* domain, ibv_qp_init_attr& asked, uint32_t number)
    : ibv_qp_ex{},
      context(owner),
      requests(asked.cap.max_send_wr, rounded(asked.cap, asked.srq != nullptr).max_send_sge,
               rounded(asked.cap, asked.srq != nullptr).max_inline_data, asked.sq_sig_all != 0),
      sender(*this),
      responder(*this) {
  asked.cap = rounded(asked.cap, asked.srq != nullptr);
  asked.cap.max_inline_data = std::min(asked.cap.max_inline_data, owner.settings.limits.maxInline);
  made_ = asked;
  qp_base.context = owner.face();
  qp_base.qp_context = asked.qp_context;
  qp_base.pd = domain;
  qp_base.send_cq = asked.send_cq;
  qp_base.recv_cq = asked.recv_cq;
  qp_base.srq = asked.srq;
  qp_base.handle = qp_base.qp_num = number;
  qp_base.qp_type = IBV_QPT_RC;
  pthread_mutex_init(&qp_base.mutex, nullptr);
  pthread_cond_init(&qp_base.cond, nullptr);
  fillBuilder(*this);
  if (asked.srq == nullptr)
    receives_ = std::make_unique<ReceiveQueue>(asked.cap.max_recv_wr, asked.cap.max_recv_sge);
  ++this->domain().users;
  ++sendQueue().users;
  ++receiveQueue().users;
  if (asked.srq != nullptr) ++SharedReceiveQueue::of(asked.srq).users;
}

QueuePair::~QueuePair() {
  sendQueue().forget(this);
  receiveQueue().forget(this);
  --domain().users;
  --sendQueue().users;
  --receiveQueue().users;
  if (qp_base.srq != nullptr) --SharedReceiveQueue::of(qp_base.srq).users;
  pthread_cond_destroy(&qp_base.cond);
  pthread_mutex_destroy(&qp_base.mutex);
}

int QueuePair::maySend() const {
  const ibv_qp_state now = state();
  if (context.isRemoved()) return EIO;
  return now == IBV_QPS_RESET || now == IBV_QPS_INIT || now == IBV_QPS_RTR ? EINVAL : 0;
}

bool QueuePair::isRefusedByRxe(const ibv_send_wr& request) const {
  const bool isAtomic =
      request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  return isAtomic && request.wr.atomic.remote_addr % 8 != 0 && context.isLikeRxe();
}

int QueuePair::postSend(ibv_send_wr* request, ibv_send_wr** bad) {
  const uint64_t begin = context.isMeasured() ? __rdtsc() : 0;
  int failed = maySend();
  {
    const SpinHeld held(requests.posting);
    requests.counts.posts.add(1);
    if (context.faults.isArmed() && failed == 0)
      failed = context.faults.error(SOFTWARE_HCA_POST_FAILS, qp_base.qp_num);
    for (; request != nullptr && failed == 0; request = request->next) {
      failed = isRefusedByRxe(*request) ? EINVAL : requests.take(*request);
      if (failed != 0) break;
    }
    requests.publish();
    if (context.ring(*this)) requests.counts.doorbells.add(1);
    if (begin != 0) requests.counts.ticks.add(__rdtsc() - begin);
  }
  if (failed != 0) *bad = request;
  return failed;
}

int QueuePair::postReceive(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int failed = 0;
  if (context.isRemoved())
    failed = EIO;
  else if (state() == IBV_QPS_RESET || receives_ == nullptr)
    failed = EINVAL;
  else
    failed = receives_->post(request, bad);
  if (failed == EIO || (failed == EINVAL && (state() == IBV_QPS_RESET || receives_ == nullptr)))
    *bad = request;
  // They are flushed then.
  if (state() == IBV_QPS_ERR) context.ring(*this);
  return failed;
}

bool QueuePair::turn(uint64_t now) {
  sender.onTime(now);
  const bool sentSome = sender.turn(now);
  // What was posted since it is in error.
  if (state() == IBV_QPS_ERR && !context.isLikeRxe()) flushReceives();
  return responder.turn(now) || sentSome;
}

void QueuePair::fail(int status) {
  if (state() == IBV_QPS_ERR || state() == IBV_QPS_RESET) return;
  enter(IBV_QPS_ERR);
  sender.endAll(status);
  flushReceives();
  context.makeActive(*this);
}

void QueuePair::flushReceives() {
  responder.endAll();
  Receive receive;
  while (receives_ != nullptr && receives_->take(receive))
    completeReceive(receive.id, IBV_WC_WR_FLUSH_ERR);
}

void QueuePair::enter(ibv_qp_state state) {
  const bool wasError = state_.load() == IBV_QPS_ERR;
  state_.store(state, std::memory_order_release);
  qp_base.state = state;
  attributes.qp_state = attributes.cur_qp_state = state;
  if (state == IBV_QPS_ERR && !wasError && qp_base.srq != nullptr)
    raise(IBV_EVENT_QP_LAST_WQE_REACHED);
}

void QueuePair::raise(ibv_event_type event) {
  context.raise({{.qp = &qp_base}, event});
}

void QueuePair::communicates() {
  if (hasCommunicated_) return;
  hasCommunicated_ = true;
  if (state() == IBV_QPS_RTR && !context.isLikeRxe()) raise(IBV_EVENT_COMM_EST);
}

bool QueuePair::takeReceive(Receive& receive) {
  if (receives_ != nullptr) return receives_->take(receive);
  return SharedReceiveQueue::of(qp_base.srq).take(receive);
}

Domain& QueuePair::receiveDomain() const {
  return qp_base.srq == nullptr ? domain() : SharedReceiveQueue::of(qp_base.srq).domain;
}

void QueuePair::completeReceive(uint64_t id, ibv_wc_status status) {
  ibv_wc made = {};
  made.wr_id = id;
  made.status = status;
  made.opcode = IBV_WC_RECV;
  made.qp_num = qp_base.qp_num;
  made.vendor_err = 0x50 + static_cast<uint32_t>(status);
  responder.completions.add(1);
  receiveQueue().push(made, this, false);
}

void QueuePair::address(Packet& packet) const {
  const ibv_ah_attr& path = attributes.ah_attr;
  packet.destinationQueuePair = attributes.dest_qp_num;
  packet.sourceQueuePair = qp_base.qp_num;
  if (path.is_global == 0) {
    // Of the InfiniBand kind: by LIDs.
    const uint16_t from = context.device.lid();
    memcpy(packet.source.raw, &from, sizeof from);
    memcpy(packet.destination.raw, &path.dlid, sizeof path.dlid);
    return;
  }
  memcpy(packet.source.raw, context.device.gids()[path.grh.sgid_index].gid.raw, 16);
  memcpy(packet.destination.raw, path.grh.dgid.raw, 16);
}

void QueuePair::addCounts(SoftwareHcaCounts& total) const {
  const PostCounts& posted = requests.counts;
  total.posts += posted.posts.read();
  total.requests += posted.requests.read();
  total.signalled += posted.signalled.read();
  total.inlined += posted.inlined.read();
  total.pieces += posted.pieces.read();
  total.doorbells += posted.doorbells.read();
  total.writes += posted.writes.read();
  total.writeBytes += posted.writeBytes.read();
  total.immediateWrites += posted.immediateWrites.read();
  total.immediateWriteBytes += posted.immediateWriteBytes.read();
  total.reads += posted.reads.read();
  total.readBytes += posted.readBytes.read();
  total.sends += posted.sends.read();
  total.sendBytes += posted.sendBytes.read();
  total.atomics += posted.atomics.read();
  total.postTicks += posted.ticks.read();
  if (receives_ != nullptr) total.receives += receives_->posted.read();
  total.completions += sender.completions.read();
  total.receiveCompletions += responder.completions.read();
  total.retries += sender.retries.read();
  total.rnrRetries += sender.rnrRetries.read();
}

void QueuePair::resetCounts() {
  PostCounts& posted = requests.counts;
  for (Count* count : {&posted.posts,           &posted.requests,
                       &posted.signalled,       &posted.inlined,
                       &posted.pieces,          &posted.doorbells,
                       &posted.writes,          &posted.writeBytes,
                       &posted.immediateWrites, &posted.immediateWriteBytes,
                       &posted.reads,           &posted.readBytes,
                       &posted.sends,           &posted.sendBytes,
                       &posted.atomics,         &posted.ticks,
                       &sender.completions,     &sender.retries,
                       &sender.rnrRetries,      &responder.completions})
    count->clear();
  if (receives_ != nullptr) receives_->posted.clear();
}

void QueuePair::sendAnswer(Packet* packet, PacketRing& ring) {
  address(*packet);
  ring.commit(packet);
  context.wakePeer(attributes.dest_qp_num);
}

}  // namespace peerlane::softhca
