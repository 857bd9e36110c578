// SPDX-License-Identifier: Apache-2.0
//
// The contract of all links, held by the one between GPUs: it maps everything, performs nothing,
// and leaves the rights to the initiator. With the addresses of one process, and with descriptors
// as between two.
#include <cuda_runtime_api.h>

#include "peerlane/memory/cuda_mapping.h"
#include "peerlane/os/cuda.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_transport.h"
#include "tests/contract/transport_pair.h"

namespace peerlane {
namespace {

using Gpu = std::shared_ptr<const cuda::PrimaryContext>;

void must(cudaError_t error) {
  PEERLANE_CHECK(error == cudaSuccess);
}

// Copies as the GPU of one side does. A word is stored or read by a copy that nothing overtakes.
class CudaPath final : public DataPath {
 public:
  explicit CudaPath(Gpu gpu) : gpu_(std::move(gpu)) {}

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    const cuda::CurrentContext current(*gpu_);
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    must(cudaStreamSynchronize(nullptr));
  }
  uint64_t load(const std::byte* word) override {
    uint64_t value = 0;
    copy(reinterpret_cast<std::byte*>(&value), word, sizeof(value));
    return value;
  }
  void store(std::byte* word, uint64_t value, Width width) override {
    copy(word, reinterpret_cast<const std::byte*>(&value), width == Width::k64 ? 8 : 4);
  }
  // Nobody else adds to the word.
  void add(std::byte* word, uint64_t value) override {
    const std::lock_guard lock(mutex_);
    store(word, load(word) + value, Width::k64);
  }

 private:
  const Gpu gpu_;
  std::mutex mutex_;
};

class CudaIpcPair final : public TransportPair {
 public:
  CudaIpcPair(const Gpu& a, const Gpu& b, bool sameProcess)
      : TransportPair(makeCudaIpcTransport({a}), makeCudaIpcTransport({b}), Config(), true,
                      sameProcess),
        gpus_{a, b},
        paths_{CudaPath(a), CudaPath(b)} {}

  LinkMemory allocate(int side, size_t bytes) override {
    // In the middle of an allocation.
    constexpr size_t kOffset = 192;
    auto mapping = CudaMapping::create(kOffset + bytes, *gpus_[side]).value();
    const cuda::CurrentContext current(*gpus_[side]);
    LinkMemory memory;
    memory.bytes = {mapping->data() + kOffset, bytes};
    memory.fdOffset = kOffset;
    memory.kind = MemoryKind::kCudaDescriptor;
    memory.backing = exportDescriptor(mapping->data()).value();
    memory.device = {DeviceKind::kCuda, gpus_[side]->gpu()};
    memory.backingBytes = mapping->bytes();
    memory.identity = cuda::identityOf(mapping->data());
    memory.owner = std::move(mapping);
    return memory;
  }
  DataPath& dataPath(int side) override { return paths_[side]; }

 private:
  const Gpu gpus_[2];
  CudaPath paths_[2];
};

MakeLinkPair cudaIpc(bool sameProcess) {
  return [sameProcess]() -> std::unique_ptr<LinkPair> {
    const auto gpus = cuda::gpus();
    if (!gpus.isOk() || gpus->empty()) return nullptr;
    const auto retained = [](int gpu) {
      return std::make_shared<const cuda::PrimaryContext>(
          cuda::PrimaryContext::retain(gpu).value());
    };
    const Gpu first = retained(0);
    return std::make_unique<CudaIpcPair>(first, gpus->size() > 1 ? retained(1) : first,
                                         sameProcess);
  };
}

INSTANTIATE_TEST_SUITE_P(CudaIpc, LinkContract, testing::Values(cudaIpc(false)));
INSTANTIATE_TEST_SUITE_P(CudaIpcInOneProcess, LinkContract, testing::Values(cudaIpc(true)));
// Performed by an agent, checked by the owner, on their way: not where everything is mapped.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgentLinkContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerLinkContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireLinkContract);

}  // namespace
}  // namespace peerlane
