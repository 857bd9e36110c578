// SPDX-License-Identifier: Apache-2.0
//
// Fd: the one owner of a file descriptor, and the event descriptor that wakes a sleeping thread.
// Not a stream and not a file: it never reads ahead. External synchronization required, except that
// signalEventFd may be called by any thread (and any process) at any time.
#pragma once

#include <cstdint>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

// Closes its descriptor exactly once. A moved-from, released or default Fd holds none (-1).
class Fd {
 public:
  Fd() = default;
  // Takes ownership of `fd`; -1 means none.
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes what is held and takes `fd` instead. Keeps errno.
  void reset(int fd = -1);

  // A second descriptor of the same open file (close-on-exec), with its own owner.
  Result<Fd> dup() const;
  Status setNonBlocking(bool on = true) const;

 private:
  int fd_ = -1;
};

// The same as Fd::dup for a descriptor that somebody else owns. Errors: kUnavailable where the
// process has no descriptor left.
Result<Fd> duplicateFd(int fd);

// An event descriptor: readable after signalEventFd until drainEventFd. Non-blocking,
// close-on-exec.
Result<Fd> makeEventFd();
// Makes `fd` readable. Already readable (even with a full counter) is success; a dead descriptor is
// ignored, because whoever owned it waits no more. Thread: any. Never blocks on a descriptor made
// here.
void signalEventFd(int fd);
// Makes `fd` unreadable again. Returns the number of signals taken, 0 when there was none.
uint64_t drainEventFd(int fd);

}  // namespace peerlane
