// SPDX-License-Identifier: Apache-2.0
//
// CopyEngine: copies lists of pieces by the GPU's copy engine, as one batch where the driver has
// batches (12.8 and newer), else one by one. No multiprocessor is used. External synchronization
// required, but for explain().
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"

namespace peerlane::stream {

class CopyEngine {
 public:
  // Enqueues all pieces on `stream` (a CUstream of the current context).
  Status copy(std::span<const kernel::CopyPiece> pieces, void* stream);
  // The same without batches, which graphs do not accept.
  static Status oneByOne(std::span<const kernel::CopyPiece> pieces, void* stream);
  std::string explain() const;

 private:
  enum class Batches : uint8_t { kUntried, kWork, kRefused };

  Status batch(std::span<const kernel::CopyPiece> pieces, void* stream);

  // Release by copy(); acquire by explain(), which may come from any thread meanwhile.
  std::atomic<Batches> batches_{Batches::kUntried};
  std::string whyNot_;  // written once, before kRefused is
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

}  // namespace peerlane::stream
