// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_thresholds.h"

#include <gtest/gtest.h>

#include "tests/core/tune_text.h"

namespace peerlane::cpu {
namespace {

TEST(CopyThresholds, AFileSaysFromWhichSizeOnEachInstructionIsUsed) {
  const TuneText text("copy_process_vm = 64K\ncopy_memcpy = 1M\ncopy_streaming = 0\n");
  const auto read = CopyThresholds::from(text.read());
  ASSERT_TRUE(read.isOk()) << read.status().toString();
  ASSERT_TRUE(read->has_value());
  const CopyThresholds& thresholds = **read;
  EXPECT_EQ(thresholds.choose(64 << 10, 4096), CopyInstruction::kProcessVm);
  EXPECT_EQ(thresholds.choose((64 << 10) - 1, 4096), CopyInstruction::kMemcpy);
  EXPECT_EQ(thresholds.choose((1 << 20) - 1, 4096), CopyInstruction::kProcessVm);
  EXPECT_EQ(thresholds.choose(1 << 20, 4096), CopyInstruction::kMemcpy);
  EXPECT_EQ(thresholds.choose(1 << 30, 4096), CopyInstruction::kMemcpy);
  EXPECT_EQ(thresholds.choose(64 << 10, 64), CopyInstruction::kMemcpy);
  EXPECT_EQ(thresholds.choose(0, 0), CopyInstruction::kMemcpy);
  EXPECT_EQ(thresholds.least(), 64u << 10);
  EXPECT_EQ(thresholds.toString(), text.path() + ": memcpy from 1MiB process_vm from 64KiB");
}

TEST(CopyThresholds, AFileOfOtherThresholdsSaysNothing) {
  const TuneText text("inline = 1K\n");
  const auto read = CopyThresholds::from(text.read());
  ASSERT_TRUE(read.isOk()) << read.status().toString();
  EXPECT_FALSE(read->has_value());
}

}  // namespace
}  // namespace peerlane::cpu
