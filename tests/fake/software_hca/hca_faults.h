// SPDX-License-Identifier: Apache-2.0
//
// Errors that a test ordered: which kind, after how many good ones, how often. Any thread; one load
// where nothing was ordered.
#pragma once

#include <array>
#include <atomic>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_hca/software_hca.h"

namespace peerlane::softhca {

class Faults {
 public:
  // False: there is no such fault.
  bool order(SoftwareHcaFault fault, uint32_t pair, uint64_t after, int64_t count, int error);
  bool isArmed() const { return armed_.load(std::memory_order_relaxed) != 0; }
  bool strikes(SoftwareHcaFault fault, uint32_t pair) {
    return isArmed() && error(fault, pair) != 0;
  }
  // 0: this time it is good.
  int error(SoftwareHcaFault fault, uint32_t pair = 0);

 private:
  struct Order {
    uint32_t pair = 0;  // 0: any
    uint64_t after = 0;
    int64_t count = 0;
    int error = 0;
  };
  std::atomic<uint32_t> armed_{0};  // a bit for each kind
  Mutex mutex_;
  std::array<Order, SOFTWARE_HCA_FAULTS> orders_ PEERLANE_GUARDED_BY(mutex_){};
};

}  // namespace peerlane::softhca
