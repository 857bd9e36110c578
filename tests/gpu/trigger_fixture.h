// SPDX-License-Identifier: Apache-2.0
//
// What tests of triggered queues of a GPU begin with: two contexts of one process that both use it,
// and streams.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/channel/trigger/triggered_queue.h"
#include "tests/channel/context_pair.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

inline constexpr Device kTriggerGpu{DeviceKind::kCuda, 0};

class TriggerStreamOfTest {
 public:
  TriggerStreamOfTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TriggerStreamOfTest() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  TriggerStreamOfTest(const TriggerStreamOfTest&) = delete;
  TriggerStreamOfTest& operator=(const TriggerStreamOfTest&) = delete;
  cudaStream_t get() const { return stream_; }
  operator DeviceStream() const { return DeviceStream::cuda(stream_); }
  void synchronize() const { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  bool isBusy() const { return cudaStreamQuery(stream_) == cudaErrorNotReady; }

 private:
  cudaStream_t stream_ = nullptr;
};

struct TriggerPair {
  explicit TriggerPair(std::vector<std::string> links) {
    Config config;
    config.links = std::move(links);
    ContextOptions options;
    options.config = config;
    options.devices = {kTriggerGpu};
    a = MUST(Context::create(options));
    b = MUST(Context::create(options));
    toB = MUST(a->connect(b->ticket(), kSoon));
    toA = MUST(b->accept(kSoon));
  }
  std::unique_ptr<Context> a, b;
  Peer toB, toA;
};

}  // namespace peerlane::gputest
