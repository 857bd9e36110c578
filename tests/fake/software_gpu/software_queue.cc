// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_queue.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace peerlane::softgpu {
namespace {

size_t queueCount() {
  constexpr int kDefault = 8, kMost = 32;
  const char* asked = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return static_cast<size_t>(asked == nullptr ? kDefault : std::clamp(std::atoi(asked), 1, kMost));
}

bool prioritiesAreApart() {
  const char* asked = std::getenv("SOFTWARE_GPU_PRIORITIES");
  return asked != nullptr && std::string(asked) == "apart";
}

struct Queues {
  std::vector<std::unique_ptr<HardwareQueue>> all;
  size_t made = 0;  // streams
};

// Threads that wait for room.
struct Stopped {
  std::mutex mutex;
  std::condition_variable fewer;
  size_t count = 0;  // under mutex
};
Stopped& stopped() {
  static auto* const only = new Stopped;
  return *only;
}

}  // namespace

HardwareQueue& HardwareQueue::next(int device, int priority) {
  static std::mutex mutex;
  // Leaked: streams outlive static objects.
  static auto* const byKind = new std::map<std::pair<int, int>, Queues>;
  static const size_t count = queueCount();
  static const bool areApart = prioritiesAreApart();
  const int kind =
      areApart ? std::clamp(priority, greatestPriority(), leastPriority()) : leastPriority();
  const std::lock_guard lock(mutex);
  Queues& queues = (*byKind)[{device, kind}];
  if (queues.all.size() < count) queues.all.push_back(std::make_unique<HardwareQueue>());
  return *queues.all[queues.made++ % count];
}

uint64_t HardwareQueue::add() {
  std::unique_lock lock(mutex_);
  const auto hasRoom = [this] { return added_ - gone_ < kMost; };
  if (!hasRoom()) {
    Stopped& all = stopped();
    {
      const std::lock_guard counting(all.mutex);
      ++all.count;
    }
    changed_.wait(lock, hasRoom);
    const std::lock_guard counting(all.mutex);
    --all.count;
    all.fewer.notify_all();
  }
  return ++added_;
}

void HardwareQueue::waitForTheStopped() {
  Stopped& all = stopped();
  std::unique_lock lock(all.mutex);
  all.fewer.wait(lock, [&] { return all.count == 0; });
}

void HardwareQueue::waitFor(uint64_t place) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return gone_ + 1 == place; });
}

void HardwareQueue::leave() {
  const std::lock_guard lock(mutex_);
  ++gone_;
  changed_.notify_all();
}

}  // namespace peerlane::softgpu
