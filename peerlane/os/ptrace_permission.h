// SPDX-License-Identifier: Apache-2.0
//
// PtracePermission: one other process may read this one's memory where Yama restricts that (mode
// 1), for as long as the object lives. Yama knows one such process at a time, so there is one for
// this process, whoever in it asks first. Thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

class PtracePermission {
 public:
  // Gives nothing, and none is needed.
  PtracePermission() = default;
  // Lets `pid` and its descendants in. OK, and nothing is given, where Yama does not ask for it; OK
  // where the same process was let in before. Replaces what a program set by PR_SET_PTRACER itself,
  // which cannot be asked for. Errors: kUnavailable (another process is let in), kPeerLost (no such
  // process), kNotSupported (`pid` is not positive: the process has no number here).
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
// The system's part, for tests on machines with another Yama than they are about.
struct PtraceSystem {
  std::optional<int> (*scope)();
  Status (*allow)(pid_t pid);
};
PtraceSystem& ptraceSystem();
}  // namespace internal

}  // namespace peerlane
