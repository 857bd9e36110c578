// SPDX-License-Identifier: Apache-2.0
//
// CountedNew: what a thread allocates by operator new, which this replaces in the whole program.
// Each thread counts for itself.
#pragma once

#include <cstddef>

namespace peerlane::gputest {

class CountedNew {
 public:
  struct Seen {
    unsigned count = 0;
    std::size_t largest = 0;  // in bytes
  };
  static void begin();
  // Since begin(), without what GPUs in software allocate on this thread.
  static Seen end();
  // False: the replacement is not in use.
  static bool counts();
};

}  // namespace peerlane::gputest
