// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace peerlane {
namespace {

int membarrier(int command) {
  return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

}  // namespace

namespace internal {

void fullFence() {
#if PEERLANE_THREAD_SANITIZER
  // The sanitizer does not follow fences. Read-modify-writes of one word have a total order in
  // which each synchronises with the next: the later of two sides then sees what the earlier one
  // stored before its own.
  static std::atomic<int> meeting{0};
  meeting.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace internal

Status prepareAsymmetricFence() {
  if (internal::light_fence_is_free.load(std::memory_order_seq_cst)) return {};
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0) {
    return Status(Code::kNotSupported, "membarrier cannot be registered (" +
                                           std::string(Status::system(errno, "errno").message()) +
                                           "); full fences are used");
  }
  internal::light_fence_is_free.store(true, std::memory_order_seq_cst);
  return {};
}

void heavyFence() {
  internal::fullFence();
#if !PEERLANE_THREAD_SANITIZER
  // Read only after the full fence: see the flag's comment.
  if (!internal::light_fence_is_free.load(std::memory_order_seq_cst)) return;
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // EPERM: the flag came from a parent process and the registration did not.
  const bool again = errno == EPERM && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
                     membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
  // Other threads may already have passed a light fence that did nothing: without the barrier the
  // guarantee cannot be kept.
  if (!again)
    internal::abortWith("membarrier worked when the first context was made and is forbidden now",
                        "let the filter of system calls (seccomp) allow it, or install the filter "
                        "before the first context",
                        __FILE__, __LINE__);
#endif
}

}  // namespace peerlane
