// SPDX-License-Identifier: Apache-2.0
//
// Status and Result: codes, messages, where they point, and what misuse does.
#include "peerlane/core/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace peerlane {
namespace {

TEST(Status, SuccessIsEmpty) {
  Status status;
  EXPECT_TRUE(status.isOk());
  EXPECT_TRUE(static_cast<bool>(Status::ok()));
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.systemError(), 0);
  EXPECT_EQ(status.toString(), "OK");
  EXPECT_EQ(sizeof(Status), 2 * sizeof(void*));
}

TEST(Status, ErrorCarriesCodeSentenceAndPlace) {
  const int line = __LINE__ + 1;
  Status status(Code::kPeerLost, "process 12 of peer 3 ended");
  EXPECT_FALSE(status.isOk());
  EXPECT_FALSE(static_cast<bool>(status));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(), "process 12 of peer 3 ended");
  EXPECT_EQ(status.toString(),
            "PeerLost: process 12 of peer 3 ended (status_test.cc:" + std::to_string(line) + ")");
}

TEST(Status, CopiesShareTheRecordAndMovedFromIsUsable) {
  Status first(Code::kTimeout, "waited 5 ms");
  Status second = first;
  EXPECT_EQ(first.message().data(), second.message().data());
  std::string_view kept = second.message();
  first = Status();
  EXPECT_EQ(kept, "waited 5 ms");
}

TEST(Status, SystemErrorKeepsErrnoAndItsText) {
  Status status = Status::system(ENOENT, "open /no/such");
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.systemError(), ENOENT);
  EXPECT_EQ(status.message(), "open /no/such: No such file or directory");
}

// Whoever made the call: it succeeds when descriptors are closed, or the limit is raised.
TEST(Status, WithoutADescriptorItIsUnavailable) {
  const Status own = Status::system(EMFILE, "memfd");
  EXPECT_EQ(own.code(), Code::kUnavailable);
  EXPECT_EQ(own.systemError(), EMFILE);
  EXPECT_NE(own.message().find("ulimit -n"), std::string_view::npos);
  EXPECT_EQ(Status::system(ENFILE, "memfd").code(), Code::kUnavailable);
}

TEST(Status, ContextGoesInFrontAndKeepsTheRest) {
  const int line = __LINE__ + 1;
  Status inner = Status::system(EACCES, "open x");
  Status outer = inner.withContext("import of region 7");
  EXPECT_EQ(outer.code(), Code::kSystem);
  EXPECT_EQ(outer.systemError(), EACCES);
  EXPECT_EQ(outer.message(), "import of region 7: open x: Permission denied");
  EXPECT_NE(outer.toString().find("status_test.cc:" + std::to_string(line)), std::string::npos)
      << "a clause must not move the place of discovery: " << outer.toString();
  EXPECT_TRUE(Status().withContext("anything").isOk());
}

// Numbers are wire format: this list is the specification and only ever grows at its end.
TEST(Status, CodeNumbersAndNamesAreFixed) {
  const char* names[] = {"OK",          "InvalidArgument", "NotSupported", "Unavailable",
                         "TryAgain",    "Timeout",         "Cancelled",    "PeerLost",
                         "PeerSilent",  "Closed",          "OutOfMemory",  "PermissionDenied",
                         "NotPrepared", "SizeMismatch",    "Corrupt",      "System",
                         "Internal",    "Revoked"};
  for (unsigned i = 0; i < std::size(names); ++i)
    EXPECT_STREQ(codeName(static_cast<Code>(i)), names[i]) << i;
  EXPECT_STREQ(codeName(static_cast<Code>(std::size(names))), "UnknownCode");
  EXPECT_STREQ(codeName(static_cast<Code>(255)), "UnknownCode");
}

TEST(StatusDeathTest, ErrorWithoutAnErrorCodeAborts) {
  EXPECT_DEATH((void)Status(Code::kOk, "nothing"),
               "check failed: code != Code::kOk at .*status.cc");
}

Result<int> half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalidArgument, "odd value " + std::to_string(value));
  return value / 2;
}

Status quarter(int value, int& out) {
  PEERLANE_ASSIGN(int once, half(value));
  PEERLANE_ASSIGN(out, half(once));
  return {};
}

Status quarterTwice(int value, int& out) {
  PEERLANE_RETURN_IF_ERROR(quarter(value, out));
  PEERLANE_RETURN_IF_ERROR(quarter(out, out));
  return {};
}

TEST(Result, HoldsAValueOrAStatus) {
  auto good = half(8);
  ASSERT_TRUE(good.isOk());
  EXPECT_EQ(good.value(), 4);
  EXPECT_EQ(*good, 4);
  EXPECT_TRUE(good.status().isOk());
  auto bad = half(3);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.status().message(), "odd value 3");
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<std::string>> made(std::make_unique<std::string>("content"));
  EXPECT_EQ((*made)->size(), 7u);
  EXPECT_EQ(made->get()->front(), 'c');
  std::unique_ptr<std::string> taken = std::move(made).value();
  EXPECT_EQ(*taken, "content");
}

// Two on one line: that is the test.
// clang-format off
Status eighth(int value, int& out) {
  PEERLANE_ASSIGN(int once, half(value)); PEERLANE_ASSIGN(int twice, half(once));
  PEERLANE_ASSIGN(out, half(twice));
  return {};
}
// clang-format on

TEST(Result, TwoMayBeUnwrappedOnOneLine) {
  int out = -1;
  EXPECT_TRUE(eighth(48, out).isOk());
  EXPECT_EQ(out, 6);
  EXPECT_EQ(eighth(6, out).message(), "odd value 3");
}

TEST(Result, MacrosReturnTheFirstError) {
  int out = -1;
  EXPECT_TRUE(quarterTwice(48, out).isOk());
  EXPECT_EQ(out, 3);
  out = -1;
  Status status = quarterTwice(12, out);  // 12 -> 3, and 3 is odd
  EXPECT_EQ(status.message(), "odd value 3");
  EXPECT_EQ(out, 3);
}

TEST(ResultDeathTest, MisuseAborts) {
  EXPECT_DEATH((void)half(3).value(), "a Result has no value: InvalidArgument: odd value 3");
  EXPECT_DEATH((void)Result<int>{Status{}}, "OK status without a value");
}

// Who unwraps an error is told its own line, not one of this library's headers.
TEST(ResultDeathTest, TheValueOfAnErrorNamesItsCaller) {
  const std::string place = "odd value 3 \\(.*\\) at .*status_test.cc:";
  EXPECT_DEATH((void)half(3).value(), place + std::to_string(__LINE__));
  Result<int> kept = half(3);
  const Result<int>& fixed = kept;
  EXPECT_DEATH(kept.value() = 1, place + std::to_string(__LINE__));
  EXPECT_DEATH((void)fixed.value(), place + std::to_string(__LINE__));
  EXPECT_DEATH((void)*kept, "a Result has no value: InvalidArgument: odd value 3 \\(.*\\)\n");
}

TEST(CheckDeathTest, NamesConditionAndPlace) {
  PEERLANE_CHECK(1 + 1 == 2);
  EXPECT_DEATH(PEERLANE_CHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3 at .*status_test.cc:");
}

}  // namespace
}  // namespace peerlane
