// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/engine_choice.h"

#include <gtest/gtest.h>

#include "tests/core/tune_text.h"

namespace peerlane::stream {
namespace {

TEST(EngineChoice, BuiltInFiguresChooseBySizeAndCount) {
  const EngineChoice choice;
  EXPECT_EQ(choice.choose(true, 1, 1 << 30), Engine::kCe);
  EXPECT_EQ(choice.choose(false, 1, 1 << 30), Engine::kCe);
  EXPECT_EQ(choice.choose(true, 4096, 64 << 20), Engine::kSm);
  EXPECT_EQ(choice.choose(true, 4, 256ull << 20), Engine::kCe);
  EXPECT_EQ(choice.choose(true, 16, 16 << 10), Engine::kInline);
  EXPECT_EQ(choice.choose(true, 0, 0), Engine::kInline);  // only words
  EXPECT_TRUE(choice.prefersKernelBehindWork(1, 8));
  EXPECT_FALSE(choice.prefersKernelBehindWork(1, 1 << 20));
  EXPECT_TRUE(choice.prefersKernelOnOwnStreams(true, 1, 1 << 20));
  EXPECT_FALSE(choice.prefersKernelOnOwnStreams(true, 1, 64 << 20));
  EXPECT_FALSE(choice.prefersKernelOnOwnStreams(false, 1, 1 << 20));
  EXPECT_FALSE(choice.prefersKernelOnOwnStreams(true, 2, 1 << 20));
}

TEST(EngineChoice, AFileReplacesWhatItNames) {
  const TuneText text("inline = 64K\nce_put=2M\nce_get = 32MiB\nce_put_queued = 1\n");
  const EngineChoice choice(text.read());
  EXPECT_EQ(choice.inlineBytes, 64u << 10);
  EXPECT_EQ(choice.cePutBytes, 2u << 20);
  EXPECT_EQ(choice.ceGetBytes, 32u << 20);
  EXPECT_EQ(choice.ceBlockBytes, EngineChoice().ceBlockBytes);
  EXPECT_FALSE(choice.prefersKernelOnOwnStreams(true, 1, 1 << 10));
  EXPECT_EQ(choice.choose(true, 1, 1 << 20), Engine::kSm);
  EXPECT_NE(choice.toString().find(text.path()), std::string::npos);
}

}  // namespace
}  // namespace peerlane::stream
