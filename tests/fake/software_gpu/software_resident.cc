// SPDX-License-Identifier: Apache-2.0
//
// The resident kernel on the software GPU: the same source, with a thread for each block.
#include <thread>
#include <vector>

#include "peerlane/program/kernel/resident/resident_kernel.h"
#include "peerlane/program/words/team.h"
#include "tests/fake/software_gpu/software_kernel.h"

namespace peerlane::kernel {

Status loadResidentKernel() {
  return load(kResidentKernels);
}

Status launchResident(const ResidentLaunch& launch) {
  softgpu::loadLazily(loadedHere(kResidentKernels).exchange(true));
  return launched(softgpu::launchKernel(launch.stream,
                                        [launch](int) {
                                          std::vector<std::thread> blocks;
                                          for (uint32_t i = 0; i < launch.blocks; ++i)
                                            blocks.emplace_back([&launch, i] {
                                              port::ResidentRequest request;
                                              port::residentBlock(port::ThisThread{}, launch.job, i,
                                                                  launch.blocks, request);
                                            });
                                          for (std::thread& block : blocks) block.join();
                                        }),
                  "launching the resident kernel");
}

}  // namespace peerlane::kernel
