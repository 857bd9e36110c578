// SPDX-License-Identifier: Apache-2.0
//
// Farewell: contexts that are still there when the process calls exit(), or main() returns, say
// goodbye to their peers, so that these have all that was sent to them. They say it after the
// program's own work at its end (std::atexit). Not for _exit() and signals.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace peerlane {

struct Farewell {
  std::function<void()> begin;  // returns at once
  std::function<void(std::chrono::steady_clock::time_point deadline)> await;
};

// Both are called once, by exit(), unless `who` is gone before: all begin before one is awaited,
// and the deadline is one for all, so that one that waits in vain takes nobody's time. Thread-safe.
void sayAtExit(std::weak_ptr<void> who, Farewell farewell);

// How long a goodbye waits for peers that do not answer.
inline constexpr std::chrono::seconds kGoodbyePatience{2};

}  // namespace peerlane
