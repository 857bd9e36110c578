// SPDX-License-Identifier: Apache-2.0
//
// StreamSteps: programs of waits, copies and stores as launches of the step kernel. Immutable once
// made. StreamRegionNames: the table that late places are looked up in, in pinned host memory.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "peerlane/program/binding.h"
#include "peerlane/program/device_steps.h"
#include "peerlane/program/kernel/step_kernel.h"
#include "peerlane/program/program.h"
#include "peerlane/program/stream/pinned_pool.h"

namespace peerlane::stream {

class StreamSteps final : public DeviceSteps {
 public:
  // kNotSupported naming what a step kernel cannot do.
  static Result<std::unique_ptr<StreamSteps>> lower(const Program& program, const Binding& binding,
                                                    const StepRules& rules);

  // The launches of one call on `stream`: one, or a wait alone and then a copy by many blocks.
  // `completion` is stored by the last. With the device current. `arrivals`: see StepLaunch.
  Status launch(const StepCall& call, const kernel::WordStore& completion, uint32_t* arrivals,
                void* stream) const;

 private:
  struct Indexed {
    uint32_t step;
    bool isLocalTo;  // copies: which place is this side's
  };
  std::vector<kernel::Step> steps_;
  std::vector<Indexed> byOp_;  // ops, then expected words
  kernel::LateSource late_;
  bool copiesLate_ = false;
};

class StreamRegionNames final : public RegionNames {
 public:
  static constexpr uint32_t kSlots = 256;
  // `pool` is locked by `mutex`; both outlive it.
  StreamRegionNames(PinnedPool& pool, std::mutex& mutex, const PinnedBlock& block);
  ~StreamRegionNames() override;
  Status add(uint64_t allocation, uint64_t generation, std::byte* base, uint64_t bytes) override;
  void remove(uint64_t allocation, uint64_t generation) override;
  const kernel::NamedRegion* table() const { return table_; }

 private:
  kernel::NamedRegion* find(uint64_t allocation, uint64_t generation);
  PinnedPool& pool_;
  std::mutex& mutex_;
  const PinnedBlock block_;
  kernel::NamedRegion* const table_;
};

}  // namespace peerlane::stream
