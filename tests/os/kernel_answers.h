// SPDX-License-Identifier: Apache-2.0
//
// Whether the kernel says what is mapped at one address (PROCMAP_QUERY), and a thread to which it
// does not.
#pragma once

#include <sys/syscall.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <utility>

#include "tests/os/refused_calls.h"

namespace peerlane {

// On a thread of its own, whose kernel does not answer: the filter is the thread's.
inline void withoutAnswers(const std::function<void()>& work) {
  std::thread([&work] {
    // The size of the structure, which is in the call's number; few other calls have one of its
    // bits.
    refuseCalls(SYS_ioctl, ENOTTY, 1, uint32_t{104} << 16);
    work();
  }).join();
}

// From Linux 6.11 on.
inline bool doesKernelAnswer() {
  utsname system{};
  int major = 0, minor = 0;
  return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 11);
}

}  // namespace peerlane
