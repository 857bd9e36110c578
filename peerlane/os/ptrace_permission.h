// SPDX-License-Identifier: Apache-2.0
//
// PtracePermission: one other process may read this one's memory where Yama restricts that (mode
// 1), for as long as the object lives. Yama knows one such process at a time, so this process lets
// in one at a time: the one that was asked for first. Thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

class PtracePermission {
 public:
  // Holds no permission.
  PtracePermission() = default;
  // Lets `pid` and its descendants in. OK, and nothing is given, where Yama does not require it; OK
  // where the same process was let in before. Replaces the process that the program itself set by
  // PR_SET_PTRACER, because the kernel does not tell it. Errors: kUnavailable (another process is
  // let in), kPeerLost (no such process), kNotSupported (`pid` is not positive: the process has no
  // number here).
  static Result<PtracePermission> give(pid_t pid);
  ~PtracePermission() { takeBack(); }
  PtracePermission(PtracePermission&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  PtracePermission& operator=(PtracePermission&& other) noexcept {
    if (this == &other) return *this;
    takeBack();
    pid_ = std::exchange(other.pid_, 0);
    return *this;
  }

 private:
  explicit PtracePermission(pid_t pid) : pid_(pid) {}
  void takeBack();
  pid_t pid_ = 0;
};

namespace internal {
// The calls of the system, for tests that need another Yama mode than the machine has.
struct PtraceSystem {
  std::optional<int> (*scope)();
  Status (*allow)(pid_t pid);
};
PtraceSystem& ptraceSystem();
}  // namespace internal

}  // namespace peerlane
