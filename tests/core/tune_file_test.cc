// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/tune_file.h"

#include <gtest/gtest.h>

#include "tests/core/tune_text.h"

namespace peerlane {
namespace {

TEST(TuneFile, LinesAreNamesAndSizes) {
  const TuneText text(
      "# measured\ninline = 64K # small\n\n ce_put=2M\ncopy_streaming = 32MiB\nce_put = 4M\n");
  const auto file = TuneFile::load(text.path());
  ASSERT_TRUE(file.isOk()) << file.status().toString();
  EXPECT_EQ(file->get("inline", 1), 64u << 10);
  EXPECT_EQ(file->get("ce_put", 1), 4u << 20);  // the last one counts
  EXPECT_EQ(file->get("copy_streaming", 1), 32u << 20);
  EXPECT_EQ(file->get("ce_get", 17), 17u);
  EXPECT_TRUE(file->has("inline"));
  EXPECT_FALSE(file->has("ce_get"));
  EXPECT_EQ(file->source(), text.path());
}

TEST(TuneFile, WhatIsNotUnderstoodIsNamed) {
  const struct {
    const char* content;
    const char* said;
  } rows[] = {{"ce_put = many", "line 1: ce_put = 'many'"},
              {"inline = 1K\nce_putt = 2", "line 2: 'ce_putt' is not known"},
              {"inline", "'inline' is not \"name = bytes\""}};
  for (const auto& row : rows) {
    const TuneText text(row.content);
    const Status status = TuneFile::load(text.path()).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(row.said), std::string_view::npos) << status.toString();
  }
  EXPECT_EQ(TuneFile::load("/nonexistent/tune").status().code(), Code::kUnavailable);
  const auto none = TuneFile::load("");
  ASSERT_TRUE(none.isOk());
  EXPECT_EQ(none->source(), "built in");
}

}  // namespace
}  // namespace peerlane
