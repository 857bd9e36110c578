// SPDX-License-Identifier: Apache-2.0
//
// Readiness: a descriptor that is readable while a condition holds, for threads that sleep in
// epoll, poll or select: an operation has ended, a message waits, a signal was reached. The
// descriptor is made when first asked for; before that it costs only a flag. Users must not read
// from it. External synchronization required.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class Readiness {
 public:
  // The same descriptor each time. Lifetime: this object. An error when the process has no
  // descriptors left.
  Result<int> fd();
  // Enters the kernel only when the condition changes, and only after fd() was called.
  void set(bool ready);
  bool isReady() const { return isReady_; }

 private:
  Fd event_;
  bool isReady_ = false;
};

}  // namespace peerlane
