// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/host_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace peerlane::cpu {
namespace {

constexpr CopyInstruction kAll[] = {CopyInstruction::kMemcpy, CopyInstruction::kStreaming,
                                    CopyInstruction::kMovsb, CopyInstruction::kProcessVm};

// Every alignment of both ends, sizes around the steps of the loops.
TEST(HostCopy, EveryInstructionCopiesWhatIsAskedAndNothingElse) {
  constexpr size_t kSizes[] = {0, 1, 31, 127, 128, 129, 4095, 4096, 16384, 16385, 40000};
  constexpr std::byte kUntouched{0xee};
  std::vector<std::byte> from(50000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 7 + i / 251);
  for (const CopyInstruction instruction : kAll) {
    if (!copyInstructionSupported(instruction).isOk()) continue;
    for (const size_t bytes : kSizes)
      for (const size_t toShift : {0u, 1u, 31u, 32u, 100u, 127u})
        for (const size_t fromShift : {0u, 3u, 64u}) {
          std::vector<std::byte> to(bytes + 512, kUntouched);
          copyBytes(instruction, to.data() + 128 + toShift, from.data() + fromShift, bytes);
          orderCopies(instruction);
          std::vector<std::byte> expected(bytes + 512, kUntouched);
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(fromShift), bytes,
                      expected.begin() + 128 + static_cast<std::ptrdiff_t>(toShift));
          ASSERT_TRUE(to == expected) << copyInstructionName(instruction) << " of " << bytes
                                      << " bytes to +" << toShift << " from +" << fromShift;
        }
  }
}

}  // namespace
}  // namespace peerlane::cpu
