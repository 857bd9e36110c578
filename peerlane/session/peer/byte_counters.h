// SPDX-License-Identifier: Apache-2.0
//
// ByteCounters: the byte counters of one peer, found without a lock after the first use, so that a
// small transfer does not pay for the names of its series. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <string_view>

#include "peerlane/core/metrics.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class ByteCounters {
 public:
  // Metrics::bytes(). `link` is the name that a link of the peer has, `engine` and `direction` are
  // literals: they are told apart by address.
  Counter& of(Metrics& metrics, std::string_view link, const char* engine, const char* direction) {
    for (Entry& entry : entries_) {
      Counter* counter = entry.counter.load(std::memory_order_acquire);  // partner: remember
      if (counter == nullptr) break;
      if (entry.link == link.data() && entry.engine == engine && entry.direction == direction)
        return *counter;
    }
    Counter& counter = metrics.bytes(link, engine, direction);
    remember(link.data(), engine, direction, counter);
    return counter;
  }

 private:
  struct Entry {
    const char* link = nullptr;
    const char* engine = nullptr;
    const char* direction = nullptr;
    std::atomic<Counter*> counter{nullptr};
  };

  // A full table forgets nothing and learns nothing more.
  void remember(const char* link, const char* engine, const char* direction, Counter& counter) {
    const MutexLock lock(mutex_);
    for (Entry& entry : entries_) {
      if (entry.counter.load(std::memory_order_relaxed) != nullptr) continue;
      entry.link = link;
      entry.engine = engine;
      entry.direction = direction;
      entry.counter.store(&counter, std::memory_order_release);
      return;
    }
  }

  Mutex mutex_;  // held by the one thread that fills an entry; readers take no lock
  std::array<Entry, 16> entries_;
};

}  // namespace peerlane
