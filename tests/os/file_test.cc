// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/file.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/os/scratch_folder.h"

namespace peerlane {
namespace {

TEST(File, WrittenContentIsReadBack) {
  ScratchFolder folder;
  std::string path = folder.file("a");
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{100001}}) {
    std::string content(bytes, 'x');
    ASSERT_TRUE(writeFile(path, content));
    auto back = readWhole(path);
    ASSERT_TRUE(back.isOk());
    EXPECT_EQ(*back, content);
  }
}

TEST(File, LimitIsExact) {
  ScratchFolder folder;
  std::string path = folder.file("a");
  ASSERT_TRUE(writeFile(path, std::string(5000, 'x')));
  EXPECT_TRUE(readWhole(path, 5000).isOk());
  auto tooLong = readWhole(path, 4999);
  EXPECT_EQ(tooLong.status().code(), Code::kInvalidArgument);
  EXPECT_NE(tooLong.status().message().find("4999"), std::string_view::npos);
}

TEST(File, ProcFilesWithoutASizeAreRead) {
  auto text = readWhole("/proc/self/maps");
  ASSERT_TRUE(text.isOk());
  EXPECT_NE(text->find("[stack]"), std::string::npos);
  EXPECT_EQ(text->back(), '\n');
}

TEST(File, ErrorsNameThePath) {
  auto missing = readWhole("/nonexistent/file");
  EXPECT_EQ(missing.status().code(), Code::kUnavailable);
  EXPECT_NE(missing.status().message().find("/nonexistent/file"), std::string_view::npos);
}

}  // namespace
}  // namespace peerlane
