// SPDX-License-Identifier: Apache-2.0
//
// HostStream: runs what is posted to it on a thread of its own, in order: the host's counterpart of
// a device stream. Each operation begins when the one before has ended. Thread-safe. Destruction
// waits for what was posted (cancel it first to be quick).
#pragma once

#include <memory>

#include "peerlane/core/status.h"

namespace peerlane {

class Pending;

class HostStream {
 public:
  static Result<std::unique_ptr<HostStream>> create();
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Library's own: queues an operation.
  void enqueue(std::shared_ptr<Pending> operation);

 private:
  struct State;
  explicit HostStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace peerlane
