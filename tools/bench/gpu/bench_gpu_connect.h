// SPDX-License-Identifier: Apache-2.0
//
// `bench connect` on GPUs: the time from connect() in a warm context until the peer saw the first
// bytes, and the device memory that one more peer costs. External synchronization required.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/gpu/bench_gpu_pair.h"

namespace peerlane::bench {

struct GpuConnectTimes {
  Samples firstByte;  // microseconds
  Samples connectOnly;
  uint64_t wrong = 0;
};
Result<GpuConnectTimes> measureGpuConnect(GpuPair& pair, uint64_t warmup, uint64_t samples);

// Bytes of device memory per further peer of one process: the slope over 32 peers, each used in
// both directions.
Result<double> measureGpuPeerBytes(GpuPair& pair);

// The child's part.
class GpuConnectPartner {
 public:
  explicit GpuConnectPartner(GpuSide& side) : side_(side) {}
  Status accept(GpuPipe& pipe, const AcceptRequest& request);
  Status makeExtra(GpuPipe& pipe, uint64_t count);
  Status connectExtra(GpuPipe& pipe, const std::string& ticket);
  Status dropExtra(GpuPipe& pipe);

 private:
  struct Extra {
    std::unique_ptr<Context> context;
    Peer peer;
  };
  GpuSide& side_;
  std::vector<Extra> extra_;
};

}  // namespace peerlane::bench
