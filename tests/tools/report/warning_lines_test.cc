// SPDX-License-Identifier: Apache-2.0
#include "tools/report/warning_lines.h"

#include <gtest/gtest.h>

#include <string>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

TEST(WarningLines, WriteEachLineOnceWithItsCount) {
  testing::internal::CaptureStderr();
  {
    const WarningLines warnings;
    for (const char* link : {"a", "b", "a", "a"}) PEERLANE_LOG_WARN("link {} is slow", link);
    PEERLANE_LOG_INFO("not shown");
  }
  PEERLANE_LOG_WARN("later");
  const std::string text = testing::internal::GetCapturedStderr();
  const size_t a = text.find("link a is slow (3 times)\n"), b = text.find("link b is slow\n");
  EXPECT_LT(a, b) << text;
  EXPECT_LT(b, text.find("later\n")) << text;
  EXPECT_EQ(text.find("link a", a + 1), std::string::npos) << text;
  EXPECT_EQ(text.find("not shown"), std::string::npos) << text;
}

}  // namespace
}  // namespace peerlane
