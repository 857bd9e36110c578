// SPDX-License-Identifier: Apache-2.0
//
// Proxy: the host thread that carries out requests of kernels (ports). A store of a device wakes no
// thread, so the proxy polls: without a pause for a while after the last work, then with naps that
// grow with the square of the rest so far, up to a limit. So work after a short rest is seen soon,
// and a long rest costs little. wake() ends a nap and has it poll without a pause for a while.
// Kernels wait for it, so it has a thread of its own. Thread-safe, except where a function says
// otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class Proxy {
 public:
  using Duration = std::chrono::nanoseconds;
  struct Pace {
    Duration spin = std::chrono::microseconds(50);       // after work, and after wake()
    Duration longestNap = std::chrono::milliseconds(1);  // at most 100 ms
    Duration armed = std::chrono::milliseconds(2);       // of polling after wake(), at least
    // A nap takes the square of the time since the last work or wake(), divided by this: 10 us
    // after 20 ms, 1 ms after 200 ms.
    Duration napScale = std::chrono::seconds(40);
  };
  enum class Turn : uint8_t { kIdle, kPending, kMoved };

  // `turn`: one pass over all ports; called on the proxy's thread. kPending: work is under way
  // whose end wakes no thread either, so naps last 50 us. Its end is kMoved.
  static Result<std::unique_ptr<Proxy>> create(std::function<Turn()> turn, const Pace& pace);
  ~Proxy() { stop(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Begins, or goes on after stop(). Idempotent, as stop(). Not on the proxy's thread.
  Status start();
  // Ends the thread after its turn.
  void stop();
  bool isRunning() const { return running_.load(std::memory_order_acquire); }
  bool onThread() const { return std::this_thread::get_id() == id_.load(); }
  // From any thread, also from a callback of the driver's.
  void wake();
  // Ends a nap for the next turn, and no more: for a caller whose work is there already.
  void prod();
  // Limits the next nap, and only that one, to `most`. On the proxy's thread.
  void napAtMost(Duration most) { nextNap_ = most; }
  // How long to sleep after a rest of that length in which nothing was under way.
  static Duration napAfter(Duration rest, const Pace& pace);
  // How often it has slept; for tests and dumps.
  uint64_t naps() const { return naps_.load(std::memory_order_relaxed); }

 private:
  Proxy(std::function<Turn()> turn, const Pace& pace, Fd bell)
      : turn_(std::move(turn)), pace_(pace), bell_(std::move(bell)) {}
  void run();
  bool nap(Duration length);

  const std::function<Turn()> turn_;
  const Pace pace_;
  const Fd bell_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> running_{false};
  std::atomic<bool> isArmed_{false};  // by wake(), until the thread has seen it
  std::atomic<uint64_t> naps_{0};
  Duration nextNap_ = Duration::max();  // of the thread
  std::atomic<std::thread::id> id_{};
  Mutex mutex_;  // of start() and stop()
  std::thread thread_;
};

}  // namespace peerlane
