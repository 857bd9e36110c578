// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/operation/host_stream.h"

#include <deque>
#include <thread>

#include "peerlane/channel/operation/operation.h"
#include "peerlane/core/mutex.h"
#include "peerlane/os/process.h"
#include "peerlane/os/thread.h"

namespace peerlane {

struct HostStream::State {
  Mutex mutex;
  Condition changed;
  std::deque<std::shared_ptr<Operation>> queue PEERLANE_GUARDED_BY(mutex);
  bool stop PEERLANE_GUARDED_BY(mutex) = false;
  std::thread thread;
  const uint64_t forks = forkGeneration();

  void run() {
    ReleasableLock lock(mutex);
    for (;;) {
      while (!stop && queue.empty()) changed.wait(mutex);
      if (queue.empty()) return;
      std::shared_ptr<Operation> next = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      next->runToEnd();
      next.reset();
      lock.lock();
    }
  }
};

HostStream::HostStream(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<HostStream>> HostStream::create() {
  auto state = std::make_unique<State>();
  State* raw = state.get();
  PEERLANE_ASSIGN(raw->thread, startThread("a host stream", [raw] { raw->run(); }));
  return std::unique_ptr<HostStream>(new HostStream(std::move(state)));
}

HostStream::~HostStream() {
  if (forkGeneration() != state_->forks) {
    // The thread is not in this process, and its mutex may be held for ever.
    (void)state_.release();
    return;
  }
  {
    const MutexLock lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notifyOne();
  state_->thread.join();
}

void HostStream::enqueue(std::shared_ptr<Operation> operation) {
  {
    const MutexLock lock(state_->mutex);
    state_->queue.push_back(std::move(operation));
  }
  state_->changed.notifyOne();
}

}  // namespace peerlane
