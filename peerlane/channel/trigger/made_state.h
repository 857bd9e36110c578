// SPDX-License-Identifier: Apache-2.0
//
// MadeState: the state of one slot that is used again and again, and the number of its making, in
// one word. So whoever holds the number of an earlier making changes nothing. One thread (the
// poster) makes and takes back; another one (the executor) may enqueue at the same time: one of the
// two gets it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace peerlane {

class MadeState {
 public:
  enum class State : uint64_t {
    kFree,
    kMade,      // its program is made and may be taken back
    kEnqueued,  // its program may run from now on
    kEnding,    // one thread lets go of what it holds
    kEnded,
    kRunning  // the executor has it, and gives it back or ends it
  };

  // Both of one moment.
  struct Seen {
    uint64_t making;
    State state;
  };
  Seen seen() const {
    const uint64_t word = word_.load(std::memory_order_acquire);
    return {word >> kBits, static_cast<State>(word & kMask)};
  }
  State state() const { return static_cast<State>(word_.load(std::memory_order_acquire) & kMask); }
  // The same once no thread lets go of what it holds, which takes a moment. Not on such a thread.
  State settled() const {
    State now = state();
    for (; now == State::kEnding; now = state()) std::this_thread::yield();
    return now;
  }
  uint64_t making() const { return word_.load(std::memory_order_relaxed) >> kBits; }

  // The poster's; release: what it wrote to the slot before.
  void make(uint64_t making) {
    word_.store(wordOf(making, State::kMade), std::memory_order_release);
  }
  void free() { word_.store(wordOf(making(), State::kFree), std::memory_order_release); }
  // From one state to another, of that making alone. False: it is in another state, or another
  // making.
  bool go(uint64_t making, State from, State to) {
    uint64_t expected = wordOf(making, from);
    return word_.compare_exchange_strong(expected, wordOf(making, to), std::memory_order_acq_rel);
  }
  bool is(uint64_t making, State state) const {
    return word_.load(std::memory_order_acquire) == wordOf(making, state);
  }

 private:
  static constexpr unsigned kBits = 3;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static constexpr uint64_t wordOf(uint64_t making, State state) {
    return making << kBits | static_cast<uint64_t>(state);
  }
  std::atomic<uint64_t> word_{0};
};

}  // namespace peerlane
