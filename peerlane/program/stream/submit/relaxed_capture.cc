// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/relaxed_capture.h"

#include <cuda_runtime_api.h>

namespace peerlane::stream {
namespace {

// Returns the mode before.
int exchange(int mode) {
  auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
  (void)cudaThreadExchangeStreamCaptureMode(&exchanged);
  return exchanged;
}

}  // namespace

RelaxedCapture::RelaxedCapture() : mode_(exchange(cudaStreamCaptureModeRelaxed)) {}
RelaxedCapture::~RelaxedCapture() {
  (void)exchange(mode_);
}

}  // namespace peerlane::stream
