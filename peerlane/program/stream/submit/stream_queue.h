// SPDX-License-Identifier: Apache-2.0
//
// StreamQueue: the port queue of a GPU: a stream of its own for the copy engine. It uses no
// multiprocessor, and the stream itself stores the words: so no work of the queue waits for a
// kernel where there are two hardware queues or more (DeviceExecutor::hasOneQueue). External
// synchronization required.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/program/ring/port_queue.h"

namespace peerlane::stream {

// Errors: kSystem, kOutOfMemory.
Result<std::unique_ptr<PortQueue>> makeStreamQueue(std::shared_ptr<const cuda::PrimaryContext> gpu);

}  // namespace peerlane::stream
