// SPDX-License-Identifier: Apache-2.0
//
// RelaxedCapture: while it lives, the calling thread's CUDA calls are legal although another thread
// captures a stream, and do not end that capture. Confined to one thread.
#pragma once

#include <cuda_runtime_api.h>

namespace peerlane::stream {

class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace peerlane::stream
