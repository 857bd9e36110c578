// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_error.h"

namespace peerlane::softgpu {
namespace {

thread_local cudaError_t lastError = cudaSuccess;

const char* textOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorDeviceUninitialized: return "invalid device context";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorIllegalState: return "the operation cannot be performed in the present state";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorOperatingSystem: return "OS call failed or operation not supported on this OS";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorPeerAccessNotEnabled: return "peer access has not been enabled";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorNotPermitted: return "operation not permitted";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    default: return "an error that the software GPU has no sentence for";
  }
}

}  // namespace

cudaError_t note(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady) lastError = result;
  return result;
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = lastError;
  lastError = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return lastError;
}

const char* cudaGetErrorString(cudaError_t error) {
  return textOf(error);
}

const char* cudaGetErrorName(cudaError_t error) {
  return textOf(error);
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = textOf(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  return cuGetErrorString(error, text);
}

}  // extern "C"
