// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/wheel_abi.h"

#include <gtest/gtest.h>

#include "tests/os/child_process.h"
#include "tests/tools/nixl/tiny_elf.h"
#include "tools/nixl/file_content.h"

namespace peerlane {
namespace {

Status checkFixture(const std::string& name) {
  const auto content = contentOfFile(child::besideThis("lib" + name + ".so"));
  return content.isOk() ? checkEngines(*content) : content.status();
}

void expectRefused(const std::string& name, const std::string& sentence) {
  const Status status = checkFixture(name);
  EXPECT_EQ(status.code(), Code::kNotSupported) << name;
  EXPECT_NE(status.message().find(sentence), std::string::npos) << status.toString();
}

TEST(CheckEngines, TakesThoseOfTheWheels) {
  for (const char* name : {"engine_fixture", "engine_fixture_bound"}) {
    const Status status = checkFixture(name);
    EXPECT_TRUE(status.isOk()) << name << ": " << status.toString();
  }
}

TEST(CheckEngines, NamesTheFirstDifference) {
  expectRefused("engine_fixture_swapped",
                R"(virtual function 11 of nixlPosixEngine is "postXfer", expected "prepXfer")");
  expectRefused(
      "engine_fixture_more",
      R"(nixlBackendEngine has 28 virtual functions, expected 27; the first in addition is "cancelXfer")");
  expectRefused(
      "engine_fixture_fewer",
      R"(virtual function 26 of nixlBackendEngine is missing, expected "estimateXferCost")");
  expectRefused(
      "engine_fixture_argument",
      R"(virtual function 12 of nixlPosixEngine is "postXfer" with other arguments: "K8postXfer)");
}

// A base alone tells nothing of its pure functions.
TEST(CheckEngines, RefusesWhatTellsNothing) {
  expectRefused("engine_fixture_base_alone", "no engine derived from nixlBackendEngine");
  expectRefused("needed_fixture", "no engine derived from nixlBackendEngine");
  EXPECT_EQ(checkEngines(TinyElf().bytes).code(), Code::kNotSupported);
  EXPECT_EQ(checkEngines({}).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace peerlane
