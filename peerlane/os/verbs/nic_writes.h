// SPDX-License-Identifier: Apache-2.0
//
// How what a NIC wrote into memory of a GPU becomes visible to kernels and copies of that GPU, as
// the CUDA driver says it. There in every build: one without CUDA answers kNotSupported.
// Thread-safe.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::cuda {

class PrimaryContext;

enum class NicWrites : uint8_t {
  kOrdered,    // who sees a later word of the NIC sees the bytes before it: nothing to do
  kByFlush,    // after flushNicWrites() by a thread of the host
  kByReading,  // after the NIC has read memory of the GPU; by no call of the host
};

// Of the GPU with this index. Errors: kNotSupported (no CUDA), kSystem.
Result<NicWrites> nicWritesOf(int gpu);
// For people: what has to be done between the bytes and the word that tells of them.
const char* textOf(NicWrites way);

// Returns when all earlier writes of NICs into memory of the GPU are visible to it. Takes
// microseconds. Errors: kSystem.
Status flushNicWrites(const PrimaryContext& gpu);
// The same of the GPU with this index, where nothing holds its context.
Status flushNicWrites(int gpu);

}  // namespace peerlane::cuda
