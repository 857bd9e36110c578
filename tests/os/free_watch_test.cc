// SPDX-License-Identifier: Apache-2.0
//
// FreeWatch: whatever takes pages from the program is told before the call that does it returns,
// and nothing else is.
#include "peerlane/os/mappings/free_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/os/quiet_place.h"
#include "tests/os/refused_calls.h"

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 16 * kPage;

struct Ears final : FreeWatch::Listener {
  void freed() noexcept override { heard.fetch_add(1); }
  // As a look-up does.
  int now() const {
    FreeWatch::settle();
    return heard.load();
  }
  std::atomic<int> heard{0};
};

std::byte* map(size_t bytes = kBytes, int more = 0, void* at = nullptr, int fd = -1) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, kind | more, fd, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 1, bytes);
  return static_cast<std::byte*>(mapped);
}

class FreeWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
    // With holes on both sides, so that no neighbour is the same mapping.
    outer_ = map(kBytes + 2 * kPage, 0, quietPlace(kBytes + 2 * kPage));
    EXPECT_EQ(::mprotect(outer_, kPage, PROT_NONE), 0);
    EXPECT_EQ(::mprotect(outer_ + kPage + kBytes, kPage, PROT_NONE), 0);
    memory_ = outer_ + kPage;
  }
  void TearDown() override {
    if (outer_ != nullptr) ::munmap(outer_, kBytes + 2 * kPage);
  }
  std::byte* outer_ = nullptr;
  std::byte* memory_ = nullptr;
  Ears ears_;
};

TEST_F(FreeWatchTest, UnmappingIsTold) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  const uint64_t before = FreeWatch::told();
  EXPECT_EQ(::munmap(memory_, kBytes), 0);
  EXPECT_EQ(ears_.now(), 1);
  EXPECT_NE(FreeWatch::told(), before);
}

TEST_F(FreeWatchTest, UnmappingOnePageIsToldOnce) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  EXPECT_EQ(::munmap(memory_ + 3 * kPage, kPage), 0);
  EXPECT_EQ(ears_.now(), 1);
  EXPECT_EQ(::munmap(memory_ + 5 * kPage, kPage), 0);
  EXPECT_EQ(ears_.now(), 1) << "once is enough";
}

TEST_F(FreeWatchTest, MappingOverItIsTold) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  (void)map(kPage, MAP_FIXED, memory_ + kPage);
  EXPECT_EQ(ears_.now(), 1);
}

TEST_F(FreeWatchTest, GivingPagesBackIsTold) {
  for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
    Ears ears;
    std::byte* const own = map();
    {
      const auto range = MUST(FreeWatch::watch(own, kBytes, ears));
      EXPECT_EQ(::madvise(own + kPage, kPage, advice), 0);
      EXPECT_EQ(ears.now(), 1) << advice;
      ::munmap(own, kBytes);
    }
  }
}

// The kernel tells before it takes them, so nothing may be made of such pages.
TEST_F(FreeWatchTest, WherePagesWereGivenBackNothingIsWatchedUntilItIsUnmapped) {
  {
    const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
    EXPECT_EQ(::madvise(memory_ + kPage, kPage, MADV_DONTNEED), 0);
    Ears later;
    const Status refused = FreeWatch::watch(memory_, kBytes, later).status();
    EXPECT_EQ(refused.code(), Code::kUnavailable) << refused.toString();
    EXPECT_OK(FreeWatch::watch(memory_ + 2 * kPage, kPage, later).status());
    EXPECT_EQ(::munmap(memory_, kBytes), 0);
  }
  (void)map(kBytes, MAP_FIXED, memory_);
  Ears anew;
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, anew));
  EXPECT_EQ(::munmap(memory_, kBytes), 0);
  EXPECT_EQ(anew.now(), 1);
}

TEST_F(FreeWatchTest, MovingIsTold) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  void* const moved = ::mremap(memory_, kBytes, 4 * kBytes, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED);
  ASSERT_NE(moved, memory_);
  EXPECT_EQ(ears_.now(), 1);
  EXPECT_EQ(static_cast<std::byte*>(moved)[kPage], std::byte{1});
  EXPECT_EQ(::munmap(moved, 4 * kBytes), 0);
}

TEST_F(FreeWatchTest, ShrinkingIsTold) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  ASSERT_EQ(::mremap(memory_, kBytes, kBytes / 2, 0), memory_);
  EXPECT_EQ(ears_.now(), 1);
}

// A part of a mapping is watched by the whole of it: else that could not be moved any more.
TEST_F(FreeWatchTest, OnlyItsOwnPartIsToldAndTheWholeMoves) {
  const auto range = MUST(FreeWatch::watch(memory_ + 4 * kPage + 100, kPage, ears_));
  EXPECT_EQ(::madvise(memory_, kPage, MADV_DONTNEED), 0);
  EXPECT_EQ(ears_.now(), 0);
  void* const moved = ::mremap(memory_, kBytes, 4 * kBytes, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED) << std::strerror(errno);
  EXPECT_EQ(ears_.now(), 1);
  ::munmap(moved, 4 * kBytes);
}

TEST_F(FreeWatchTest, WhatKeepsThePagesIsNotTold) {
  const auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  EXPECT_EQ(::mprotect(memory_, kPage, PROT_READ), 0);
  EXPECT_EQ(::mprotect(memory_, kPage, PROT_READ | PROT_WRITE), 0);
  std::memset(memory_, 2, kBytes);
  EXPECT_EQ(::madvise(memory_, kPage, MADV_WILLNEED), 0);
  std::byte* const other = map();
  ::munmap(other, kBytes);
  EXPECT_EQ(ears_.now(), 0);
}

