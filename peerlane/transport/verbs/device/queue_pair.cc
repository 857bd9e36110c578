// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "peerlane/core/log.h"
#include "peerlane/os/process.h"
#include "peerlane/os/verbs/wanted_devices.h"

namespace peerlane {
namespace {

constexpr uint32_t kInlineBytes = 64;  // a word, a small message
constexpr uint32_t kPieces = 16;
constexpr uint8_t kMostReads = 16;
constexpr uint8_t kHops = 64;
// After a refusal for want of receives the peer waits 2.56 ms and tries again, six times: receives
// are counted, so only a peer that has stopped, or a defect, brings it about. 7 would be for ever.
constexpr uint8_t kReceiveWait = 16;
constexpr uint8_t kReceiveTries = 6;

uint8_t readsOf(const verbs::VerbsDevice& device) {
  return static_cast<uint8_t>(std::clamp<int>(device.limits().max_qp_rd_atom, 1, kMostReads));
}

// The longest wait for an acknowledgement with which all tries end within the time of a peer.
// Devices wait up to four times as long as they are told.
uint8_t timeoutFor(const Config& config) {
  if (config.ibTimeout) return *config.ibTimeout;
  constexpr double kUnitSeconds = 4.096e-6;
  const double seconds = std::chrono::duration<double>(config.peerTimeout).count();
  uint8_t exponent = 8;  // about 1 ms
  while (exponent < 20 &&
         kUnitSeconds * static_cast<double>(2u << exponent) * 4 * (config.ibRetry + 1) <= seconds)
    ++exponent;
  return exponent;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(std::shared_ptr<const ProtectionDomain> domain,
                                                     ibv_cq* completions, ibv_srq* receives) {
  const verbs::VerbsDevice& device = domain->device();
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions;
  wanted.srq = receives;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = std::min<uint32_t>(kRequests, device.limits().max_qp_wr);
  wanted.cap.max_send_sge = std::min<uint32_t>(kPieces, device.limits().max_sge);
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = kInlineBytes;
  ibv_qp* pair = device.library().ibv_create_qp(domain->handle(), &wanted);
  // Devices do not say beforehand how much may travel in a request.
  while (pair == nullptr && errno == EINVAL && wanted.cap.max_inline_data > 8) {
    wanted.cap.max_inline_data /= 2;
    pair = device.library().ibv_create_qp(domain->handle(), &wanted);
  }
  if (pair == nullptr) {
    const int error = errno;
    const std::string what = device.name() + " makes no queue pair (it has up to " +
                             std::to_string(device.limits().max_qp) + ")";
    if (error != ENOMEM) return Status::system(error, what);
    return Status(Code::kOutOfMemory, what +
                                          "; each peer that large transfers went to has up to "
                                          "PEERLANE_IB_PAIRS of them, and a smaller number leaves "
                                          "some for others");
  }
  uint32_t firstPacket = 0;
  const Limits limits{.requests = wanted.cap.max_send_wr,
                      .pieces = std::min(wanted.cap.max_send_sge, kPieces),
                      .inlineBytes = wanted.cap.max_inline_data};
  const Status random = fillRandom(std::as_writable_bytes(std::span<uint32_t, 1>(&firstPacket, 1)));
  std::unique_ptr<QueuePair> made(
      new QueuePair(std::move(domain), pair, limits, firstPacket & 0xffffff));
  PEERLANE_RETURN_IF_ERROR(random);
  return made;
}

uint8_t QueuePair::mostReads() const {
  return readsOf(domain_->device());
}

std::string QueuePair::name() const {
  return "pair " + std::to_string(number_) + " of " + verbs::nameOf(domain_->device());
}

Status QueuePair::modify(ibv_qp_attr& to, int what, const char* state) {
  const int error = domain_->device().library().ibv_modify_qp(pair_, &to, what);
  if (error == 0) return Status::ok();
  return Status::system(error, name() + " does not get " + state);
}

Status QueuePair::connect(const VerbsOffer& peer, const verbs::Gid& from, const verbs::Gid& to,
                          const Config& config) {
  PEERLANE_ASSIGN(const uint16_t pkey, domain_->device().pkeyIndex(config.ibPkey));
  PEERLANE_RETURN_IF_ERROR(initialise(pkey));
  PEERLANE_RETURN_IF_ERROR(prepareToReceive(peer, from, to, config));
  return prepareToSend(peer, config);
}

Status QueuePair::initialise(uint16_t pkeyIndex) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = pkeyIndex;
  attr.port_num = domain_->device().port();
  attr.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  return modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "initialised");
}

Status QueuePair::prepareToReceive(const VerbsOffer& peer, const verbs::Gid& from,
                                   const verbs::Gid& to, const Config& config) {
  const verbs::VerbsDevice& device = domain_->device();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = std::min(device.portState().active_mtu, static_cast<ibv_mtu>(peer.mtu));
  attr.dest_qp_num = peer.pair;
  attr.rq_psn = peer.firstPacket;
  attr.max_dest_rd_atomic = mostReads();
  attr.min_rnr_timer = kReceiveWait;
  attr.ah_attr.port_num = device.port();
  attr.ah_attr.sl = config.ibServiceLevel;
  attr.ah_attr.dlid = peer.lid;
  // RoCE has no other addresses; InfiniBand needs them between its networks.
  const bool sameNetwork = std::equal(from.bytes.begin(), from.bytes.begin() + 8, to.bytes.begin());
  attr.ah_attr.is_global = device.isEthernet() || !sameNetwork;
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(from.index);
  attr.ah_attr.grh.hop_limit = kHops;
  attr.ah_attr.grh.traffic_class = config.ibTrafficClass;
  std::memcpy(attr.ah_attr.grh.dgid.raw, to.bytes.data(), to.bytes.size());
  return modify(attr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
}

Status QueuePair::prepareToSend(const VerbsOffer& peer, const Config& config) {
  const ibv_device_attr& limits = domain_->device().limits();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = firstPacket_;
  attr.timeout = timeoutFor(config);
  attr.retry_cnt = config.ibRetry;
  attr.rnr_retry = kReceiveTries;
  attr.max_rd_atomic = static_cast<uint8_t>(
      std::clamp<int>(limits.max_qp_init_rd_atom, 1, std::min(peer.mostReads, kMostReads)));
  return modify(attr,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

void QueuePair::stop() {
  if (pair_ == nullptr) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (const Status status = modify(attr, IBV_QP_STATE, "stopped"); status.isOk()) return;
  end();
}

void QueuePair::end() {
  if (pair_ == nullptr) return;
  const verbs::VerbsDevice& device = domain_->device();
  if (const int error = device.library().ibv_destroy_qp(pair_); error != 0)
    PEERLANE_LOG_ERROR("{}", Status::system(error, name() + ": ibv_destroy_qp").message());
  pair_ = nullptr;
}

}  // namespace peerlane
