// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_nic.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fake/software_gpu/software_device.h"

namespace peerlane::softgpu {
namespace {

struct Reported {
  std::string_view name;
  int ordering;
  int options;
};

constexpr Reported kAll[] = {
    {"ordered", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES,
     CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST | CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS},
    {"owner", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
     CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST},
    {"flush", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST},
    {"memops", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE,
     CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS},
    {"never", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, 0}};

const Reported& reported(int device) {
  const char* const asked = std::getenv("SOFTWARE_GPU_NIC_WRITES");
  if (asked == nullptr) return kAll[0];
  std::string_view rest = asked;
  for (size_t comma; device > 0 && (comma = rest.find(',')) != rest.npos; --device)
    rest.remove_prefix(comma + 1);
  for (const Reported& each : kAll)
    if (each.name == rest.substr(0, rest.find(','))) return each;
  std::fprintf(stderr,
               "software GPU: SOFTWARE_GPU_NIC_WRITES is '%s'; accepted: ordered, owner, flush, "
               "memops, never\n",
               asked);
  std::abort();
}

std::atomic<void (*)()> nicFlush{nullptr};
std::atomic<uint64_t> flushes{0};

}  // namespace

int nicWritesOrdering(int device) {
  return reported(device).ordering;
}

int nicFlushOptions(int device) {
  return reported(device).options;
}

void flushNicWritesNow() {
  ++flushes;
  if (void (*const flush)() = nicFlush.load()) flush();
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                    CUflushGPUDirectRDMAWritesScope scope) {
  if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX) return CUDA_ERROR_INVALID_VALUE;
  const int device = currentContext();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (nicWritesOrdering(device) >= static_cast<int>(scope)) return CUDA_SUCCESS;
  if ((nicFlushOptions(device) & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  flushNicWritesNow();
  return CUDA_SUCCESS;
}

void software_gpu_on_flush(void (*flush)()) {
  nicFlush = flush;
}

uint64_t software_gpu_flushes() {
  return flushes;
}

}  // extern "C"
