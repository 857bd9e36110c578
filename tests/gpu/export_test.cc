// SPDX-License-Identifier: Apache-2.0
//
// GPU memory for devices that are no GPU: its forms, and that a dma-buf holds the very bytes. On
// GPUs in software the dma-buf is a file whose position is where it begins, so a test can read it;
// a real one is only made here.
#include <sys/mman.h>
#include <unistd.h>

#include "peerlane/memory/region_table.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{3} << 20;

Result<ExportedRange> exported(const Region& region, ExportForm form, uint64_t offset,
                               uint64_t bytes) {
  return region.record()->exportFor({.forms = {form}, .name = "a card"}, offset, bytes);
}

// As an importer would see `bytes` from the range's begin on.
std::vector<std::byte> readDmaBuf(const ExportedRange& range) {
  const auto begin = static_cast<uint64_t>(lseek(range.fd.get(), 0, SEEK_CUR));
  EXPECT_EQ(begin % range.pageBytes, 0u);
  EXPECT_LT(range.offset, range.pageBytes);
  std::vector<std::byte> bytes(range.bytes);
  EXPECT_EQ(
      pread(range.fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin + range.offset)),
      static_cast<ssize_t>(bytes.size()));
  return bytes;
}

void expectDmaBuf(const Region& region, uint64_t offset, uint64_t bytes) {
  auto made = exported(region, ExportForm::kDmaBuf, offset, bytes);
  if (!inSoftware() && made.status().code() == Code::kNotSupported) return;
  const ExportedRange range = must(std::move(made), "export");
  EXPECT_EQ(range.address, region.data() + offset);
  EXPECT_TRUE(range.fd);
  EXPECT_TRUE(range.allowsIova(reinterpret_cast<uint64_t>(range.address)));
  EXPECT_FALSE(range.mayBeInvalidated);
  if (!inSoftware()) return;
  std::vector<std::byte> there(bytes);
  mustCuda(cudaMemcpy(there.data(), range.address, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(readDmaBuf(range), there);
}

TEST(Export, ADmaBufIsOfTheRangeAskedFor) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    auto context = makeContext({gpu(0)});
    for (const Memory memory : {Memory::kMalloc, Memory::kOddOffset, Memory::kVmm, Memory::kPool}) {
      const Region region = makeRegion(*context, gpu(0), memory, kBytes);
      fill(region.data(), kBytes, 7);
      expectDmaBuf(region, 0, kBytes);
      expectDmaBuf(region, 4097, 100);
      expectDmaBuf(region, kBytes - 1, 1);
      must(context->unregister(region, kPatience), "unregister");
      EXPECT_EQ(exported(region, ExportForm::kDmaBuf, 0, 1).status().code(), Code::kNotSupported);
    }
  }));
}

TEST(Export, OtherForms) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    auto context = makeContext({gpu(0)});
    const Region region = makeRegion(*context, gpu(0), Memory::kMalloc, kBytes);
    const ExportedRange address =
        must(exported(region, ExportForm::kPeerAddress, 100, 50), "peer address");
    EXPECT_EQ(address.address, region.data() + 100);
    const ExportedRange handle = must(exported(region, ExportForm::kIpcHandle, 100, 50), "handle");
    EXPECT_EQ(handle.handle.size(), sizeof(cudaIpcMemHandle_t));
    EXPECT_EQ(handle.offset, 100u);
    for (const ExportForm form : {ExportForm::kAddress, ExportForm::kFile})
      EXPECT_EQ(exported(region, form, 0, 1).status().code(), Code::kNotSupported);
    const Region vmm = must(context->allocate(kBytes, {.device = gpu(0)}), "allocate");
    EXPECT_EQ(exported(vmm, ExportForm::kIpcHandle, 0, 1).status().code(), Code::kNotSupported);
  }));
}

TEST(Export, Facts) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    auto context = makeContext({gpu(0)});
    const Region region = makeRegion(*context, gpu(0), Memory::kOddOffset, kBytes);
    const MemoryFacts facts = must(region.record()->facts(), "facts");
    EXPECT_EQ(facts.device, gpu(0));
    EXPECT_FALSE(facts.isCpuMappable || facts.isCoherent || facts.mayBeInvalidated);
    EXPECT_NE(facts.allocationId, 0u);
    EXPECT_LT(facts.allocation.base, region.data());
    EXPECT_GE(facts.allocation.base + facts.allocation.bytes, region.data() + kBytes);
  }));
}

TEST(Export, ADriverWithoutDmaBufSaysSo) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "GPUs in software can be told to have none";
  EXPECT_TRUE(runOne([](const Line&) {
    setenv("SOFTWARE_GPU_DMA_BUF", "absent", 1);
    auto context = makeContext({gpu(0)});
    const Region region = makeRegion(*context, gpu(0), Memory::kMalloc, kBytes);
    const Importer card{.forms = {ExportForm::kDmaBuf, ExportForm::kPeerAddress}};
    const ExportedRange range = must(region.record()->exportFor(card, 0, kBytes), "export");
    EXPECT_EQ(range.form, ExportForm::kPeerAddress);
    EXPECT_NE(range.refused.find("dma-buf: the driver exports no dma-buf of cuda:0"),
              std::string::npos)
        << range.refused;
  }));
}

// Pinned host memory is the host's; a range that runs from there into a GPU's has two owners.
TEST(Export, ARangeOfTheHostAndOfAGpuIsRefused) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "addresses of GPUs in software lie beside others";
  EXPECT_TRUE(runOne([](const Line&) {
    auto context = makeContext({gpu(0)});
    void* raw = nullptr;
    mustCuda(cudaMalloc(&raw, kBytes), "cudaMalloc");
    auto* const gpuMemory = static_cast<std::byte*>(raw);
    void* const below = mmap(gpuMemory - 4096, 4096, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (below == MAP_FAILED) return;  // something lies there
    const Status refused =
        context->registerRegion(gpuMemory - 4096, 8192, Access::kRemoteRead).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find("provider \"cuda\""), std::string_view::npos)
        << refused.toString();
    EXPECT_NE(refused.message().find("provider \"host\""), std::string_view::npos)
        << refused.toString();
  }));
}

}  // namespace
}  // namespace peerlane::gputest
