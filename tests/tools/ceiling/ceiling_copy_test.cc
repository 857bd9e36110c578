// SPDX-License-Identifier: Apache-2.0
//
// The ways that a raw limit is measured with copy what they are told and nothing beside it; the
// fastest of them is taken.
#include "tools/ceiling/ceiling_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

namespace peerlane::bench {
namespace {

constexpr std::byte kUntouched{0xEE};

std::vector<std::byte> counted(size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251);
  return made;
}

class CopyWays : public testing::TestWithParam<CopyWay> {
 protected:
  // `other` is of this very process, seen twice at the same address.
  static void copy(std::vector<std::byte>& local, std::vector<std::byte>& other, size_t localAt,
                   size_t otherAt, size_t bytes, bool isPut) {
    const RawPiece piece{&local[localAt], &other[otherAt], &other[otherAt], bytes};
    const Status done = copyPieces(GetParam(), ::getpid(), {&piece, 1}, isPut);
    ASSERT_TRUE(done.isOk()) << done.toString();
  }
  void SetUp() override {
    const auto here = copyWays(true, true);
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU has no AVX2";
  }
};

TEST_P(CopyWays, CopyWhatTheyAreToldAndNothingElse) {
  for (const bool isPut : {true, false})
    for (const size_t bytes : {1, 8, 31, 127, 128, 129, 4095, 70001})
      for (const size_t at : {0, 1, 17, 63}) {
        std::vector<std::byte> from = counted(bytes + 200);
        std::vector<std::byte> to(bytes + 200, kUntouched);
        std::vector<std::byte> expected = to;
        std::copy_n(from.begin() + 5, bytes, expected.begin() + static_cast<ptrdiff_t>(at));
        if (isPut)
          copy(from, to, 5, at, bytes, true);
        else
          copy(to, from, at, 5, bytes, false);
        ASSERT_EQ(to, expected) << bytes << " bytes to " << at << (isPut ? " put" : " get");
      }
}
INSTANTIATE_TEST_SUITE_P(All, CopyWays,
                         testing::Values(CopyWay::kMemcpy, CopyWay::kStreaming, CopyWay::kMovsb,
                                         CopyWay::kKernel));

TEST(CopyWaysTest, MoreProcessVmPiecesThanOneCallTakes) {
  std::vector<std::byte> from = counted(5000);
  std::vector<std::byte> to(5000, kUntouched);
  std::vector<RawPiece> pieces;
  for (size_t i = 0; i < from.size(); ++i) pieces.push_back({&from[i], nullptr, &to[i], 1});
  const Status done = copyPieces(CopyWay::kKernel, ::getpid(), pieces, true);
  ASSERT_TRUE(done.isOk()) << done.toString();
  EXPECT_EQ(to, from);
}

TEST(CopyWaysTest, WhatIsNotMappedIsReachedThroughTheKernelAlone) {
  EXPECT_EQ(copyWays(false, true), std::vector{CopyWay::kKernel});
  EXPECT_GE(copyWays(true, false).size(), 2u);
  EXPECT_EQ(fastestWay({}, nullptr).status().code(), Code::kNotSupported);
}

TEST(CopyWaysTest, TheLeastTimeOfAllTurnsButTheFirstWins) {
  const std::vector ways{CopyWay::kMemcpy, CopyWay::kMovsb, CopyWay::kKernel};
  std::map<CopyWay, std::vector<double>> times{{CopyWay::kMemcpy, {1, 20, 20, 20}},
                                               {CopyWay::kMovsb, {100, 30, 10, 30}},
                                               {CopyWay::kKernel, {15, 15, 15, 15}}};
  std::map<CopyWay, size_t> turns;
  const auto best =
      fastestWay(ways, [&](CopyWay way) -> Result<double> { return times[way].at(turns[way]++); });
  ASSERT_TRUE(best.isOk()) << best.status().toString();
  EXPECT_EQ(*best, CopyWay::kMovsb);
}

TEST(CopyWaysTest, AForbiddenWayIsLeftOutAndAnErrorIsNot) {
  const std::vector ways{CopyWay::kMemcpy, CopyWay::kKernel};
  const auto refuse = [](Code code, CopyWay refused) {
    return [=](CopyWay way) -> Result<double> {
      if (way == refused || refused == CopyWay::kStreaming) return Status(code, "refused");
      return 1.0;
    };
  };
  const auto left = fastestWay(ways, refuse(Code::kPermissionDenied, CopyWay::kKernel));
  ASSERT_TRUE(left.isOk()) << left.status().toString();
  EXPECT_EQ(*left, CopyWay::kMemcpy);
  EXPECT_EQ(fastestWay(ways, refuse(Code::kSystem, CopyWay::kKernel)).status().code(),
            Code::kSystem);
  EXPECT_EQ(fastestWay(ways, refuse(Code::kPermissionDenied, CopyWay::kStreaming)).status().code(),
            Code::kPermissionDenied);
}

}  // namespace
}  // namespace peerlane::bench
