// SPDX-License-Identifier: Apache-2.0
//
// StagedPlan: a plan between memories that cannot reach each other. It is checked once; each post
// is a staged transfer. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/blocks/index_check.h"
#include "peerlane/channel/transfer/plan.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class StagedPlan {
 public:
  // `why`: the reason for staging. Errors: as Plan::create, and kNotSupported under
  // PEERLANE_STRICT.
  static Result<std::shared_ptr<StagedPlan>> create(const std::shared_ptr<PeerCore>& peer,
                                                    BlockProgram blocks, const PlanOptions& options,
                                                    std::string why);

  Result<Transfer> post(DeviceStream stream) const;
  Result<Transfer> post(std::span<const uint32_t> local, std::span<const uint32_t> remote,
                        DeviceStream stream);

 private:
  StagedPlan(std::shared_ptr<PeerCore> peer, BlockProgram blocks, std::string why)
      : peer_(std::move(peer)), blocks_(std::move(blocks)), why_(std::move(why)) {}
  bool isIndexed() const { return blocks_.layout().kind == CopyLayout::Kind::kIndexed; }

  const std::shared_ptr<PeerCore> peer_;
  const BlockProgram blocks_;
  const std::string why_;
  OwnedNotify notify_;
  Mutex mutex_;
  IndexCheck indexCheck_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
