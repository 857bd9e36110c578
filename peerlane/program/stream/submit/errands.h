// SPDX-License-Identifier: Apache-2.0
//
// Errands: copies that somebody waits for, perhaps another stream, or a peer, and that are asked
// for by a thread on which others wait, whenever their turn comes. So they must not stand behind
// anything that waits, and who asks must not stop:
//
// * they are posted by a thread of their own, one after the other. Where a hardware queue takes no
//   more, whatever stream filled it, the driver stops who puts work there (docs/gotchas.md);
// * they have streams of their own, on which nothing ever waits;
// * these have a priority of their own: should streams of one priority have hardware queues of
//   their own, nothing that waits is in theirs;
// * they need no lock of the executor's, which is held by who posts to a stream that takes no more.
//
// The thread is there from the first errand on. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "peerlane/core/mutex.h"
#include "peerlane/program/device/device_errand.h"
#include "peerlane/program/stream/submit/copy_poster.h"
#include "peerlane/program/stream/submit/stream_lanes.h"

namespace peerlane::stream {

class Errands {
 public:
  explicit Errands(std::shared_ptr<const cuda::PrimaryContext> gpu)
      : gpu_(std::move(gpu)), lanes_(gpu_, pool_) {}
  // Waits for the post that is being made. Requires: nobody looks for an errand any more, and what
  // streams wait for has been released.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // `deviceWords`: as StreamLanes::open(). With the GPU current.
  Status open(std::byte* deviceWords);
  // Never waits. Errands are posted in the order in which they are added. Requires: a StreamProgram
  // that adds to no counter.
  std::unique_ptr<DeviceErrand> add(std::shared_ptr<DeviceProgram> program);

 private:
  void run();
  Result<DevicePost> post(const DeviceProgram& program);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  PinnedPool pool_{gpu_};  // the thread's, as the next two
  StreamLanes lanes_;
  CopyPoster copies_{pool_};

  Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<DeviceErrand::Job>> queue_ PEERLANE_GUARDED_BY(mutex_);
  bool stop_ PEERLANE_GUARDED_BY(mutex_) = false;
  std::thread thread_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
