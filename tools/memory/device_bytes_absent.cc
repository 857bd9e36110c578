// SPDX-License-Identifier: Apache-2.0
//
// tools/memory/device_bytes.h in a build without CUDA.
#include "tools/memory/device_bytes.h"

namespace peerlane {
namespace {

Status absent() {
  return Status(Code::kNotSupported, "this build has no GPU support");
}

}  // namespace

Status copyToDevice(const Device& /*device*/, std::byte* /*to*/,
                    std::span<const std::byte> /*from*/) {
  return absent();
}
Status copyFromDevice(const Device& /*device*/, std::span<std::byte> /*to*/,
                      const std::byte* /*from*/) {
  return absent();
}
Result<RuntimeMemory> allocateByRuntime(const Device& /*device*/, uint64_t /*bytes*/) {
  return absent();
}
Result<int> exportDmaBuf(const Device& /*device*/, const std::byte* /*at*/, uint64_t /*bytes*/) {
  return absent();
}
void RuntimeFree::operator()(std::byte* /*memory*/) const {}
void StreamEnd::operator()(void* /*stream*/) const {}
Result<RuntimeStream> makeRuntimeStream(const Device& /*device*/) {
  return absent();
}
Result<uint64_t> bytesInUse(const Device& /*device*/) {
  return absent();
}
Result<GpuPath> findGpuPath(int /*from*/, int /*to*/) {
  return absent();
}
CudaVersions cudaVersions() {
  return {};
}

}  // namespace peerlane
