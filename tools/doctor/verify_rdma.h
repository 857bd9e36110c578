// SPDX-License-Identifier: Apache-2.0
//
// `peerlane doctor --verify-rdma`: whether one NIC really moves the bytes of one kind of memory, by
// each way of registering it. Takes some seconds. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "tools/doctor/doctor_checks.h"

namespace peerlane {

// Tries every way in which `device` ("mlx5_0", "mlx5_0:1") may come to memory of `place` ("host",
// "cuda:0"), and a put and a get between two processes over it; each byte is compared.
struct RdmaVerdict {
  std::vector<Finding> findings;
  Status best;  // OK: the best way worked, and so did the link
};
// Errors: the memory or the device is not there.
Result<RdmaVerdict> verifyRdma(const Config& config, const std::string& place,
                               const std::string& device);

}  // namespace peerlane
