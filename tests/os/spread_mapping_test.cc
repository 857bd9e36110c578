// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/spread_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "peerlane/os/fd.h"

namespace peerlane {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kBoth = PROT_READ | PROT_WRITE;

Fd makeFile(size_t bytes) {
  Fd file(memfd_create("spread", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  return file;
}

// Pages of addresses that this process has.
uint64_t addressPages() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(SpreadMapping, MemoryOfAPeerNeverLiesAMultipleOf256MiBFromOurs) {
  for (const size_t bytes : {16 * kMiB, 256 * kMiB}) {
    const Fd file = makeFile(bytes);
    std::vector<void*> ours;
    std::vector<void*> theirs;
    for (int i = 0; i < 10; ++i) {
      ours.push_back(mapSpread(MemoryOf::kThisProcess, bytes, kBoth, file.get(), 0, 4096));
      theirs.push_back(mapSpread(MemoryOf::kPeer, bytes, kBoth, file.get(), 0, 4096));
    }
    for (void* here : ours)
      for (void* there : theirs) {
        ASSERT_NE(here, MAP_FAILED);
        ASSERT_NE(there, MAP_FAILED);
        const auto distance =
            reinterpret_cast<uintptr_t>(here) - reinterpret_cast<uintptr_t>(there);
        EXPECT_EQ(distance % (128 * kMiB), 64 * kMiB);
      }
    for (void* mapping : ours) EXPECT_EQ(munmap(mapping, bytes), 0);
    for (void* mapping : theirs) EXPECT_EQ(munmap(mapping, bytes), 0);
  }
}

TEST(SpreadMapping, KeepsNoAddressesButTheMapping) {
  const size_t bytes = 8 * kMiB;
  const Fd file = makeFile(bytes);
  const uint64_t before = addressPages();
  std::vector<void*> mappings;
  for (int i = 0; i < 20; ++i)
    mappings.push_back(mapSpread(MemoryOf::kPeer, bytes, kBoth, file.get(), 0, 4096));
  EXPECT_LE(addressPages(), before + 20 * bytes / 4096 + 64);
  for (void* mapping : mappings) EXPECT_EQ(munmap(mapping, bytes), 0);
  EXPECT_LE(addressPages(), before + 64);
}

TEST(SpreadMapping, ShowsTheFileFromTheOffset) {
  const size_t bytes = 8 * kMiB;
  const size_t offset = 3 * kMiB + 4096;
  const Fd file = makeFile(bytes);
  ASSERT_EQ(pwrite(file.get(), "here", 4, static_cast<off_t>(offset)), 4);
  void* mapping = mapSpread(MemoryOf::kPeer, bytes - offset, PROT_READ, file.get(), offset, 4096);
  ASSERT_NE(mapping, MAP_FAILED);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping) % (2 * kMiB), offset % (2 * kMiB));
  EXPECT_EQ(std::memcmp(mapping, "here", 4), 0);
  EXPECT_EQ(munmap(mapping, bytes - offset), 0);
}

TEST(SpreadMapping, SmallOnesAreLeftToTheKernel) {
  const Fd file = makeFile(4096);
  void* mapping = mapSpread(MemoryOf::kThisProcess, 4096, kBoth, file.get(), 0, 4096);
  ASSERT_NE(mapping, MAP_FAILED);
  EXPECT_EQ(munmap(mapping, 4096), 0);
}

TEST(SpreadMapping, AFailureCostsAddressesAtMost) {
  const uint64_t before = addressPages();
  errno = 0;
  EXPECT_EQ(mapSpread(MemoryOf::kPeer, 64 * kMiB, kBoth, -1, 0, 4096), MAP_FAILED);
  EXPECT_EQ(errno, EBADF);
  EXPECT_LE(addressPages(), before + 64 * kMiB / 4096 + 64);
}

}  // namespace
}  // namespace peerlane
