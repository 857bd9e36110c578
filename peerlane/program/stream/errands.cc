// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/errands.h"

#include <algorithm>

#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {
namespace {

constexpr uint32_t kStreams = 2;

// Neither that of most streams nor the greatest, which others like to take for what they wait on.
Result<int> ownPriority() {
  int least = 0, greatest = 0;
  PEERLANE_RETURN_IF_ERROR(cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                       "cudaDeviceGetStreamPriorityRange"));
  return greatest + 1 < 0 ? greatest + 1 : greatest;
}

}  // namespace

Status Errands::open(std::byte* deviceWords) {
  PEERLANE_ASSIGN(const int priority, ownPriority());
  return lanes_.open(deviceWords, kStreams, priority);
}

Result<DevicePost> Errands::tryPost(const StreamProgram& program) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return Status(Code::kTryAgain, "another thread is posting");
  PEERLANE_ASSIGN(StreamLane* const lane, lanes_.of({}));
  return copies_.post(program, *lane, {}, nullptr);
}

}  // namespace peerlane::stream
