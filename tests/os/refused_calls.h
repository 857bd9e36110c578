// SPDX-License-Identifier: Apache-2.0
//
// refuseCalls: from now on the kernel answers a system call of this process with an error. For
// ever: call it in a child.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace peerlane {

// Where argument `argument` (0 to 5) has one of `bits`; of the lower half, as all flags are.
inline void refuseCalls(uint32_t number, uint16_t error, uint32_t argument = 0, uint32_t bits = 0) {
  const auto at = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
  std::array<sock_filter, 6> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
      // No bits: every call.
      BPF_JUMP(BPF_JMP | (bits == 0 ? BPF_JGE : BPF_JSET) | BPF_K, bits, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t{error}),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(90);
}

}  // namespace peerlane
