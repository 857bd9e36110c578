// SPDX-License-Identifier: Apache-2.0
//
// One transfer between two agents of a wheel, each a process of the wheel's Python, by the placed
// back end alone. Any thread.
#pragma once

#include <string>

#include "peerlane/core/status.h"
#include "tools/nixl/nixl_wheel.h"

namespace peerlane {

struct TransferReport {
  std::string version;  // of the plug-in
  std::string route;    // between the two processes
};

// In words for people.
inline constexpr const char* kTriedTransfer =
    "a write of 128 blocks of 4 KiB, every third of two devices, with a notification";

// Errors: kUnavailable (a step failed; the sentence names it, what NIXL logged and what to do),
// kCorrupt (bytes arrived otherwise than they were sent), kTimeout.
Result<TransferReport> tryTransfer(const NixlWheel& wheel);

}  // namespace peerlane
