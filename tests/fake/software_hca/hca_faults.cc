// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_faults.h"

#include <cerrno>

namespace peerlane::softhca {

bool Faults::order(SoftwareHcaFault fault, uint32_t pair, uint64_t after, int64_t count,
                   int error) {
  if (fault < 0 || fault >= SOFTWARE_HCA_FAULTS) return false;
  const MutexLock lock(mutex_);
  orders_[fault] = {pair, after, count, error == 0 ? EIO : error};
  const uint32_t bit = 1u << fault;
  if (count != 0)
    armed_ |= bit;
  else
    armed_ &= ~bit;
  return true;
}

int Faults::error(SoftwareHcaFault fault, uint32_t pair) {
  if ((armed_.load(std::memory_order_acquire) & (1u << fault)) == 0) return 0;
  const MutexLock lock(mutex_);
  Order& order = orders_[fault];
  if (order.count == 0 || (order.pair != 0 && order.pair != pair)) return 0;
  if (order.after > 0) {
    --order.after;
    return 0;
  }
  if (order.count > 0 && --order.count == 0) armed_ &= ~(1u << fault);
  return order.error;
}

}  // namespace peerlane::softhca
