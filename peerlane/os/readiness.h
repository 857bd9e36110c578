// SPDX-License-Identifier: Apache-2.0
//
// Readiness: a descriptor that is readable while something is so, for threads that sleep in epoll,
// poll or select: an end, a message that waits, a signal that was reached. Made when first asked
// for; until then it costs nothing but a flag. Nobody reads from it. External synchronization
// required.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class Readiness {
 public:
  // The same one each time, there as long as this object. An error when the process has no
  // descriptors left.
  Result<int> fd();
  // Enters the kernel only when it changes, and only once somebody has asked for the descriptor.
  void set(bool ready);
  bool isReady() const { return isReady_; }

 private:
  Fd event_;
  bool isReady_ = false;
};

}  // namespace peerlane
