// SPDX-License-Identifier: Apache-2.0
//
// HostStream: runs the operations that are posted to it on a thread of its own, in order: the
// host's counterpart of a device stream. Each operation begins when the one before has ended.
// Thread-safe. The destructor waits for everything that was posted (cancel it first to be quick).
#pragma once

#include <memory>

#include "peerlane/core/status.h"

namespace peerlane {

class Operation;

class HostStream {
 public:
  static Result<std::unique_ptr<HostStream>> create();
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // For the library alone: queues an operation.
  void enqueue(std::shared_ptr<Operation> operation);

 private:
  struct State;
  explicit HostStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace peerlane
