// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/gpu_list.h"

#include <array>
#include <cstdio>
#include <string>

#ifdef PEERLANE_HAS_CUDA
#include "peerlane/memory/fabric_probe.h"
#endif
#include "peerlane/os/cuda.h"

namespace peerlane {
namespace {

// In the groups in which NVIDIA's own tools print it.
std::string uuidText(const std::array<uint8_t, 16>& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

}  // namespace

Result<std::vector<Gpu>> listGpus() {
  PEERLANE_ASSIGN(const auto found, cuda::gpus());
  std::vector<Gpu> gpus;
  for (const cuda::GpuFacts& facts : found)
    gpus.push_back({.index = facts.index,
                    .name = facts.name,
                    .busId = facts.busId,
                    .uuid = uuidText(facts.uuid),
                    .memoryBytes = facts.memoryBytes,
                    .computeMajor = facts.majorVersion,
                    .computeMinor = facts.minorVersion,
                    .exportsDescriptors = facts.exportsDescriptors,
                    .fabricHandles = facts.fabricHandles});
  return gpus;
}

Result<int> gpuOf(const void* pointer) {
  PEERLANE_RETURN_IF_ERROR(cuda::available());
  if (const auto gpu = cuda::gpuOf(pointer)) return *gpu;
  char text[24];
  std::snprintf(text, sizeof text, "%p", pointer);
  return Status(Code::kInvalidArgument,
                std::string("the memory at ") + text + " is no memory of a GPU");
}

Status tryFabricHandles(int gpu) {
  PEERLANE_ASSIGN(const auto held, cuda::PrimaryContext::retain(gpu));
#ifdef PEERLANE_HAS_CUDA
  return tryFabric(held);
#else
  return cuda::available();
#endif
}

std::string cudaVersionText() {
  return cuda::versionText();
}

}  // namespace peerlane
