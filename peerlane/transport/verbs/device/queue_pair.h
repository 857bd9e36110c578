// SPDX-License-Identifier: Apache-2.0
//
// QueuePair: one reliable connection of a device to one of another device: its states, its limits
// as the device granted them, and posting. It knows no mailbox. External synchronization.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"
#include "peerlane/transport/verbs/device/protection_domain.h"
#include "peerlane/transport/verbs/device/verbs_offer.h"

namespace peerlane {

class QueuePair {
 public:
  // Requests that can be under way, and the size of one. As granted, not as asked for.
  struct Limits {
    uint32_t requests = 0;
    uint32_t pieces = 0;       // of local memory, of one request
    uint32_t inlineBytes = 0;  // that travel in the request itself
  };
  static constexpr uint32_t kRequests = 128;

  // `completions` and `receives` outlive it. Errors: kUnavailable, kOutOfMemory, kSystem, naming
  // the device.
  static Result<std::unique_ptr<QueuePair>> create(std::shared_ptr<const ProtectionDomain> domain,
                                                   ibv_cq* completions, ibv_srq* receives);
  ~QueuePair() { end(); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return number_; }
  uint32_t firstPacket() const { return firstPacket_; }
  const Limits& limits() const { return limits_; }
  // Reads and additions of the peer that it serves at a time.
  uint8_t mostReads() const;

  // Joins it to the peer's, from address `from` of this side to `to`. Requires: called once.
  Status connect(const VerbsOffer& peer, const verbs::Gid& from, const verbs::Gid& to,
                 const Config& config);
  // One call of the device's driver. 0, or errno; `refused` is then the first request that was not
  // taken.
  int post(ibv_send_wr* first, ibv_send_wr** refused) {
    return ibv_post_send(pair_, first, refused);
  }
  // The device sends and takes nothing more for it. News that it has taken has its completion, or
  // soon will (SharedQueues::takeRest()). No error: a pair that cannot be stopped is ended.
  void stop();
  // After it the device touches no memory for this pair. Idempotent.
  void end();
  // "pair 17 of mlx5_0:1"
  std::string name() const;

 private:
  QueuePair(std::shared_ptr<const ProtectionDomain> domain, ibv_qp* pair, const Limits& limits,
            uint32_t firstPacket)
      : domain_(std::move(domain)),
        pair_(pair),
        number_(pair->qp_num),
        limits_(limits),
        firstPacket_(firstPacket) {}
  Status modify(ibv_qp_attr& to, int what, const char* state);
  Status initialise(uint16_t pkeyIndex);
  Status prepareToReceive(const VerbsOffer& peer, const verbs::Gid& from, const verbs::Gid& to,
                          const Config& config);
  Status prepareToSend(const VerbsOffer& peer, const Config& config);

  const std::shared_ptr<const ProtectionDomain> domain_;
  ibv_qp* pair_;
  const uint32_t number_;
  const Limits limits_;
  const uint32_t firstPacket_;
};

}  // namespace peerlane
