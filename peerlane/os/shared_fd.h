// SPDX-License-Identifier: Apache-2.0
//
// SharedFd: a descriptor of memory that many regions hold at once. The pieces of one file share
// one, so that a model's thousands of tensors in one memfd cost this process one descriptor and not
// thousands. A value; the last copy closes the descriptor. Thread: any, each copy by one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class SharedFd {
 public:
  SharedFd() = default;
  // Of this object and its copies alone.
  SharedFd(Fd fd) : fd_(fd ? std::make_shared<const Fd>(std::move(fd)) : nullptr) {}

  // The one that this process has of the same file with the same rights already; then `fd` is
  // closed. Else `fd`, which others share from now on.
  static SharedFd ofFile(Fd fd);
  // One that others share, of the file with these numbers; it may be written if `writable`. Empty:
  // none is. For looking before a descriptor is made.
  static SharedFd known(uint64_t device, uint64_t inode, bool writable);

  int get() const { return fd_ ? fd_->get() : -1; }
  explicit operator bool() const { return get() >= 0; }
  void reset() { fd_.reset(); }
  // A descriptor of its own, to be sent or mapped.
  Result<Fd> dup() const { return duplicateFd(get()); }
  // For those who keep it.
  const std::shared_ptr<const Fd>& shared() const { return fd_; }

 private:
  explicit SharedFd(std::shared_ptr<const Fd> fd) : fd_(std::move(fd)) {}

  std::shared_ptr<const Fd> fd_;
};

}  // namespace peerlane
