// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/staged_plan.h"

#include <utility>

#include "peerlane/channel/transfer/staged_transfer.h"

namespace peerlane {

Result<std::shared_ptr<StagedPlan>> StagedPlan::create(const std::shared_ptr<PeerCore>& peer,
                                                       BlockProgram blocks,
                                                       const PlanOptions& options,
                                                       std::string why) {
  PEERLANE_RETURN_IF_ERROR(StagedTransfer::allowed(*peer, why));
  std::shared_ptr<StagedPlan> plan(new StagedPlan(peer, std::move(blocks), std::move(why)));
  if (options.signal) {
    if (plan->blocks_.direction() == Direction::kGet)
      return Status(Code::kInvalidArgument,
                    "a get cannot carry a signal: the peer's memory is only read");
    Notify notify;
    notify.signal = options.signal;
    notify.signalAdd = options.signalAdd;
    PEERLANE_ASSIGN(plan->notify_, ownNotify(notify));
  }
  if (plan->isIndexed()) {
    const MutexLock lock(plan->mutex_);
    plan->indexCheck_ = IndexCheck(plan->blocks_.layout());
  }
  return plan;
}

Result<Transfer> StagedPlan::post(DeviceStream stream) const {
  if (isIndexed())
    return Status(Code::kInvalidArgument, "an indexed plan is posted with block numbers");
  PEERLANE_RETURN_IF_ERROR(peer_->usable());
  PostOptions options;
  options.deviceStream = stream;
  return StagedTransfer::post(peer_, blocks_, notify_, options, why_);
}

Result<Transfer> StagedPlan::post(std::span<const uint32_t> local, std::span<const uint32_t> remote,
                                  DeviceStream stream) {
  if (!isIndexed())
    return Status(Code::kInvalidArgument,
                  "this plan has fixed blocks; it is posted without block numbers");
  PEERLANE_RETURN_IF_ERROR(peer_->usable());
  const bool isPut = blocks_.direction() == Direction::kPut;
  {
    const MutexLock lock(mutex_);
    PEERLANE_RETURN_IF_ERROR(indexCheck_.counts(local.size(), remote.size()));
    PEERLANE_RETURN_IF_ERROR(indexCheck_.check(isPut ? remote : local, isPut ? local : remote));
  }
  PostOptions options;
  options.deviceStream = stream;
  return StagedTransfer::post(peer_, blocks_, notify_, options, why_, local, remote);
}

}  // namespace peerlane
