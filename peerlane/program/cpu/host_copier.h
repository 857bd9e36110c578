// SPDX-License-Identifier: Apache-2.0
//
// HostCopier: how one context copies between two mappings of its process: with which instruction,
// and with which threads. Executors and links ask it for large copies, and make small ones
// themselves. Thread-safe. Owner: the context; it outlives all copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "peerlane/core/config.h"
#include "peerlane/core/metrics.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/program/cpu/copy_thresholds.h"
#include "peerlane/program/cpu/copy_trials.h"
#include "peerlane/program/cpu/host_copy.h"

namespace peerlane::cpu {

struct MappedPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// What a copy is a part of: a part is copied as the whole is.
struct WholeCopy {
  uint64_t bytes = 0;
  size_t pieces = 1;
};

class HostCopier {
 public:
  // memcpy, one thread.
  HostCopier() = default;
  // The instructions are those of the tune file, or those that `trials` find out; null: those of
  // this process, or where threads help (which are this object's own) trials of its own.
  // `threads` that help: 0 to CopyTeam::kMostThreads. Errors: those of TuneFile::load(),
  // CopyThresholds::from() and CopyTeam::create().
  static Result<HostCopier> create(const Config& config, uint32_t threads, Metrics& metrics,
                                   std::shared_ptr<CopyTrials> trials = nullptr);

  // Copies of fewer bytes in all gain nothing from this object.
  uint64_t least() const { return least_; }
  // Copies all pieces, which hold `bytes` together, and returns when it is done: by then all is
  // visible to this thread, and a release publishes it. `whole`: at least least() bytes.
  void copy(const WholeCopy& whole, std::span<const MappedPiece> pieces, uint64_t bytes) const;

  // The threads that help, or null.
  CopyTeam* team() const { return team_.get(); }
  // "measured here: memcpy, from 1MiB streaming; 8 threads help". For people.
  std::string explain() const;

 private:
  bool copyTimed(const WholeCopy& whole, CopyTrials::Kind kind, std::span<const MappedPiece> pieces,
                 uint64_t bytes) const;
  void copyBy(CopyInstruction instruction, std::span<const MappedPiece> pieces,
              uint64_t bytes) const;
  uint32_t partsOf(uint64_t bytes) const { return team_ ? team_->partsOf(bytes) : 1; }

  std::optional<CopyThresholds> thresholds_;
  std::shared_ptr<CopyTrials> trials_;  // null: thresholds_, or memcpy
  std::unique_ptr<CopyTeam, CopyTeam::End> team_;
  uint64_t least_ = UINT64_MAX;
};

}  // namespace peerlane::cpu
