// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/ptrace_permission.h"

#include <gtest/gtest.h>

#include <vector>

namespace peerlane {
namespace {

int scope = 1;
bool refuses = false;
std::vector<pid_t> let_in;  // by a system that stands for a Yama in mode `scope`

class PtracePermissionTest : public testing::Test {
 protected:
  PtracePermissionTest() : before_(internal::ptraceSystem()) {
    scope = 1;
    refuses = false;
    let_in.clear();
    internal::ptraceSystem() = {[] { return std::optional(scope); },
                                [](pid_t pid) {
                                  let_in.push_back(pid);
                                  return refuses ? Status(Code::kPeerLost, "no such process")
                                                 : Status::ok();
                                }};
  }
  ~PtracePermissionTest() override { internal::ptraceSystem() = before_; }

 private:
  const internal::PtraceSystem before_;
};

using Pids = std::vector<pid_t>;

TEST_F(PtracePermissionTest, IsOneProcessesUntilTheLastThatHoldsItEnds) {
  auto first = PtracePermission::give(100).value();
  {
    const auto again = PtracePermission::give(100).value();
    const auto other = PtracePermission::give(200);
    EXPECT_EQ(other.status().code(), Code::kUnavailable);
    EXPECT_NE(other.status().message().find("process 100 is let in"), std::string_view::npos)
        << other.status().toString();
  }
  EXPECT_EQ(let_in, Pids{100});
  const PtracePermission moved = std::move(first);
  EXPECT_EQ(let_in, Pids{100});
  first = PtracePermission();
  EXPECT_EQ(let_in, Pids{100});
}

TEST_F(PtracePermissionTest, IsTakenBackAndThenAnothersToHave) {
  { const auto first = PtracePermission::give(100).value(); }
  EXPECT_EQ(let_in, (Pids{100, 0}));
  { const auto second = PtracePermission::give(200).value(); }
  EXPECT_EQ(let_in, (Pids{100, 0, 200, 0}));
}

// 0 would take away what was given.
TEST_F(PtracePermissionTest, IsNotAskedForAProcessWithoutANumber) {
  const auto first = PtracePermission::give(100).value();
  for (const pid_t none : {0, -1})
    EXPECT_EQ(PtracePermission::give(none).status().code(), Code::kNotSupported);
  EXPECT_EQ(let_in, Pids{100});
}

TEST_F(PtracePermissionTest, ThatWasRefusedIsHeldByNobody) {
  refuses = true;
  EXPECT_EQ(PtracePermission::give(100).status().code(), Code::kPeerLost);
  refuses = false;
  EXPECT_TRUE(PtracePermission::give(200).isOk());
}

TEST_F(PtracePermissionTest, IsNotTouchedWhereYamaDoesNotAskForIt) {
  for (const int other : {0, 2, 3}) {
    scope = other;
    EXPECT_TRUE(PtracePermission::give(100).isOk());
    EXPECT_TRUE(PtracePermission::give(200).isOk());
  }
  EXPECT_EQ(let_in, Pids{});
}

}  // namespace
}  // namespace peerlane
