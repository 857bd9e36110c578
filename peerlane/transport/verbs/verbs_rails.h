// SPDX-License-Identifier: Apache-2.0
//
// VerbsRails: which devices (rails) a context uses, and in which order: first the one nearest to
// its first GPU, or to the processor that asks; then those nearest to its other GPUs; then the
// others by their distance from the first place. Chosen when the first one is asked for, and
// constant then. Shared by the transports of the rails. Progress thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/verbs/device_distance.h"
#include "peerlane/os/verbs/verbs_device.h"
#include "peerlane/transport/link_rails.h"

namespace peerlane {

// As rankRdmaDevices(), which reads the topology of this machine once.
using RankRdma = std::function<Result<std::vector<RankedRdmaDevice>>(
    const MemorySite& memory, const std::vector<RdmaCandidate>& candidates)>;
RankRdma rankHere();

class VerbsRails {
 public:
  VerbsRails(cuda::Gpus gpus, RankRdma rank) : gpus_(std::move(gpus)), rank_(std::move(rank)) {}

  const cuda::Gpus& gpus() const { return gpus_; }  // of the context

  // How many there may be: PEERLANE_IB_NICS, or by the GPUs.
  static uint32_t most(const Config& config, const cuda::Gpus& gpus);

  // The device of rail `number`, opened anew. Errors: as VerbsDevice::openAll(); kInvalidArgument
  // where the settings ask for what is not there, or for more; kNotSupported where the GPUs of the
  // context have fewer nearest ones.
  Result<std::unique_ptr<verbs::VerbsDevice>> open(uint32_t number, const Config& config);
  // Null: there is one rail, and nothing to choose between. Requires: open() returned OK once.
  const std::shared_ptr<const LinkRails>& table() const { return table_; }

 private:
  using Devices = std::vector<std::unique_ptr<verbs::VerbsDevice>>;
  using Ranking = std::vector<RankedRdmaDevice>;

  Status choose(const Config& config);
  Ranking rank(const MemorySite& memory, const Devices& devices) const;
  std::vector<size_t> chosenOf(const Devices& devices, uint32_t asked) const;
  void measure(const Devices& devices, const std::vector<size_t>& chosen);

  const cuda::Gpus gpus_;
  const RankRdma rank_;
  std::vector<std::string> names_;  // "mlx5_0:1"; empty: not chosen yet
  Devices opened_;                  // of each rail until it is first asked for
  std::shared_ptr<const LinkRails> table_;
};

}  // namespace peerlane
