// SPDX-License-Identifier: Apache-2.0
//
// Waker: the producer's half of the wake rule. The consumer keeps one word that says how many of
// its threads poll and how often one has stopped; having stopped, it looks once more before it
// sleeps. The producer stores, then reads that word: it wakes the consumer by its descriptor only
// if no thread polls, and only once in each sleep, because the consumer looks at everything between
// two sleeps. Each side puts a sequentially consistent fence or operation between its two accesses,
// so one of the two sides sees the other's store. A store of a signal wakes the consumer only if it
// says in a second word that somebody listens to signals; it says so before its last look, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "peerlane/os/fd.h"

namespace peerlane {

// The word: the threads that poll in the low 16 bits, above them how often one has left.
namespace bell_word {
inline constexpr uint64_t kPoller = 1;
inline constexpr uint64_t kPollers = 0xffff;
inline constexpr uint64_t kLeave = kPollers + 1 - kPoller;  // one more leave, one poller less
inline constexpr uint64_t kNever = ~uint64_t{0};            // no value of a sleeper's word
constexpr bool isPolling(uint64_t word) {
  return (word & kPollers) != 0;
}
// A second word, of signals alone: this value while no store of one can be awaited by a sleeper.
inline constexpr uint64_t kNobodyListens = 1;
inline constexpr uint64_t kListener = 2;
}  // namespace bell_word

struct Waker {
  // In the consumer's bell page; written by the consumer only.
  const std::atomic<uint64_t>* word = nullptr;
  // That word as it was when the descriptor was last made readable; kNever at first. One for each
  // descriptor, in the producer's memory; the object that makes the waker must keep it as long as
  // the waker.
  std::atomic<uint64_t>* rungAt = nullptr;
  int fd = -1;            // borrowed; an eventfd of this process, or
  bool isSocket = false;  // a socket to the consumer, which may be any process
  // Of a waker for signals: the second word of the bell page.
  const std::atomic<uint64_t>* listeners = nullptr;

  // Call after a store of the word the consumer polls and a sequentially consistent fence, or a
  // sequentially consistent operation on it.
  void ring() const {
    if (word == nullptr) return;
    const uint64_t now = word->load(std::memory_order_seq_cst);
    if (bell_word::isPolling(now) || rungAt->load(std::memory_order_acquire) == now) return;
    if (listeners != nullptr &&
        listeners->load(std::memory_order_seq_cst) == bell_word::kNobodyListens)
      return;
    if (!isSocket)
      signalEventFd(fd);
    else if (!knockPatiently())
      return;  // the next store tries again, or the next heartbeat wakes the consumer
    // Stored after the ring, because another thread that finds this value relies on the descriptor
    // being readable.
    rungAt->store(now, std::memory_order_release);
  }

 private:
  // The system may have no memory for a byte at this moment, and this store may be the last.
  bool knockPatiently() const {
    constexpr int kTries = 16;
    for (int i = 0; i < kTries; ++i) {
      if (knock(fd)) return true;
      std::this_thread::yield();
    }
    return false;
  }
};

}  // namespace peerlane
