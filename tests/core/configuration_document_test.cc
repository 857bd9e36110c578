// SPDX-License-Identifier: Apache-2.0
//
// docs/configuration.md is the configuration table: this test fails when one of the two was changed
// alone.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "peerlane/core/config.h"

namespace peerlane {
namespace {

TEST(ConfigurationDocument, IsTheTable) {
  std::ifstream file(PEERLANE_SOURCE_FOLDER "/docs/configuration.md");
  ASSERT_TRUE(file) << "docs/configuration.md is missing";
  std::stringstream text;
  text << file.rdbuf();
  const size_t table = text.str().find("| variable |");
  ASSERT_NE(table, std::string::npos);
  EXPECT_EQ(text.str().substr(table), configMarkdown());
}

}  // namespace
}  // namespace peerlane
