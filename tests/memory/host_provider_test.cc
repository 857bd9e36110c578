// SPDX-License-Identifier: Apache-2.0
//
// What the host provider says about every kind of memory a process can have. Whether a kind counts
// as shared decides between mapping and copying, so each answer is checked.
#include "peerlane/memory/host_provider.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/memory/memory_providers.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/fake_provider.h"
#include "tests/os/kernel_answers.h"
#include "tests/os/quiet_place.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;

// A mapping that ends with its object.
class Mapping {
 public:
  Mapping(size_t bytes, int protection, int flags, int fd = -1, off_t offset = 0)
      : bytes_(bytes), at_(mmap(quietPlace(bytes), bytes, protection, flags, fd, offset)) {
    EXPECT_NE(at_, MAP_FAILED) << std::strerror(errno);
  }
  ~Mapping() { munmap(at_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(at_); }

 private:
  size_t bytes_;
  void* at_;
};

MemoryDescription classified(const void* pointer, size_t bytes) {
  HostProvider provider;
  auto claim = provider.acquire(pointer, bytes, 0);
  EXPECT_TRUE(claim.isOk() && claim->held) << claim.status().toString();
  if (!claim.isOk() || !claim->held) return {};
  return MUST(claim->held->describe());
}

Fd memfd(unsigned flags, size_t bytes) {
  Fd fd(memfd_create("host-provider-test", flags | MFD_CLOEXEC));
  EXPECT_TRUE(fd);
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

// Written pages of a private view of a file look like memory of no file where the kernel does not
// answer for one address (before Linux 6.11), and a cut takes them away, too.
TEST(HostProvider, WhatMayBeAFilesMayBeCutOnEveryKernel) {
  const Fd fd = memfd(0, 2 * kPage);
  const Mapping copyOnWrite(2 * kPage, kReadWrite, MAP_PRIVATE, fd.get());
  std::memset(copyOnWrite.data(), 1, 2 * kPage);
  EXPECT_TRUE(classified(copyOnWrite.data(), 2 * kPage).mayBeCut);
  withoutAnswers([&] { EXPECT_TRUE(classified(copyOnWrite.data(), 2 * kPage).mayBeCut); });
}

TEST(HostProvider, HeapAndStackArePrivate) {
  const std::vector<std::byte> heap(3 * kPage);
  const MemoryDescription small = classified(heap.data() + 5, 100);
  EXPECT_EQ(small.kind, MemoryKind::kPrivate);
  EXPECT_TRUE(small.writable);
  EXPECT_FALSE(small.backing);
  EXPECT_EQ(small.text.rfind("private memory", 0), 0u) << small.text;
  EXPECT_EQ(small.mayBeCut, !doesKernelAnswer());
  const int onStack = 0;
  EXPECT_EQ(classified(&onStack, sizeof(onStack)).kind, MemoryKind::kPrivate);
}

TEST(HostProvider, PrivateMappingsArePrivate) {
  const Mapping anonymous(2 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_EQ(classified(anonymous.data(), 2 * kPage).kind, MemoryKind::kPrivate);
  const Fd fd = memfd(MFD_ALLOW_SEALING, kPage);
  const Mapping copyOnWrite(kPage, kReadWrite, MAP_PRIVATE, fd.get());
  EXPECT_EQ(classified(copyOnWrite.data(), kPage).kind, MemoryKind::kPrivate)
      << "writes to it do not reach the file";
  EXPECT_EQ(classified(anonymous.data(), 2 * kPage).mayBeCut, !doesKernelAnswer());
  EXPECT_TRUE(classified(copyOnWrite.data(), kPage).mayBeCut) << "pages that nobody wrote go";
}

TEST(HostProvider, ReadOnlyMemoryIsSaidToBeSo) {
  const Mapping readOnly(kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_FALSE(classified(readOnly.data(), kPage).writable);
  // Read-only in part is read-only as a whole, or no valid range at all, but never writable.
  const Mapping mixed(2 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  ASSERT_EQ(mprotect(mixed.data() + kPage, kPage, PROT_READ), 0);
  HostProvider provider;
  const auto both = provider.acquire(mixed.data(), 2 * kPage, 0);
  if (both.isOk()) {
    EXPECT_FALSE(MUST(both->held->describe()).writable);
  }
}

TEST(HostProvider, ASealableMemfdIsSharedSealedAndFoundAtItsOffset) {
  const Fd fd = memfd(MFD_ALLOW_SEALING, 4 * kPage);
  const Mapping mapping(4 * kPage, kReadWrite, MAP_SHARED, fd.get());
  const MemoryDescription found = classified(mapping.data() + kPage + 100, kPage);
  EXPECT_EQ(found.kind, MemoryKind::kShared) << found.text;
  ASSERT_TRUE(found.backing);
  EXPECT_EQ(found.fdOffset, kPage + 100);
  EXPECT_NE(fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK, 0) << "peers could be killed by SIGBUS";
  EXPECT_NE(ftruncate(fd.get(), kPage), 0);
  EXPECT_FALSE(found.mayBeCut);
  // The descriptor means the same memory.
  mapping.data()[kPage + 100] = std::byte{0x5c};
  std::byte seen{};
  ASSERT_EQ(pread(found.backing.get(), &seen, 1, kPage + 100), 1);
  EXPECT_EQ(seen, std::byte{0x5c});
}

TEST(HostProvider, AMemfdThatRefusesSealsIsNotMappedByPeersAndSaysWhy) {
  const Fd fd = memfd(0, kPage);
  const Mapping mapping(kPage, kReadWrite, MAP_SHARED, fd.get());
  const MemoryDescription found = classified(mapping.data(), kPage);
  EXPECT_EQ(found.kind, MemoryKind::kPrivate);
  EXPECT_FALSE(found.backing);
  EXPECT_NE(found.text.find("not mapped by peers"), std::string::npos) << found.text;
  EXPECT_TRUE(found.mayBeCut);
}

// Also where it begins in memory of no file, by which its kind is named.
TEST(HostProvider, AViewOfAFileMayBeCut) {
  const Fd fd = memfd(0, kPage);
  const Mapping mapping(2 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_EQ(classified(mapping.data(), 2 * kPage).mayBeCut, !doesKernelAnswer());
  ASSERT_NE(mmap(mapping.data() + kPage, kPage, kReadWrite, MAP_PRIVATE | MAP_FIXED, fd.get(), 0),
            MAP_FAILED);
  EXPECT_TRUE(classified(mapping.data(), 2 * kPage).mayBeCut);
  EXPECT_TRUE(classified(mapping.data() + kPage, kPage).mayBeCut);
  EXPECT_EQ(classified(mapping.data(), kPage).mayBeCut, !doesKernelAnswer());
}

TEST(HostProvider, AFileBelowDevShmIsNotMappedByPeersBecauseItMayShrink) {
  const std::string name = "/peerlane-host-provider-test-" + std::to_string(getpid());
  const Fd fd(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_TRUE(fd) << std::strerror(errno);
  shm_unlink(name.c_str());
  ASSERT_EQ(ftruncate(fd.get(), kPage), 0);
  const Mapping mapping(kPage, kReadWrite, MAP_SHARED, fd.get());
  const MemoryDescription found = classified(mapping.data(), kPage);
  EXPECT_EQ(found.kind, MemoryKind::kPrivate);
  EXPECT_NE(found.text.find("shared memory"), std::string::npos) << found.text;
  EXPECT_NE(found.text.find("not mapped by peers"), std::string::npos) << found.text;
}

TEST(HostProvider, SharedAnonymousMemoryIsUsable) {
  const Mapping mapping(kPage, kReadWrite, MAP_SHARED | MAP_ANONYMOUS);
  const MemoryDescription found = classified(mapping.data(), kPage);
  EXPECT_TRUE(found.writable);
  EXPECT_EQ(found.kind == MemoryKind::kShared, static_cast<bool>(found.backing)) << found.text;
}

TEST(HostProvider, UnmappedMemoryIsAnErrorThatNamesTheAddress) {
  std::byte* gone = nullptr;
  {
    const Mapping mapping(2 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
    gone = mapping.data();
  }
  HostProvider provider;
  const auto refused = provider.acquire(gone, kPage, 0);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  char address[32];
  std::snprintf(address, sizeof(address), "%zx", reinterpret_cast<size_t>(gone));
  EXPECT_NE(refused.status().message().find(address), std::string_view::npos)
      << refused.status().toString();
}

TEST(HostProvider, AHoleInTheRangeIsAnError) {
  const Mapping mapping(3 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  ASSERT_EQ(munmap(mapping.data() + kPage, kPage), 0);
  HostProvider provider;
  EXPECT_TRUE(provider.acquire(mapping.data(), kPage, 0).isOk());
  EXPECT_FALSE(provider.acquire(mapping.data(), kPage + 1, 0).isOk());
  EXPECT_FALSE(provider.acquire(mapping.data(), 3 * kPage, 0).isOk());
  // PROT_NONE is a hole for everybody who reads.
  const Mapping guarded(2 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  ASSERT_EQ(mprotect(guarded.data() + kPage, kPage, PROT_NONE), 0);
  EXPECT_FALSE(provider.acquire(guarded.data(), 2 * kPage, 0).isOk());
}

TEST(HostProvider, MakesZeroedSharedMemory) {
  HostProvider provider;
  const auto made = provider.allocate(3 * kPage + 17, {});
  ASSERT_TRUE(made.isOk()) << made.status().toString();
  EXPECT_EQ((*made)->bytes(), 3 * kPage + 17);
  for (size_t i = 0; i < (*made)->bytes(); ++i) ASSERT_EQ((*made)->data()[i], std::byte{0});
  EXPECT_FALSE(MUST((*made)->describe()).mayBeCut);
  const MemoryDescription found = classified((*made)->data(), (*made)->bytes());
  EXPECT_EQ(found.kind, MemoryKind::kShared) << found.text;
  EXPECT_EQ(found.fdOffset, 0u);
}

TEST(HostProvider, HugePagesAreMadeOrRefusedAsReserved) {
  std::ifstream file("/proc/sys/vm/nr_hugepages");
  int reserved = 0;
  file >> reserved;
  AllocateOptions options;
  options.hugePages = HugePages::kOn;
  HostProvider provider;
  const auto made = provider.allocate(size_t{2} << 20, options);
  if (reserved > 0 && made.isOk()) {
    EXPECT_EQ(classified((*made)->data(), (*made)->bytes()).kind, MemoryKind::kShared);
  } else {
    ASSERT_FALSE(made.isOk());
    EXPECT_EQ(made.status().code(), Code::kUnavailable) << made.status().toString();
  }
}

TEST(HostProvider, OtherDevicesAreNotItsBusiness) {
  HostProvider provider;
  AllocateOptions options;
  options.device = {DeviceKind::kCuda, 0};
  const auto refused = provider.allocate(kPage, options);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_NE(refused.status().message().find("cuda:0"), std::string_view::npos);
}

TEST(MemoryProviders, AsksInOrderAndRefusesNonsense) {
  MemoryProviders none;
  const int value = 0;
  EXPECT_EQ(none.acquire(&value, 4).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(none.allocate(4, {}).status().code(), Code::kNotSupported);
  EXPECT_EQ(none.add(nullptr).status().code(), Code::kInvalidArgument);

  MemoryProviders providers;
  EXPECT_OK(providers.add(std::make_shared<FakeProvider>("makes nothing")).status());
  EXPECT_OK(providers.add(std::make_shared<HostProvider>(), 0).status());
  EXPECT_TRUE(providers.allocate(4, {}).isOk()) << "the one that can";
  EXPECT_EQ(providers.acquire(nullptr, 4).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(providers.acquire(&value, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(providers.acquire(&value, SIZE_MAX).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(providers.allocate(0, {}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane
