// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/shm_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/file.h"
#include "peerlane/os/mappings/adopted_mapping.h"
#include "tests/os/child_process.h"
#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;

std::unique_ptr<SharedSegment> makeSegment(size_t bytes, const SegmentOptions& options = {}) {
  auto segment = SharedSegment::create(bytes, options);
  EXPECT_TRUE(segment.isOk()) << segment.status().toString();
  return std::move(segment).value();
}

Fd makeMemfd(size_t bytes, unsigned flags) {
  Fd fd(::memfd_create("peerlane-test", flags | MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

Code importCode(Fd fd, size_t bytes, uint64_t offset, bool writable) {
  return SharedSegment::import(std::move(fd), bytes, offset, writable).status().code();
}

TEST(SharedSegment, IsZeroedWritableAndNamed) {
  auto segment = makeSegment(10'000, {.name = "peerlane-named"});
  EXPECT_EQ(segment->bytes(), 10'000u);
  EXPECT_EQ(segment->pageBytes(), kPage);
  EXPECT_TRUE(segment->writable());
  for (size_t i = 0; i < segment->bytes(); ++i) ASSERT_EQ(segment->data()[i], std::byte{0});
  std::memset(segment->data(), 0x5a, segment->bytes());
  EXPECT_NE(readWhole("/proc/self/maps")->find("/memfd:peerlane-named"), std::string::npos);
}

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020  // Linux 6.3
#endif

// Without the look at the limit the kernel ends the process by SIGXFSZ.
TEST(SharedSegment, TheLimitOfFileSizesIsASentence) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const Status refused = SharedSegment::create((1 << 20) + 1, {}).status();
    const bool isNamed = refused.code() == Code::kUnavailable &&
                         refused.message().find("ulimit -f") != std::string_view::npos;
    _exit(isNamed && SharedSegment::create(1 << 20, {}).isOk() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SharedSegment, NobodyRunsItWhereTheKernelKnowsThat) {
  const Fd probe(::memfd_create("probe", MFD_CLOEXEC | 0x0008U));
  if (!probe) GTEST_SKIP() << "this kernel is older than the flag";
  auto segment = SharedSegment::create(1, {}).value();
  EXPECT_NE(::fcntl(segment->fd(), F_GET_SEALS) & F_SEAL_EXEC, 0);
}

TEST(SharedSegment, AKernelThatDoesNotKnowTheFlagMakesItAllTheSame) {
  const pid_t child = ::fork();
  if (child == 0) {
    refuseCalls(SYS_memfd_create, EINVAL, 1, 0x0008U);
    ::_exit(SharedSegment::create(1, {}).isOk() ? 0 : 1);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
}

TEST(SharedSegment, SizeIsSealed) {
  auto segment = makeSegment(2 * kPage);
  EXPECT_EQ(::fcntl(segment->fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_NE(::ftruncate(segment->fd(), kPage), 0);
  EXPECT_NE(::ftruncate(segment->fd(), 3 * kPage), 0);
}

TEST(SharedSegment, MappingGoesAwayWithTheObject) {
  auto segment = makeSegment(kPage);
  void* address = segment->data();
  EXPECT_TRUE(findSharedMapping(address, kPage).isOk());
  segment.reset();
  EXPECT_EQ(::msync(address, kPage, MS_ASYNC), -1);
}

TEST(SharedSegment, BadOptionsAreRefused) {
  auto code = [](size_t bytes, const SegmentOptions& options) {
    return SharedSegment::create(bytes, options).status().code();
  };
  EXPECT_EQ(code(0, {}), Code::kInvalidArgument);
  EXPECT_EQ(code(std::numeric_limits<size_t>::max(), {}), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage, {.name = "a/b"}), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage, {.name = std::string(201, 'x')}), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage, {.numaNode = -1}), Code::kInvalidArgument);
  auto noNode = SharedSegment::create(kPage, {.numaNode = 1023});
  EXPECT_EQ(noNode.status().code(), Code::kInvalidArgument);
  EXPECT_NE(noNode.status().message().find("1023"), std::string_view::npos);
}

TEST(SharedSegment, WishesThatAreNotMetAreNoError) {
  auto segment = makeSegment(4 << 20, {.numaNode = 0, .populate = true});
  std::memset(segment->data(), 1, segment->bytes());
}

TEST(SharedSegment, PopulateTouchesEveryPage) {
  auto segment = makeSegment(64 * kPage, {.hugePages = HugePages::kOff, .populate = true});
  std::vector<unsigned char> resident(64);
  ASSERT_EQ(::mincore(segment->data(), 64 * kPage, resident.data()), 0);
  for (unsigned char one : resident) EXPECT_EQ(one & 1, 1);
  auto lazy = makeSegment(64 * kPage, {.hugePages = HugePages::kOff});
  ASSERT_EQ(::mincore(lazy->data(), 64 * kPage, resident.data()), 0);
  EXPECT_EQ(resident[7] & 1, 0);
}

TEST(SharedSegment, ReservedHugePagesWorkOrTheErrorTellsHow) {
  auto segment = SharedSegment::create(1 << 20, {.hugePages = HugePages::kOn});
  if (segment.isOk()) {
    EXPECT_GE((*segment)->pageBytes(), size_t{2} << 20);
    (*segment)->data()[0] = std::byte{1};
    return;
  }
  EXPECT_EQ(segment.status().code(), Code::kUnavailable) << segment.status().toString();
  EXPECT_NE(segment.status().message().find("nr_hugepages"), std::string_view::npos);
  EXPECT_NE(segment.status().message().find("HugePages_Free"), std::string_view::npos);
}

TEST(Import, SharesTheSameBytes) {
  auto owner = makeSegment(3 * kPage);
  auto whole = SharedSegment::import(duplicateFd(owner->fd()).value(), 3 * kPage, 0, true);
  ASSERT_TRUE(whole.isOk()) << whole.status().toString();
  owner->data()[kPage + 5] = std::byte{42};
  EXPECT_EQ((*whole)->data()[kPage + 5], std::byte{42});
  (*whole)->data()[0] = std::byte{43};
  EXPECT_EQ(owner->data()[0], std::byte{43});
  // Neither offset nor length need be whole pages.
  auto part = SharedSegment::import(duplicateFd(owner->fd()).value(), 10, kPage + 3, false);
  ASSERT_TRUE(part.isOk());
  EXPECT_EQ((*part)->data()[2], std::byte{42});
  EXPECT_EQ((*part)->bytes(), 10u);
  EXPECT_FALSE((*part)->writable());
}

TEST(Import, OutlivesTheOwner) {
  auto owner = makeSegment(kPage);
  owner->data()[1] = std::byte{9};
  auto other = SharedSegment::import(duplicateFd(owner->fd()).value(), kPage, 0, false).value();
  owner.reset();
  EXPECT_EQ(other->data()[1], std::byte{9});
}

TEST(Import, RefusesMemoryThatCouldShrink) {
  EXPECT_EQ(importCode(makeMemfd(kPage, MFD_ALLOW_SEALING), kPage, 0, true),
            Code::kPermissionDenied);
  EXPECT_EQ(importCode(makeMemfd(kPage, 0), kPage, 0, true), Code::kPermissionDenied);
  Fd grown = makeMemfd(kPage, MFD_ALLOW_SEALING);
  ASSERT_EQ(::fcntl(grown.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(importCode(std::move(grown), kPage, 0, true), Code::kPermissionDenied);
}

TEST(Import, RefusesRangesOutsideTheFile) {
  auto owner = makeSegment(2 * kPage);
  auto code = [&](size_t bytes, uint64_t offset) {
    return importCode(duplicateFd(owner->fd()).value(), bytes, offset, true);
  };
  EXPECT_EQ(code(2 * kPage + 1, 0), Code::kInvalidArgument);
  EXPECT_EQ(code(1, 2 * kPage), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage + 1, kPage), Code::kInvalidArgument);
  EXPECT_EQ(code(0, 0), Code::kInvalidArgument);
  EXPECT_EQ(code(std::numeric_limits<size_t>::max(), 1), Code::kInvalidArgument);
  EXPECT_EQ(code(1, std::numeric_limits<uint64_t>::max()), Code::kInvalidArgument);
  EXPECT_EQ(code(kPage, kPage), Code::kOk);
}

TEST(Import, RefusesOtherFilesAndNoFile) {
  EXPECT_EQ(importCode(makeEventFd().value(), 8, 0, false), Code::kInvalidArgument);
  EXPECT_EQ(importCode(Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 8, 0, false),
            Code::kInvalidArgument);
  EXPECT_EQ(importCode(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 8, 0, false),
            Code::kInvalidArgument);
  EXPECT_EQ(importCode(Fd(::open("/dev/shm", O_RDONLY | O_CLOEXEC)), 8, 0, false),
            Code::kInvalidArgument);
  EXPECT_FALSE(SharedSegment::import(Fd(), 8, 0, false).isOk());
}

TEST(Import, ReadOnlyDescriptorIsNotMappedForWriting) {
  auto owner = makeSegment(kPage);
  std::string path = "/proc/self/fd/" + std::to_string(owner->fd());
  EXPECT_EQ(importCode(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), kPage, 0, true),
            Code::kPermissionDenied);
  EXPECT_EQ(importCode(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), kPage, 0, false), Code::kOk);
}

TEST(Import, WriteSealedMemoryIsReadOnly) {
  Fd sealed = makeMemfd(kPage, MFD_ALLOW_SEALING);
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
  EXPECT_EQ(importCode(sealed.dup().value(), kPage, 0, true), Code::kPermissionDenied);
}

TEST(Import, AnotherProcessSeesTheBytes) {
  auto owner = makeSegment(kPage);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto mine = SharedSegment::import(duplicateFd(owner->fd()).value(), kPage, 0, true);
    if (!mine.isOk()) ::_exit(1);
    std::memcpy((*mine)->data(), "from the child", 15);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(owner->data()), "from the child");
}

TEST(TrySeal, SealsWhatAllowsItAndRefusesTheRest) {
  Fd open = makeMemfd(kPage, MFD_ALLOW_SEALING);
  EXPECT_TRUE(trySeal(open.get()).isOk());
  EXPECT_NE(::ftruncate(open.get(), 0), 0);
  EXPECT_TRUE(trySeal(open.get()).isOk());
  EXPECT_EQ(::ftruncate(open.get(), 2 * kPage), 0) << "growing stays allowed";
  EXPECT_EQ(importCode(std::move(open), kPage, 0, true), Code::kOk);

  EXPECT_EQ(trySeal(makeMemfd(kPage, 0).get()).code(), Code::kPermissionDenied);
  Fd frozen = makeMemfd(kPage, MFD_ALLOW_SEALING);
  ASSERT_EQ(::fcntl(frozen.get(), F_ADD_SEALS, F_SEAL_SEAL), 0);
  EXPECT_EQ(trySeal(frozen.get()).code(), Code::kPermissionDenied);
  EXPECT_EQ(trySeal(makeEventFd()->get()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane
