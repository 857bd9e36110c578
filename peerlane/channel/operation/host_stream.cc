// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/operation/host_stream.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "peerlane/channel/operation/pending.h"
#include "peerlane/os/process.h"
#include "peerlane/os/thread.h"

namespace peerlane {

struct HostStream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Pending>> queue;  // under mutex
  bool stop = false;                           // under mutex
  std::thread thread;
  const uint64_t forks = forkGeneration();

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      std::shared_ptr<Pending> next = std::move(queue.front());
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
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_one();
  state_->thread.join();
}

void HostStream::enqueue(std::shared_ptr<Pending> operation) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(operation));
  }
  state_->changed.notify_one();
}

}  // namespace peerlane
