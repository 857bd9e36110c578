// SPDX-License-Identifier: Apache-2.0
//
// CudaReclaimer: makes the releases that wait for a whole GPU (cudaFree, cudaFreeHost,
// cudaHostUnregister, cudaIpcCloseMemHandle: measured, each blocks until every running kernel has
// ended). Such a call, made while a stream waits for a peer, would wait for the peer too, and the
// peer may be waiting for the thread that made it. So the reclaimer's own thread makes these calls,
// and only while no work of the library on a GPU waits for a peer. One per process; it is never
// destroyed. Once the process exits it makes no further release: the system takes everything back,
// and the driver may have ended. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "peerlane/core/mutex.h"
#include "peerlane/core/split_count.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/process.h"

namespace peerlane {

class CudaReclaimer {
 public:
  static CudaReclaimer& instance();

  // Calls `release` later, once, on the reclaimer's thread. `gpu` is held until then, and current:
  // with none current the runtime would make a context on the first GPU, even where this process
  // does not use that GPU.
  void add(std::shared_ptr<const cuda::PrimaryContext> gpu, std::function<void()> release);
  // waitBegins(): work that waits for a peer was queued on a GPU. waitEnded(): such work has ended.
  void waitBegins();
  void waitEnded();
  // How many releases are still to come; for tests and dumps.
  size_t pending() const;

 private:
  struct Release {
    std::shared_ptr<const cuda::PrimaryContext> gpu;
    std::function<void()> call;
  };

  CudaReclaimer();
  // Tried again with each release while there is no thread.
  Status startRunning() PEERLANE_REQUIRES(mutex_);
  void run();
  void endBeforeExit();

  const uint64_t forks_ = forkGeneration();  // of the process that has the thread
  mutable Mutex mutex_;
  Condition changed_;
  SplitCount waits_;
  std::atomic<bool> queued_{false};  // the queue is not empty; releases wait until waits_ is 0
  std::deque<Release> queue_ PEERLANE_GUARDED_BY(mutex_);
  bool hasThread_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool releasing_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool exiting_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
