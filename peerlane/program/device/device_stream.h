// SPDX-License-Identifier: Apache-2.0
//
// DeviceStream: a stream of a GPU as its owner holds it (a cudaStream_t). A plain value. The owner
// must keep the stream until the call that posts to it returns, because the work is enqueued then.
// Engine: the means by which a GPU copies.
#pragma once

#include <cstdint>

namespace peerlane {

class DeviceStream {
 public:
  DeviceStream() = default;  // none: the library uses a stream of its own
  // `stream`: a cudaStream_t or CUstream; null is CUDA's default stream.
  static DeviceStream cuda(void* stream) {
    DeviceStream given;
    given.handle_ = stream;
    given.given_ = true;
    return given;
  }

  explicit operator bool() const { return given_; }
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
  bool given_ = false;
};

enum class Engine : uint8_t {
  kAuto,    // by size and count, from measured thresholds
  kCe,      // the copy engine: no multiprocessor is used
  kSm,      // a gather/scatter kernel: small scattered blocks at the speed of the link
  kInline,  // the same in one small launch: least latency
};

// "auto", "ce", "sm", "inline".
constexpr const char* engineName(Engine engine) {
  switch (engine) {
    case Engine::kAuto: return "auto";
    case Engine::kCe: return "ce";
    case Engine::kSm: return "sm";
    case Engine::kInline: return "inline";
  }
  return "unknown";
}

}  // namespace peerlane
