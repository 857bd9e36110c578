// SPDX-License-Identifier: Apache-2.0
//
// What one launch of the copy kernel says for a program: shared by posts and by captured work.
#pragma once

#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

// Fills in what is to be copied. Descriptors and block numbers that do not fit the launch's
// parameters are written to `held`, taken from `pool`, which the kernel reads when it runs. A block
// number in device memory that is out of range makes the kernel store `faultValue` to `fault`.
Status describeCopies(const StreamProgram& program, const DeviceIndices& indices, uint64_t* fault,
                      uint64_t faultValue, PinnedPool& pool, kernel::CopyLaunch& launch,
                      PinnedBlock& held);

}  // namespace peerlane::stream
