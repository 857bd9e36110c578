// SPDX-License-Identifier: Apache-2.0
//
// CopyThresholds: from which size on which instruction makes copies, as a tune file says: it takes
// the place of what this process would find out by its own copies (copy_trials.h). A value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/core/tune_file.h"
#include "peerlane/program/cpu/host_copy.h"

namespace peerlane::cpu {

class CopyThresholds {
 public:
  // Takes copy_memcpy, copy_streaming, copy_movsb and copy_process_vm: each is used from so many
  // bytes on, up to the next larger threshold; 0: never (memcpy: from 0 on). Empty: the file names
  // none. Errors: kNotSupported naming the instruction.
  static Result<std::optional<CopyThresholds>> from(const TuneFile& file);

  // `bytes`: of one transfer, in however many pieces of `pieceBytes` on average.
  CopyInstruction choose(uint64_t bytes, uint64_t pieceBytes) const;
  // Below it choose() answers kMemcpy.
  uint64_t least() const;
  // "tune.txt: memcpy from 0B streaming from 4MiB".
  std::string toString() const;

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  explicit CopyThresholds(std::string source) : source_(std::move(source)) {}

  std::array<uint64_t, kCopyInstructions> from_{0, kNever, kNever, kNever};
  std::string source_;
};

}  // namespace peerlane::cpu
