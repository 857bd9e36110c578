// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/loop_read.h"

#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/verbs/wanted_devices.h"

namespace peerlane {

Result<std::unique_ptr<LoopRead>> LoopRead::create(std::shared_ptr<const ProtectionDomain> domain,
                                                   const Config& config) {
  std::unique_ptr<LoopRead> made(new LoopRead(std::move(domain), config));
  const MutexLock lock(made->mutex_);
  PEERLANE_RETURN_IF_ERROR(made->join());
  return made;
}

LoopRead::~LoopRead() {
  const MutexLock lock(mutex_);
  pair_.reset();
  if (completions_ == nullptr) return;
  const verbs::VerbsDevice& device = domain_->device();
  if (const int error = device.library().ibv_destroy_cq(completions_); error != 0)
    PEERLANE_LOG_ERROR("{}", Status::system(error, device.name() + ": ibv_destroy_cq").message());
}

Status LoopRead::join() {
  const verbs::VerbsDevice& device = domain_->device();
  if (completions_ == nullptr) {
    PEERLANE_ASSIGN(landed_, domain_->add(landing_, sizeof landing_,
                                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                          reinterpret_cast<uintptr_t>(landing_)));
    completions_ = device.library().ibv_create_cq(
        device.handle(), static_cast<int>(QueuePair::kRequests), nullptr, nullptr, 0);
    if (completions_ == nullptr) return Status::system(errno, device.name() + ": ibv_create_cq");
  }
  PEERLANE_ASSIGN(auto pair, QueuePair::create(domain_, completions_, /*receives=*/nullptr));
  VerbsOffer own;
  own.mtu = static_cast<uint8_t>(device.portState().active_mtu);
  own.mostReads = pair->mostReads();
  own.lid = device.portState().lid;
  own.pair = pair->number();
  own.firstPacket = pair->firstPacket();
  PEERLANE_ASSIGN(own.gids, verbs::usableGids(device, config_));
  if (own.gids.empty()) return Status(Code::kUnavailable, device.name() + " has no address");
  PEERLANE_RETURN_IF_ERROR(pair->connect(own, own.gids.front(), own.gids.front(), config_));
  pair_ = std::move(pair);
  return Status::ok();
}

Status LoopRead::read(uint32_t key, uint64_t address) {
  const MutexLock lock(mutex_);
  if (!pair_) PEERLANE_RETURN_IF_ERROR(join());
  Status done = readOnce(key, address);
  if (!done.isOk()) pair_.reset();
  return done;
}

// A WRITE whose source is the memory, so that no right of peers is needed: the NIC reads it for
// that. The pair's own timeout ends it.
Status LoopRead::readOnce(uint32_t key, uint64_t address) {
  ibv_sge piece{address, 1, key};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(landing_);
  request.wr.rdma.rkey = landed_.remote();
  ibv_send_wr* refused = nullptr;
  if (const int error = pair_->post(&request, &refused); error != 0)
    return Status::system(error, pair_->name() + ": ibv_post_send of a read of its own");
  ibv_wc completion{};
  int count = 0;
  while ((count = ibv_poll_cq(completions_, 1, &completion)) == 0) std::this_thread::yield();
  if (count < 0) return Status::system(EIO, pair_->name() + ": ibv_poll_cq");
  if (completion.status == IBV_WC_SUCCESS) return Status::ok();
  return Status::system(EIO, pair_->name() + ": a read of its own failed: " +
                                 domain_->device().library().ibv_wc_status_str(completion.status));
}

}  // namespace peerlane
