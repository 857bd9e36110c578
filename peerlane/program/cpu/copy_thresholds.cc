// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_thresholds.h"

#include <algorithm>

#include "peerlane/core/text.h"

namespace peerlane::cpu {
namespace {

// Shorter pieces are mostly ends that are not aligned.
constexpr uint64_t kLeastPiece = 2048;

CopyInstruction instructionAt(size_t index) {
  return static_cast<CopyInstruction>(index);
}

}  // namespace

Result<std::optional<CopyThresholds>> CopyThresholds::from(const TuneFile& file) {
  CopyThresholds read(file.source());
  bool isNamed = false;
  for (size_t i = 0; i < kCopyInstructions; ++i) {
    const CopyInstruction instruction = instructionAt(i);
    const std::string name = std::string("copy_") + copyInstructionName(instruction);
    if (!file.has(name)) continue;
    isNamed = true;
    const uint64_t bytes = file.get(name, 0);
    read.from_[i] = bytes == 0 && instruction != CopyInstruction::kMemcpy ? kNever : bytes;
    if (read.from_[i] != kNever)
      PEERLANE_RETURN_IF_ERROR(copyInstructionSupported(instruction)
                                   .withContext("PEERLANE_TUNE: " + file.source() + ": " + name));
  }
  if (!isNamed) return std::optional<CopyThresholds>();
  return std::optional<CopyThresholds>(std::move(read));
}

CopyInstruction CopyThresholds::choose(uint64_t bytes, uint64_t pieceBytes) const {
  if (pieceBytes < kLeastPiece) return CopyInstruction::kMemcpy;
  size_t best = 0;  // memcpy, also below its own threshold
  bool isFound = false;
  for (size_t i = 0; i < kCopyInstructions; ++i) {
    if (from_[i] > bytes || (isFound && from_[i] <= from_[best])) continue;
    best = i;
    isFound = true;
  }
  return instructionAt(best);
}

uint64_t CopyThresholds::least() const {
  return *std::min_element(from_.begin() + 1, from_.end());
}

std::string CopyThresholds::toString() const {
  std::string text = source_ + ":";
  for (size_t i = 0; i < kCopyInstructions; ++i)
    if (from_[i] != kNever)
      text += std::string(" ") + copyInstructionName(instructionAt(i)) + " from " +
              formatByteSize(from_[i]);
  return text;
}

}  // namespace peerlane::cpu
