// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda_reclaimer.h"

#include <thread>
#include <utility>

namespace peerlane {

CudaReclaimer& CudaReclaimer::instance() {
  // Leaked: its thread may still run when static objects are destroyed.
  static auto* const only = new CudaReclaimer;
  return *only;
}

CudaReclaimer::CudaReclaimer() {
  std::thread([this] { run(); }).detach();
}

void CudaReclaimer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !queue_.empty() && waits_.none(); });
    auto release = std::move(queue_.front());
    queue_.pop_front();
    if (queue_.empty()) queued_.store(false);
    releasing_ = true;
    lock.unlock();
    release();
    release = nullptr;
    lock.lock();
    releasing_ = false;
  }
}

void CudaReclaimer::add(std::function<void()> release) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(release));
  queued_.store(true);
  changed_.notify_one();
}

void CudaReclaimer::waitBegins() {
  waits_.begin();
}

void CudaReclaimer::waitEnded() {
  waits_.end();
  // Partner: run(), which looks at the count behind the store of add().
  if (!queued_.load()) return;
  const std::lock_guard lock(mutex_);
  if (!queue_.empty() && waits_.none()) changed_.notify_one();
}

size_t CudaReclaimer::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + (releasing_ ? 1 : 0);
}

}  // namespace peerlane
