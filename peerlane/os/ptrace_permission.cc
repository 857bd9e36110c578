// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/ptrace_permission.h"

#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/os/process.h"

namespace peerlane {
namespace {

constexpr int kOnlyWhoWasLetIn = 1;  // a ptrace_scope

Mutex slotMutex;  // its destructor does nothing: links may end while the process does
// The process that is let in, and how many objects hold that.
pid_t holder PEERLANE_GUARDED_BY(slotMutex) = 0;
size_t given PEERLANE_GUARDED_BY(slotMutex) = 0;

}  // namespace

namespace internal {

PtraceSystem& ptraceSystem() {
  static PtraceSystem system{ptraceScope, allowPtraceBy};
  return system;
}

}  // namespace internal

Result<PtracePermission> PtracePermission::give(pid_t pid) {
  if (internal::ptraceSystem().scope().value_or(0) != kOnlyWhoWasLetIn) return PtracePermission();
  if (pid <= 0)
    return Status(Code::kNotSupported,
                  "the peer's process has no number in this PID namespace, by which Yama could let "
                  "it in");
  const MutexLock lock(slotMutex);
  if (given != 0 && holder != pid)
    return Status(Code::kUnavailable, "process " + std::to_string(holder) +
                                          " is let in already, and Yama (ptrace_scope 1) lets in "
                                          "one at a time");
  if (given == 0) PEERLANE_RETURN_IF_ERROR(internal::ptraceSystem().allow(pid));
  holder = pid;
  ++given;
  return PtracePermission(pid);
}

void PtracePermission::takeBack() {
  if (std::exchange(pid_, 0) == 0) return;
  const MutexLock lock(slotMutex);
  if (--given != 0) return;
  holder = 0;
  (void)internal::ptraceSystem().allow(0);
}

}  // namespace peerlane
