// SPDX-License-Identifier: Apache-2.0
//
// HostCopier: how one context copies between two mappings of its process: with which instruction,
// and with which threads. Executors and links ask it for large copies, and make small ones
// themselves. Thread-safe. Owner: the context; it outlives all copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "peerlane/core/config.h"
#include "peerlane/core/metrics.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/program/cpu/host_copy.h"

namespace peerlane::cpu {

struct MappedPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

class HostCopier {
 public:
  // The instructions as the tune file says, one thread.
  HostCopier() = default;
  // `threads` that help: 0 to CopyTeam::kMostThreads. Errors: those of TuneFile::load(),
  // CopyChoice::from() and CopyTeam::create().
  static Result<HostCopier> create(const Config& config, uint32_t threads, Metrics& metrics);

  // Copies of fewer bytes in all gain nothing from this object.
  uint64_t least() const { return least_; }
  CopyInstruction choose(uint64_t bytes, size_t pieces) const {
    return choice_.choose(bytes, bytes / pieces);
  }
  // Copies all pieces, which hold `bytes` together, and returns when it is done: by then all is
  // visible to this thread, and a release publishes it.
  void copy(CopyInstruction instruction, std::span<const MappedPiece> pieces, uint64_t bytes) const;

  // The threads that help, or null.
  CopyTeam* team() const { return team_.get(); }
  // "built in: memcpy from 0, streaming from 4MiB; 8 threads help". For people.
  std::string explain() const;

 private:
  CopyChoice choice_;
  std::unique_ptr<CopyTeam, CopyTeam::End> team_;
  uint64_t least_ = choice_.least();
};

}  // namespace peerlane::cpu
