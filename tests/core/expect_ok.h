// SPDX-License-Identifier: Apache-2.0
//
// Statuses and results in tests: EXPECT_OK and ASSERT_OK say what went wrong, MUST unwraps.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

inline testing::AssertionResult endedWell(const char* text, const Status& status) {
  if (status.isOk()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text << ": " << status.toString();
}

// Unwraps, or ends the test program: for set-up that other tests check.
template <typename T>
T unwrapped(Result<T> result, const char* what) {
  if (!result.isOk()) {
    ADD_FAILURE() << what << ": " << result.status().toString();
    std::abort();
  }
  return std::move(result).value();
}

}  // namespace peerlane

#define EXPECT_OK(expression) EXPECT_PRED_FORMAT1(::peerlane::endedWell, (expression))
#define ASSERT_OK(expression) ASSERT_PRED_FORMAT1(::peerlane::endedWell, (expression))
#define MUST(expression) ::peerlane::unwrapped((expression), #expression)
