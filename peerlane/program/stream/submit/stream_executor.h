// SPDX-License-Identifier: Apache-2.0
//
// StreamExecutor: runs programs on CUDA streams of one GPU, by the copy engine or by kernels. It
// keeps a submission queue (SubmissionQueue) for each stream that it has seen, and answers every
// post with the number that the stream will store. Thread-safe: a thread holds one lock while it
// enqueues work, because the numbers of a stream must be in the order of its work; the driver locks
// as well.
#pragma once

#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/stream/queues/counter_words.h"

namespace peerlane::stream {

// `counters`: one for all devices of a context. Loads every kernel and makes in advance everything
// whose first use would be slow or wait for the GPU: words, pinned memory, streams, and the first
// import of GPU memory. Tens of milliseconds, about 4 MiB of device memory.
Result<std::shared_ptr<DeviceExecutor>> makeStreamExecutor(
    std::shared_ptr<const cuda::PrimaryContext> gpu, const Config& config,
    std::shared_ptr<SharedCounterWords> counters);

}  // namespace peerlane::stream
