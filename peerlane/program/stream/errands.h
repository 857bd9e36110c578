// SPDX-License-Identifier: Apache-2.0
//
// Errands: copies that somebody waits for, perhaps another stream, or a peer: posted by a thread on
// which others wait, whenever their turn comes. So they must not stand behind anything that waits:
//
// * they have streams of their own, on which nothing ever waits;
// * these have a priority of their own, because streams of one priority share hardware queues, in
//   which a copy stands behind whatever waits there on any other stream (docs/gotchas.md);
// * they have a lock of their own: who posts to a stream that takes no more holds the executor's.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "peerlane/program/stream/copy_poster.h"
#include "peerlane/program/stream/stream_lanes.h"

namespace peerlane::stream {

class Errands {
 public:
  explicit Errands(std::shared_ptr<const cuda::PrimaryContext> gpu)
      : gpu_(std::move(gpu)), lanes_(gpu_, pool_) {}

  // `deviceWords`: as StreamLanes::open(). With the GPU current, as the next.
  Status open(std::byte* deviceWords);
  // Requires: the program adds to no counter. kTryAgain: another thread is just at it.
  Result<DevicePost> tryPost(const StreamProgram& program);

 private:
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  std::mutex mutex_;
  PinnedPool pool_;  // under mutex_, as all below
  StreamLanes lanes_;
  CopyPoster copies_{pool_};
};

}  // namespace peerlane::stream
