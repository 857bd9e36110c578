// SPDX-License-Identifier: Apache-2.0
//
// CrowdedProcess: makes this process as crowded as those of users are: a Python with its libraries
// and a model has thousands of mappings and many descriptors, and what grows with them is not seen
// in an empty process. Confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "peerlane/core/status.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

class CrowdedProcess {
 public:
  static constexpr size_t kMappings = 10000;
  static constexpr size_t kDescriptors = 1000;

  // Further mappings and descriptors, until the end of the object. Raises the soft limit of
  // descriptors. Errors: kUnavailable (a limit of the system, named).
  static Result<std::unique_ptr<CrowdedProcess>> create();
  ~CrowdedProcess();
  CrowdedProcess(const CrowdedProcess&) = delete;
  CrowdedProcess& operator=(const CrowdedProcess&) = delete;

 private:
  CrowdedProcess() = default;
  Status addMappings();
  Status addDescriptors();

  std::byte* mapped_ = nullptr;
  std::vector<Descriptor> descriptors_;
};

}  // namespace peerlane::bench
