// SPDX-License-Identifier: Apache-2.0
//
// RelaxedCapture: while it lives, the calling thread's CUDA calls are legal although another thread
// captures a stream, and do not end that capture. Confined to one thread.
#pragma once

namespace peerlane::stream {

class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_;  // cudaStreamCaptureMode, of the thread before
};

}  // namespace peerlane::stream
