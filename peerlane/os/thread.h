// SPDX-License-Identifier: Apache-2.0
//
// startThread: a thread, or why the system has no more of them.
#pragma once

#include <functional>
#include <thread>

#include "peerlane/core/status.h"

namespace peerlane {

// `what` it is for goes into the error. Errors: kUnavailable (the limit of threads or of memory of
// this user or container).
Result<std::thread> startThread(const char* what, std::function<void()> run);

}  // namespace peerlane
