// SPDX-License-Identifier: Apache-2.0
//
// startThread: a thread, or why the system has no more of them. endSleepsInTime: how exactly it
// sleeps.
#pragma once

#include <functional>
#include <thread>

#include "peerlane/core/status.h"

namespace peerlane {

// `what` it is for goes into the error. Errors: kUnavailable (the limit of threads or of memory of
// this user or container).
Result<std::thread> startThread(const char* what, std::function<void()> run);

// Sleeps of the calling thread with a limit end at that limit from now on. By default the kernel
// lets them last 50 us longer, to end several at once.
void endSleepsInTime();

}  // namespace peerlane
