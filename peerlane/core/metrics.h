// SPDX-License-Identifier: Apache-2.0
//
// The counters of one context: bytes by link, transfers ended by status, fallbacks, poisonings,
// quarantined regions, wake-ups. Named series are made during set-up under a lock and then counted
// without any. It knows no link by name, keeps no history and serves no port: a program that serves
// one calls text(). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "peerlane/core/device_code.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane {

// One number that only grows, on a cache line of its own. Relaxed: it orders nothing. Partner:
// Metrics::text().
class alignas(kCacheLineBytes) Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// One number that goes up and down; otherwise as a Counter.
class alignas(kCacheLineBytes) Gauge {
 public:
  void add(int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  void set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Metrics {
 public:
  // In the order in which they are printed.
  using Labels = std::vector<std::pair<std::string, std::string>>;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The series of this name and these labels; the same ones give the same object.
  // Requires: name and label names are [a-zA-Z_][a-zA-Z0-9_]*; one name is not both a counter and a
  // gauge. Lifetime: as long as the Metrics. Thread: takes a lock and allocates, so not on the
  // posting path.
  Counter& counter(std::string_view name, const Labels& labels = {});
  Gauge& gauge(std::string_view name, const Labels& labels = {});

  // peerlane_bytes_total{link,engine,direction}: payload bytes that arrived at their destination.
  Counter& bytes(std::string_view link, std::string_view engine, std::string_view direction);
  // peerlane_transfers_total{status}: transfers that ended with this code. Takes no lock.
  Counter& ended(Code code) { return *ended_[static_cast<std::size_t>(code)]; }
  // peerlane_fallbacks_total: routes that were not the first choice.
  Counter& fallbacks() { return fallbacks_; }
  // peerlane_poisonings_total: waits of devices that were released although nothing satisfied them,
  // by poison or by an abort word: cancelled, out of time, their peer lost, or their context gone.
  Counter& poisonings() { return poisonings_; }
  // peerlane_quarantined_regions: regions not handed back because a silent peer may still write.
  Gauge& quarantinedRegions() { return quarantinedRegions_; }
  // peerlane_wakeups_total: sleeping waiters woken by a system call.
  Counter& wakeups() { return wakeups_; }

  // Every series as Prometheus text (format 0.0.4): HELP, TYPE, one line per series. Values are
  // read one by one while others count, so sums across series may be off by what is in flight.
  std::string text() const;

 private:
  struct Family;
  struct Series;

  Series& series(std::string_view name, const Labels& labels, bool isGauge);

  mutable Mutex mutex_;
  // In order of first use.
  std::vector<std::unique_ptr<Family>> families_ PEERLANE_GUARDED_BY(mutex_);

  // References into families_, made by the constructor.
  Counter& fallbacks_;
  Counter& poisonings_;
  Gauge& quarantinedRegions_;
  Counter& wakeups_;
  std::array<Counter*, static_cast<std::size_t>(kLastCode) + 1> ended_{};
};

}  // namespace peerlane
