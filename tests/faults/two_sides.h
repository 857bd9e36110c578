// SPDX-License-Identifier: Apache-2.0
//
// What `fault_peer` and the tests have in common: routes by name, memory of the kind a route is
// about, references told by message, and traffic of every kind, both ways, until something ends it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane {

// Ends every connection over Unix sockets of this process, without a word, as a defect would.
void hangUp();

// "mapped", "cma", "ring", "tcp".
Config configOfRoute(const std::string& route);

// Unwraps, or ends the process saying why.
[[noreturn]] void giveUp(const char* what, const Status& status);
template <typename T>
T need(Result<T> result, const char* what) {
  if (!result.isOk()) giveUp(what, result.status());
  return std::move(result).value();
}

// Memory of the kind that `route` is about: private for cma and ring, shared for the others.
class SideMemory {
 public:
  SideMemory(Context& context, const std::string& route, size_t bytes);
  // Registrations stay: their end is the test's business, or the context's.
  ~SideMemory();
  SideMemory(const SideMemory&) = delete;
  SideMemory& operator=(const SideMemory&) = delete;
  const Region& region() const { return region_; }
  volatile std::byte* bytes() const { return data_; }
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  const size_t bytes_;
  std::byte* data_ = nullptr;
  void* own_ = nullptr;
  Region region_;
};

void tellReference(const Peer& peer, uint32_t channel, const Region& region);
RemoteRegion hearReference(const Peer& peer, uint32_t channel);

// Everything that can be pending, at once: puts, gets, posts of a plan, notifications and their
// receiver, signals and their waiter, sends and receives of all sizes, and waits that nobody will
// end. One thread each, on both sides; it goes on until its calls fail.
class Traffic {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kBytes = 4 << 20;
  struct End {
    std::string what;
    Status status;
    Clock::time_point when;
  };

  // Both sides construct it at the same time. `mine` and `theirs` have kBytes.
  Traffic(Context& context, const Peer& peer, const Region& mine, const RemoteRegion& theirs);
  ~Traffic();
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  // Operations that ended well so far.
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Threads that were not ended by anything yet.
  size_t running() const { return running_.load(); }
  // Waits until each has failed.
  std::vector<End> ends();

 private:
  template <typename Step>
  void start(const char* what, Step step);

  Peer peer_;
  const Region mine_;
  const RemoteRegion theirs_;
  Plan plan_;
  std::unique_ptr<Communicator> ranks_;
  std::atomic<uint64_t> done_{0};
  std::atomic<size_t> running_{0};
  std::vector<End> ends_;  // one per thread, written by it
  std::vector<std::thread> threads_;
};

}  // namespace peerlane
