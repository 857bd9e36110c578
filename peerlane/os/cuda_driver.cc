// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/cuda_driver.h"

namespace peerlane::cuda {
namespace {

// The entry whose signature is that of `version`; null when the driver does not know it.
void* find(const char* name, unsigned version, cudaError_t& error) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  error = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
  (void)version;
  error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : nullptr;
}

Result<const Driver*> load() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
    return Status(Code::kNotSupported, "no CUDA driver on this machine (libcuda.so.1)");
  static Driver loaded;
  cudaError_t error = cudaSuccess;
#define PEERLANE_CUDA_LOAD(name, since)                                                         \
  loaded.name = reinterpret_cast<decltype(loaded.name)>(find(#name, since, error));             \
  if (loaded.name == nullptr)                                                                   \
    return Status(Code::kNotSupported, "the CUDA driver (version " + std::to_string(version) +  \
                                           ") has no " #name " (" + cudaGetErrorString(error) + \
                                           ")");
  PEERLANE_CUDA_ENTRIES(PEERLANE_CUDA_LOAD)
#undef PEERLANE_CUDA_LOAD
  if (const CUresult result = loaded.cuInit(0); result != CUDA_SUCCESS) {
    const char* text = nullptr;
    loaded.cuGetErrorString(result, &text);
    return Status(Code::kNotSupported,
                  std::string("the CUDA driver does not start: ") + (text != nullptr ? text : "?"));
  }
  return static_cast<const Driver*>(&loaded);
}

}  // namespace

const Result<const Driver*>& driver() {
  // Never destroyed: threads of ours may still run while the process exits.
  static const auto* const loaded = new Result<const Driver*>(load());
  return *loaded;
}

Status check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  const char* text = nullptr;
  api().cuGetErrorString(result, &text);
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kOutOfMemory
                    : result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED
                        ? Code::kNotSupported
                        : Code::kSystem;
  return Status(code, std::string(what) + ": " + (text != nullptr ? text : "unknown error") + " (" +
                          std::to_string(static_cast<int>(result)) + ")");
}

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  const Code code = result == cudaErrorMemoryAllocation ? Code::kOutOfMemory
                    : result == cudaErrorNotSupported   ? Code::kNotSupported
                                                        : Code::kSystem;
  return Status(code, std::string(what) + ": " + cudaGetErrorString(result) + " (" +
                          std::to_string(static_cast<int>(result)) + ")");
}

}  // namespace peerlane::cuda
