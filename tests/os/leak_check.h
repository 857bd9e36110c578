// SPDX-License-Identifier: Apache-2.0
//
// leaveLeaksAlone(): for a forked child that ends by exit(). None of its parent's threads are here,
// so what only their stacks knew looks like a leak. Where nothing is checked for leaks it does
// nothing.
#pragma once

namespace peerlane {

inline bool leaksCannotBeTold = false;

inline void leaveLeaksAlone() {
  leaksCannotBeTold = true;
}

}  // namespace peerlane

// The leak sanitizer asks for it at the end of the process; the name is its own.
extern "C" {
int __lsan_is_turned_off();  // NOLINT(readability-identifier-naming)
// NOLINTNEXTLINE(readability-identifier-naming)
[[gnu::used, gnu::visibility("default")]] inline int __lsan_is_turned_off() {
  return peerlane::leaksCannotBeTold ? 1 : 0;
}
}
