// SPDX-License-Identifier: Apache-2.0
//
// The program in docs/triggered.md, compiled as it stands there and run.
#include <gtest/gtest.h>

#include <string>

#include "triggered_document.h"  // made of the document; its main() is triggeredDocument()

namespace peerlane {
namespace {

TEST(TriggeredDocument, LaunchesWhatWasPrepared) {
  testing::internal::CaptureStdout();
  const int failed = triggeredDocument();
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_EQ(failed, 0);
  EXPECT_NE(said.find("mapped-commit:"), std::string::npos) << said;
  EXPECT_NE(said.find("the last byte is 42, by a queue that is mapped\n"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace peerlane
