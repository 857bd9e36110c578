// SPDX-License-Identifier: Apache-2.0
//
// How this process's mappings are looked up: what comes out is what /proc/self/maps says, it is
// never that of an earlier moment, and it takes as many steps in a process of thousands of mappings
// as in a small one. All of that on kernels that answer for one address, and on those that do not.
#include "peerlane/os/mappings/mapping_lines.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "peerlane/core/counted_list.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/mappings/adopted_mapping.h"
#include "tests/core/expect_ok.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/kernel_answers.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;

class MappingLines : public testing::TestWithParam<bool> {
 protected:
  static void run(const std::function<void()>& work) {
    if (GetParam())
      work();
    else
      withoutAnswers(work);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, MappingLines, testing::Bool(),
                         [](const auto& one) { return one.param ? "answers" : "doesNotAnswer"; });

std::byte* map(size_t bytes, int protection, int flags, int fd = -1, void* where = nullptr) {
  void* const at = ::mmap(where, bytes, protection, flags, fd, 0);
  EXPECT_NE(at, MAP_FAILED);
  return static_cast<std::byte*>(at);
}

uint64_t numberOf(const void* at) {
  return reinterpret_cast<uint64_t>(at);
}

// So many mappings more, in address order neighbours of different rights.
class MoreMappings {
 public:
  explicit MoreMappings(size_t count)
      : bytes_(count * kPage), base_(map(bytes_, PROT_READ, kPrivate)) {
    for (size_t i = 0; i < count; i += 2)
      EXPECT_EQ(::mprotect(base_ + i * kPage, kPage, kReadWrite), 0);
  }
  ~MoreMappings() { ::munmap(base_, bytes_); }
  MoreMappings(const MoreMappings&) = delete;
  MoreMappings& operator=(const MoreMappings&) = delete;

