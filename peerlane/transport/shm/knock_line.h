// SPDX-License-Identifier: Apache-2.0
//
// KnockLine: this end of the pair of sockets by which two processes wake each other, and over which
// one may give the other a descriptor. Thread-safe.
#pragma once

#include <functional>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class KnockLine {
 public:
  // `socket` is borrowed, and outlives the line. `heard` is called, by the thread that is in
  // take(), where that took bytes of knocks: the thread that sleeps at the socket does not see them
  // any more, and has to be woken.
  explicit KnockLine(int socket, std::function<void()> heard = {})
      : socket_(socket), heard_(std::move(heard)) {}

  // Takes the bytes of knock() out of the socket; a descriptor that came is kept for take(). False:
  // the other end is closed, no byte will come any more.
  bool drain() PEERLANE_EXCLUDES(mutex_);
  // Gives the peer a duplicate, and wakes it. Errors: kTryAgain (the socket is full, because the
  // peer sleeps), kPeerLost, ...
  Status give(const Fd& fd);
  // What the peer gave last; empty: nothing. Errors: kUnavailable (it came, and this process had no
  // descriptor left for it).
  Result<Fd> take() PEERLANE_EXCLUDES(mutex_);

 private:
  bool drainLocked(bool& heard) PEERLANE_REQUIRES(mutex_);

  const int socket_;
  const std::function<void()> heard_;
  Mutex mutex_;
  Fd given_ PEERLANE_GUARDED_BY(mutex_);
  bool isLost_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
