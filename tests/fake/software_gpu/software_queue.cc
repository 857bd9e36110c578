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
  Mutex mutex;
  Condition fewer;
  size_t count PEERLANE_GUARDED_BY(mutex) = 0;
};
Stopped& stopped() {
  static auto* const only = new Stopped;
  return *only;
}

}  // namespace

HardwareQueue& HardwareQueue::next(int device, int priority) {
  static Mutex mutex;
  // Leaked: streams outlive static objects.
  static auto* const byKind = new std::map<std::pair<int, int>, Queues>;
  static const size_t count = queueCount();
  static const bool areApart = prioritiesAreApart();
  const int kind =
      areApart ? std::clamp(priority, greatestPriority(), leastPriority()) : leastPriority();
  const MutexLock lock(mutex);
  Queues& queues = (*byKind)[{device, kind}];
  if (queues.all.size() < count) queues.all.push_back(std::make_unique<HardwareQueue>());
  return *queues.all[queues.made++ % count];
}

uint64_t HardwareQueue::add() {
  const MutexLock lock(mutex_);
  if (added_ - gone_ >= kMost) {
    Stopped& all = stopped();
    {
      const MutexLock counting(all.mutex);
      ++all.count;
    }
    while (added_ - gone_ >= kMost) changed_.wait(mutex_);
    const MutexLock counting(all.mutex);
    --all.count;
    all.fewer.notifyAll();
  }
  return ++added_;
}

void HardwareQueue::waitForTheStopped() {
  Stopped& all = stopped();
  const MutexLock lock(all.mutex);
  while (all.count != 0) all.fewer.wait(all.mutex);
}

void HardwareQueue::waitFor(uint64_t place) {
  const MutexLock lock(mutex_);
  while (gone_ + 1 != place) changed_.wait(mutex_);
}

void HardwareQueue::leave() {
  const MutexLock lock(mutex_);
  ++gone_;
  changed_.notifyAll();
}

}  // namespace peerlane::softgpu