 private:
  const size_t bytes_;
  std::byte* const base_;
};

uint64_t stepsToFind(const void* at, size_t bytes) {
  const uint64_t before = Steps::taken();
  const auto found = findSharedMapping(at, bytes);
  EXPECT_OK(found.status());
  EXPECT_EQ(found->kind, MappingKind::kPrivateMemory);
  EXPECT_TRUE(found->writable);
  return Steps::taken() - before;
}

TEST_P(MappingLines, AProcessOfManyMappingsTakesNoMoreSteps) {
  std::byte* const own = map(5 * kPage, kReadWrite, kPrivate);
  run([own] {
    uint64_t few = 0, many = 0;
    {
      const MoreMappings more(500);
      few = stepsToFind(own + 1, 4 * kPage);
    }
    {
      const MoreMappings more(4000);
      many = stepsToFind(own + 1, 4 * kPage);
    }
    EXPECT_GT(few, 0u) << "the steps are not counted";
    EXPECT_EQ(few, many);
    // One mapping was asked about, and no page.
    const bool isAsked = GetParam() && doesKernelAnswer();
    EXPECT_LE(few, isAsked ? 1u : 5u);
  });
  ::munmap(own, 5 * kPage);
}

// Memory at one address is this, then that. Whatever was seen before, the answer is of now.
TEST_P(MappingLines, NothingIsOfAnEarlierMoment) {
  const Fd file(::memfd_create("peerlane-lines", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 2 * kPage), 0);
  std::byte* const place = map(2 * kPage, kReadWrite, kPrivate);
  const auto mapAgain = [&](int protection, int flags, int fd) {
    EXPECT_EQ(::munmap(place, 2 * kPage), 0);
    EXPECT_EQ(map(2 * kPage, protection, flags | MAP_FIXED, fd, place), place);
  };
  const auto kindNow = [&] { return findSharedMapping(place, 2 * kPage); };
  run([&] {
    for (int i = 0; i < 10'000 && !testing::Test::HasFailure(); ++i) {
      switch (i * 7 % 6) {
        case 0:
          mapAgain(kReadWrite, kPrivate, -1);
          if (i % 2 == 0) place[kPage] = std::byte{1};
          EXPECT_EQ(MUST(kindNow()).kind, MappingKind::kPrivateMemory);
          EXPECT_TRUE(MUST(kindNow()).writable);
          break;
        case 1:
          mapAgain(kReadWrite, MAP_SHARED, file.get());
          if (i % 2 == 0) place[kPage] = std::byte{1};
          EXPECT_EQ(MUST(kindNow()).kind, MappingKind::kSharedMemory);
          break;
        case 2:
          mapAgain(PROT_NONE, kPrivate, -1);
          EXPECT_EQ(kindNow().status().code(), Code::kInvalidArgument);
          break;
        case 3:
          mapAgain(PROT_READ, kPrivate, -1);
          EXPECT_FALSE(MUST(kindNow()).writable);
          break;
        case 4:
          mapAgain(kReadWrite, MAP_PRIVATE, file.get());
          EXPECT_EQ(MUST(kindNow()).kind, MappingKind::kPrivateFile);
          break;
        default:
          // Half of it is gone.
          mapAgain(kReadWrite, kPrivate, -1);
          EXPECT_OK(kindNow().status());
          EXPECT_EQ(::munmap(place + kPage, kPage), 0);
          EXPECT_EQ(kindNow().status().code(), Code::kInvalidArgument);
          map(kPage, kReadWrite, kPrivate | MAP_FIXED, -1, place + kPage);
      }
    }
  });
  ::munmap(place, 2 * kPage);
}

TEST(MappingLinesOfThisKernel, AnswersAreThoseOfTheText) {
  const Fd file(::memfd_create("peerlane with a space", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 2 * kPage), 0);
  std::byte* const view = map(2 * kPage, PROT_READ, MAP_SHARED, file.get());
  // Only what neither call changes: of this test's thread and its own memory.
  const auto lines = [view] { return MUST(mappingLines(numberOf(view), numberOf(view) + 1)); };
  const std::vector<MappingLine> answered = lines();
  std::vector<MappingLine> read;
  withoutAnswers([&] { read = lines(); });
  ASSERT_EQ(answered.size(), 1u);
  ASSERT_EQ(read.size(), 1u);
  const auto facts = [](const MappingLine& line) {
    return std::tuple(line.start, line.end, std::string(line.rights), line.offset, line.major,
                      line.minor, line.inode, line.path);
  };
  EXPECT_EQ(facts(answered[0]), facts(read[0]));
  EXPECT_EQ(read[0].path, "/memfd:peerlane with a space (deleted)");
  ::munmap(view, 2 * kPage);
  EXPECT_TRUE(lines().empty() || lines()[0].start > numberOf(view));
}

// Memory that nobody touched stays so, however much of it is looked at; and what a forked process
// shares is not copied.
TEST_P(MappingLines, MemoryIsNotBroughtIn) {
  constexpr size_t kPages = 8192;
  std::byte* const large = map(kPages * kPage, kReadWrite, kPrivate);
  run([large] { EXPECT_OK(findSharedMapping(large, kPages * kPage).status()); });
  std::vector<unsigned char> there(kPages);
  ASSERT_EQ(::mincore(large, kPages * kPage, there.data()), 0);
  size_t brought = 0;
  for (const unsigned char page : there) brought += page & 1;
  EXPECT_LE(brought, 64u);
  ::munmap(large, kPages * kPage);
}

TEST_P(MappingLines, WithoutADescriptorTheLimitIsNamed) {
  std::byte* const own = map(kPage, kReadWrite, kPrivate);
  run([own] {
    const FewDescriptors none(0);
    const Status refused = findSharedMapping(own, kPage).status();
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_NE(refused.message().find("ulimit -n"), std::string_view::npos) << refused.toString();
  });
  ::munmap(own, kPage);
}

}  // namespace
}  // namespace peerlane
