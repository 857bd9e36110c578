// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_reclaimer.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/thread.h"

namespace peerlane {
namespace {

// The longest that a release, which may wait for a kernel that never ends, delays the end of the
// process.
constexpr std::chrono::seconds kLongestRelease{1};

}  // namespace

CudaReclaimer& CudaReclaimer::instance() {
  // Leaked: its thread may still run when static objects are destroyed.
  static auto* const only = new CudaReclaimer;
  return *only;
}

CudaReclaimer::CudaReclaimer() {
  // The driver was used before this object was made, so its own exit handler runs after this one.
  (void)std::atexit([] { instance().endBeforeExit(); });
}

void CudaReclaimer::endBeforeExit() {
  if (forkGeneration() != forks_) return;  // no thread of this process could unlock
  const auto deadline = std::chrono::steady_clock::now() + kLongestRelease;
  const MutexLock lock(mutex_);
  exiting_ = true;
  while (releasing_)
    if (!changed_.waitUntil(mutex_, deadline)) return;
}

void CudaReclaimer::run() {
  ReleasableLock lock(mutex_);
  for (;;) {
    while (queue_.empty() || !waits_.none() || exiting_) changed_.wait(mutex_);
    Release release = std::move(queue_.front());
    queue_.pop_front();
    if (queue_.empty()) queued_.store(false);
    releasing_ = true;
    lock.unlock();
    {
      const cuda::CurrentContext current(*release.gpu);
      release.call();
      release.call = nullptr;
      (void)cudaGetLastError();  // there is no caller to tell
    }
    release.gpu = nullptr;
    lock.lock();
    releasing_ = false;
    if (exiting_) changed_.notifyAll();
  }
}

void CudaReclaimer::add(std::shared_ptr<const cuda::PrimaryContext> gpu,
                        std::function<void()> release) {
  Status started;
  size_t waiting = 0;
  {
    const MutexLock lock(mutex_);
    queue_.push_back({std::move(gpu), std::move(release)});
    waiting = queue_.size();
    queued_.store(true);
    if (!hasThread_) started = startRunning();
    changed_.notifyOne();
  }
  // Not under the lock: a sink of the log may release memory itself.
  if (!started.isOk())
    PEERLANE_LOG_ERROR("{}; {} releases of GPU memory wait for the next one, which asks again",
                       started.toString(), waiting);
}

Status CudaReclaimer::startRunning() {
  PEERLANE_ASSIGN(std::thread thread, startThread("letting go of GPU memory", [this] { run(); }));
  thread.detach();
  hasThread_ = true;
  return Status::ok();
}

void CudaReclaimer::waitBegins() {
  waits_.begin();
}

void CudaReclaimer::waitEnded() {
  waits_.end();
  // Partner: run(), which reads the count after the store of add().
  if (!queued_.load()) return;
  const MutexLock lock(mutex_);
  if (!queue_.empty() && waits_.none()) changed_.notifyOne();
}

size_t CudaReclaimer::pending() const {
  const MutexLock lock(mutex_);
  return queue_.size() + (releasing_ ? 1 : 0);
}

}  // namespace peerlane
