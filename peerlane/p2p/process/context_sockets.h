// SPDX-License-Identifier: Apache-2.0
//
// ContextSockets: the Unix sockets that the contexts of the C API have in PEERLANE_SOCKET_DIR, to
// be removed when the process exits: those contexts live as long as the process, so they never
// remove them. Abstract sockets end with the process. Thread-safe. Owner: ProcessContexts.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

class ContextSockets {
 public:
  // `atExit`: is registered with the C library once in a process, when there is a first socket.
  explicit ContextSockets(void (*atExit)()) : atExit_(atExit) {}

  // Remembers the sockets of the context in `directory`; empty: it has none.
  void add(const Context& context, const std::string& directory);
  // Removes all of them.
  void remove();

 private:
  void (*const atExit_)();
  Mutex mutex_;
  std::vector<std::string> paths_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
