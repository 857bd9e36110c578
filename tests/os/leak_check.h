// SPDX-License-Identifier: Apache-2.0
//
// exitWithoutLeakCheck(): ends a forked child as exit() does, but the leak sanitizer does not
// search it. The child has none of its parent's threads, so the sanitizer would report memory that
// only the stacks of those threads point to. Without the sanitizer it is exit().
#pragma once

#include <cstdlib>

namespace peerlane {

inline bool isLeakCheckOff = false;

[[noreturn]] inline void exitWithoutLeakCheck(int status) {
  isLeakCheckOff = true;
  std::exit(status);
}

}  // namespace peerlane

// The leak sanitizer calls it when the process ends; the name is the sanitizer's.
extern "C" {
int __lsan_is_turned_off();  // NOLINT(readability-identifier-naming)
// NOLINTNEXTLINE(readability-identifier-naming)
[[gnu::used, gnu::visibility("default")]] inline int __lsan_is_turned_off() {
  return peerlane::isLeakCheckOff ? 1 : 0;
}
}