TEST_F(FreeWatchTest, TwoRangesAreBothTold) {
  Ears second;
  const auto one = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  auto two = MUST(FreeWatch::watch(memory_ + kPage, 2 * kPage, second));
  EXPECT_EQ(::munmap(memory_ + 8 * kPage, kPage), 0);
  EXPECT_EQ(ears_.now(), 1);
  EXPECT_EQ(second.now(), 0);
  EXPECT_EQ(::munmap(memory_ + 2 * kPage, kPage), 0);
  EXPECT_EQ(second.now(), 1);
}

TEST_F(FreeWatchTest, OneThatEndsLeavesTheOther) {
  Ears second;
  auto one = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  const auto two = MUST(FreeWatch::watch(memory_, kBytes, second));
  one.reset();
  EXPECT_EQ(::munmap(memory_, kBytes), 0);
  EXPECT_EQ(ears_.now(), 0);
  EXPECT_EQ(second.now(), 1);
}

// Where the last one has ended, no call waits for anybody.
TEST_F(FreeWatchTest, NothingIsLeftOfIt) {
  (void)MUST(FreeWatch::watch(memory_, kBytes, ears_));
  const int other = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | 1));
  uffdio_api api{};
  api.api = UFFD_API;
  ASSERT_EQ(::ioctl(other, UFFDIO_API, &api), 0);
  uffdio_register wanted{};
  wanted.range = {reinterpret_cast<uintptr_t>(memory_), kBytes};
  wanted.mode = UFFDIO_REGISTER_MODE_WP;
  EXPECT_EQ(::ioctl(other, UFFDIO_REGISTER, &wanted), 0) << std::strerror(errno);
  // And now it is somebody else's.
  const Status refused = FreeWatch::watch(memory_, kBytes, ears_).status();
  EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
  EXPECT_NE(refused.message().find("another userfaultfd"), std::string::npos);
  ::close(other);
}

TEST_F(FreeWatchTest, WhatCannotBeWatchedIsRefusedWithTheReason) {
  const int file = ::memfd_create("shared", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, kBytes), 0);
  std::byte* const shared = map(kBytes, 0, nullptr, file);
  const Status refused = FreeWatch::watch(shared, kBytes, ears_).status();
  EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
  EXPECT_NE(refused.message().find("shared memory"), std::string::npos) << refused.toString();
  ::munmap(shared, kBytes);
  ::close(file);
  ::munmap(memory_ + kPage, kPage);
  EXPECT_EQ(FreeWatch::watch(memory_, kBytes, ears_).status().code(), Code::kInvalidArgument);
}

#if !defined(__SANITIZE_ADDRESS__)  // its locks may be held in a forked child that makes a thread
// It has the memory, and neither the watch nor its descriptor: nothing that it does waits or is
// told.
TEST_F(FreeWatchTest, AForkedChildIsFree) {
  auto range = MUST(FreeWatch::watch(memory_, kBytes, ears_));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // what waits for nobody ends by that
    memory_[0] = std::byte{7};
    if (::munmap(memory_, kBytes) != 0) ::_exit(1);
    FreeWatch::settle();
    Ears own;
    std::byte* const fresh = map();
    {
      const auto mine = FreeWatch::watch(fresh, kBytes, own);
      if (!mine.isOk() || ::munmap(fresh, kBytes) != 0 || own.now() != 1) ::_exit(2);
    }
    range.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ears_.now(), 0);
  EXPECT_EQ(memory_[0], std::byte{1});
  EXPECT_EQ(::munmap(memory_, kBytes), 0);
  EXPECT_EQ(ears_.now(), 1);
}
#endif

TEST_F(FreeWatchTest, WithoutTheCallTheReasonIsNamed) {
  const pid_t child = ::fork();
  if (child == 0) {
    refuseCalls(SYS_userfaultfd, EPERM);
    const Status probed = FreeWatch::probe();
    const Status watched = FreeWatch::watch(memory_, kBytes, ears_).status();
    const bool isNamed = probed.message().find("userfaultfd") != std::string::npos;
    ::_exit(probed.code() == Code::kNotSupported && watched.code() == Code::kNotSupported && isNamed
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Each thread knows when its own memory is freed, while others free theirs, look, and begin and end
// watches of it. All that malloc does in between may be watched as well.
TEST_F(FreeWatchTest, ManyThreadsFreeAndLook) {
  constexpr int kThreads = 4, kRounds = 200;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&wrong, i] {
      for (int round = 0; round < kRounds; ++round) {
        Ears ears;
        std::byte* const own = map();
        // Others may still be within the call that set its place free: none of that is told.
        const auto range = FreeWatch::watch(own, kBytes, ears);
        if (!range.isOk()) {
          // Its place was given back by somebody before.
          ::munmap(own, kBytes);
          continue;
        }
        std::vector<char> noise(static_cast<size_t>(1 + round % 7) << 16, 'x');
        wrong += ears.now() != 0;
        const bool isKept = (round + i) % 3 == 0;
        if (isKept)
          ::madvise(own + kPage, kPage, MADV_DONTNEED);
        else
          ::munmap(own + kPage, kPage);
        wrong += ears.now() != 1;
        // What was unmapped may be another thread's by now.
        ::munmap(own, isKept ? kBytes : kPage);
        if (!isKept) ::munmap(own + 2 * kPage, kBytes - 2 * kPage);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace peerlane

#endif
