// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/engine_choice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace peerlane::stream {
namespace {

// A file that is gone with its test.
class TuneFile {
 public:
  explicit TuneFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              ("peerlane-tune-" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
               std::to_string(::testing::UnitTest::GetInstance()->random_seed()))) {
    std::ofstream(path_) << content;
  }
  ~TuneFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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
  const TuneFile file(
      "# measured\ninline = 64K # small\n\n ce_put=2M\nce_get = 32MiB\nce_put_queued = 1\n");
  const auto choice = EngineChoice::load(file.path());
  ASSERT_TRUE(choice.isOk()) << choice.status().toString();
  EXPECT_EQ(choice->inlineBytes, 64u << 10);
  EXPECT_EQ(choice->cePutBytes, 2u << 20);
  EXPECT_EQ(choice->ceGetBytes, 32u << 20);
  EXPECT_EQ(choice->ceBlockBytes, EngineChoice().ceBlockBytes);
  EXPECT_FALSE(choice->prefersKernelOnOwnStreams(true, 1, 1 << 10));
  EXPECT_EQ(choice->choose(true, 1, 1 << 20), Engine::kSm);
  EXPECT_NE(choice->toString().find(file.path()), std::string::npos);
}

TEST(EngineChoice, WhatIsNotUnderstoodIsNamed) {
  const struct {
    const char* content;
    const char* said;
  } rows[] = {{"ce_put = many", "line 1: ce_put = 'many'"},
              {"inline = 1K\nce_putt = 2", "line 2: 'ce_putt' is not known"},
              {"inline", "'inline' is not \"name = bytes\""}};
  for (const auto& row : rows) {
    const TuneFile file(row.content);
    const Status status = EngineChoice::load(file.path()).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(row.said), std::string_view::npos) << status.toString();
  }
  EXPECT_EQ(EngineChoice::load("/nonexistent/tune").status().code(), Code::kUnavailable);
  EXPECT_TRUE(EngineChoice::load("").isOk());
}

}  // namespace
}  // namespace peerlane::stream
