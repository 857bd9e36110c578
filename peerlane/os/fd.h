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
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it. keepFromChildren() ends.
  [[nodiscard]] int release();
  // Closes what is held and takes `fd` instead. Keeps errno.
  void reset(int fd = -1);

  // A second descriptor of the same open file (close-on-exec), with its own owner.
  Result<Fd> dup() const;

 private:
  int fd_ = -1;
};

// A connection ends with the last descriptor of its socket, so a forked child that holds one keeps
// the connections of a dead parent alive. From now until it is closed or released, `fd` and its
// duplicates are /dev/null in each new child. Descriptors from 2^20 on are not kept from children.
void keepFromChildren(int fd);
// No process is forked while it lives: between making a descriptor and keepFromChildren().
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

// The same as Fd::dup for a descriptor of another owner. Errors: kUnavailable where the process has
// no descriptor left.
Result<Fd> duplicateFd(int fd);

// An event descriptor: readable after signalEventFd until drainEventFd. Non-blocking,
// close-on-exec.
Result<Fd> makeEventFd();
// Makes `fd` readable. Already readable (even with a full counter) is success; a dead descriptor is
// ignored, because its owner no longer waits. Thread: any. Never blocks on a descriptor made here.
void signalEventFd(int fd);
// Sends one byte to a Unix socket, which may belong to a stranger: the call neither blocks nor
// raises a signal. A full socket is success, because it is readable; so is a dead one or a
// descriptor that is no socket, because no thread waits at it. False: the system had no memory for
// the byte, and the caller must send it again. Thread: any.
bool knock(int socket);
// Makes `fd` unreadable again. Returns the number of signals taken, 0 when there was none.
uint64_t drainEventFd(int fd);

}  // namespace peerlane
