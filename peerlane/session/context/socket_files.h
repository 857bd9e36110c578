// SPDX-License-Identifier: Apache-2.0
//
// SocketFile: the file of a Unix socket in PEERLANE_SOCKET_DIR. It goes with its owner, at the
// process's exit where the owner is still there, and when removeSocketFiles() is called. A forked
// child leaves the files of its parent alone. No lock, because a handler of a signal may look at
// the files at any moment. Files of processes that were killed: removeStaleSockets() (os/socket).
#pragma once

#include <utility>

#include "peerlane/os/socket_address.h"

namespace peerlane {

class SocketFile {
 public:
  SocketFile() = default;  // none
  // Of a socket that is bound to `address`; none where that is no path.
  explicit SocketFile(const SocketAddress& address);
  SocketFile(SocketFile&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  SocketFile& operator=(SocketFile&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~SocketFile();

  struct Entry;

 private:
  Entry* entry_ = nullptr;
};

// Deletes those of all contexts of this process. Async-signal-safe.
void removeSocketFiles();

}  // namespace peerlane
