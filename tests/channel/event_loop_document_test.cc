// SPDX-License-Identifier: Apache-2.0
//
// The program in docs/event_loop.md, compiled as it stands there and run: its pages arrive, and it
// is woken only where there is something to do.
#include <gtest/gtest.h>

#include <cstdio>

#include "event_loop_document.h"  // made of the document; its main() is eventLoopDocument()

namespace peerlane {
namespace {

TEST(EventLoopDocument, MovesItsPagesAndNeverSpins) {
  testing::internal::CaptureStdout();
  eventLoopDocument();
  const std::string said = testing::internal::GetCapturedStdout();
  unsigned long long pages = 0, wrong = 1, wakeUps = 0;
  ASSERT_EQ(std::sscanf(said.c_str(), "server: %llu pages, %llu wrong\n%llu wake-ups\n", &pages,
                        &wrong, &wakeUps),
            3)
      << said;
  EXPECT_EQ(pages, kPages * kClients);
  EXPECT_EQ(wrong, 0u);
  // For each page: it arrived, its transfer has ended, it was taken. For each client: accepted, two
  // set-ups, the farewell, its transfer and its end.
  EXPECT_LE(wakeUps, 3 * pages + 6 * kClients);
}

}  // namespace
}  // namespace peerlane
