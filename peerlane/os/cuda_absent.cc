// SPDX-License-Identifier: Apache-2.0
//
// os/cuda.h in a build without CUDA.
#include "peerlane/os/cuda.h"

namespace peerlane::cuda {
namespace {

Status absent() {
  return Status(Code::kNotSupported,
                "this build has no GPU support: nvcc was not found (PEERLANE_CUDA=on says why)");
}

}  // namespace

Result<std::vector<GpuFacts>> gpus() {
  return absent();
}
std::optional<int> currentGpu() {
  return std::nullopt;
}
Status available() {
  return absent();
}
std::optional<int> gpuOf(const void* /*address*/) {
  return std::nullopt;
}
uint64_t identityOf(const void* /*address*/) {
  return 0;
}
std::string versionText() {
  return "none (built without CUDA)";
}
Result<PrimaryContext> PrimaryContext::retain(int /*gpu*/) {
  return absent();
}
PrimaryContext::~PrimaryContext() = default;
CurrentContext::CurrentContext(const PrimaryContext& /*context*/) {}
CurrentContext::~CurrentContext() = default;

}  // namespace peerlane::cuda
