// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/thread.h"

#include <sys/prctl.h>

#include <string>
#include <system_error>
#include <utility>

namespace peerlane {

Result<std::thread> startThread(const char* what, std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return Status(Code::kUnavailable, std::string("no thread for ") + what + ": " +
                                          error.code().message() +
                                          " (see ulimit -u, and the container's pids.max)");
  }
}

void endSleepsInTime() {
  // Nanoseconds; 0 would restore the default. A kernel that refuses it only sleeps longer.
  constexpr unsigned long kSlack = 1;
  (void)::prctl(PR_SET_TIMERSLACK, kSlack, 0, 0, 0);
}

}  // namespace peerlane
