// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one launch of the gather/scatter kernel for a program; posts and captured work
// share it.
#pragma once

#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

// Fills in the places of the copies. Descriptors and block numbers that do not fit the launch's
// parameters go to `held`, a block taken from `pool`; the kernel reads it when it runs. A block
// number in device memory that is out of range makes the kernel store `faultValue` to `fault`.
Status describeCopies(const StreamProgram& program, const DeviceIndices& indices, uint64_t* fault,
                      uint64_t faultValue, PinnedPool& pool, kernel::CopyLaunch& launch,
                      PinnedBlock& held);

}  // namespace peerlane::stream
