// SPDX-License-Identifier: Apache-2.0
//
// StreamQueue: the port queue of a GPU: a stream of its own for the copy engine. No multiprocessor
// is used, and words are stored by the copy engine, too, from a ring of values in pinned memory: so
// nothing of it stands behind a kernel where there are two hardware queues or more
// (DeviceExecutor::hasOneQueue). External synchronization required.
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/program/ring/port_queue.h"

namespace peerlane::stream {

// Errors: kSystem, kOutOfMemory.
Result<std::unique_ptr<PortQueue>> makeStreamQueue(std::shared_ptr<const cuda::PrimaryContext> gpu);

}  // namespace peerlane::stream
