// SPDX-License-Identifier: Apache-2.0
//
// A put that is cancelled while the other process stands still in the middle of it: it waits for
// what is under way, and ends with the process or with its answer.
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

constexpr size_t kBytes = 64 << 20;

class CancelledTransfer : public testing::TestWithParam<const char*> {
 protected:
  CancelledTransfer() : side_(configOfRoute(GetParam()), GetParam(), kBytes) {
    EXPECT_OK(side_.move(Direction::kPut));
    side_.other->freeze();
    const Block block = side_.whole();
    transfer_ = MUST(put(side_.peer, {&block, 1}));
    transfer_.cancel();
    EXPECT_FALSE(transfer_.done()) << "bytes of it are under way";
  }
  void expectFree() {
    EXPECT_EQ(transfer_.wait(kSoon).code(), Code::kCancelled) << transfer_.status().toString();
    EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  }
  SurvivingSide side_;
  Transfer transfer_;
};

INSTANTIATE_TEST_SUITE_P(Routes, CancelledTransfer, testing::Values("ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(CancelledTransfer, EndsWithAPeerThatIsKilled) {
  side_.other->kill();
  expectFree();
  EXPECT_EQ(side_.peer.state(), "lost");
}

TEST_P(CancelledTransfer, EndsWithAPeerThatGoesOn) {
  side_.other->thaw();
  EXPECT_EQ(transfer_.wait(kSoon).code(), Code::kCancelled);
  EXPECT_OK(side_.move(Direction::kPut));
  EXPECT_OK(side_.move(Direction::kGet));
  expectFree();
  EXPECT_EQ(side_.peer.state(), "ready");
}

}  // namespace
}  // namespace peerlane
