// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/adopted_mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/file.h"
#include "peerlane/os/process.h"
#include "peerlane/os/shm_segment.h"
#include "tests/os/open_files.h"
#include "tests/os/quiet_place.h"
#include "tests/os/scratch_folder.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;

// A mapping that is undone at the end of the test.
class Mapped {
 public:
  Mapped(size_t bytes, int protection, int flags, int fd = -1, off_t offset = 0,
         void* where = nullptr)
      : bytes_(bytes),
        address_(::mmap(where != nullptr ? where : quietPlace(bytes), bytes, protection, flags, fd,
                        offset)) {
    if (address_ == MAP_FAILED) std::abort();
  }
  ~Mapped() { ::munmap(address_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(address_) + offset; }

 private:
  size_t bytes_;
  void* address_;
};

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;

Fd makeMemfd(size_t bytes) {
  Fd fd(::memfd_create("peerlane-adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

bool sameFile(int a, int b) {
  struct stat x {};
  struct stat y {};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

TEST(AdoptedMapping, HeapStackAndAnonymousArePrivate) {
  std::vector<char> heap(3'000'000);
  char local[100] = "";
  Mapped anonymous(4 * kPage, kReadWrite, kAnonymous);
  for (auto [p, bytes] : {std::pair<const void*, size_t>(heap.data() + 7, 2'000'000),
                          std::pair<const void*, size_t>(local, sizeof local),
                          std::pair<const void*, size_t>(anonymous.at(1), 4 * kPage - 1)}) {
    auto mapping = findSharedMapping(p, bytes);
    ASSERT_TRUE(mapping.isOk()) << mapping.status().toString();
    EXPECT_EQ(mapping->kind, MappingKind::kPrivateMemory);
    EXPECT_TRUE(mapping->writable);
    EXPECT_FALSE(mapping->file);
    EXPECT_EQ(mapping->pageBytes, kPage);
  }
}

TEST(AdoptedMapping, MemfdGivesItsFileAndOffset) {
  Fd fd = makeMemfd(8 * kPage);
  Mapped view(4 * kPage, kReadWrite, MAP_SHARED, fd.get(), 2 * kPage);
  auto mapping = findSharedMapping(view.at(kPage + 5), 100);
  ASSERT_TRUE(mapping.isOk());
  EXPECT_EQ(mapping->kind, MappingKind::kSharedMemory);
  EXPECT_EQ(mapping->fileOffset, 3 * kPage + 5);
  EXPECT_TRUE(mapping->writable);
  EXPECT_FALSE(mapping->hugetlb);
  ASSERT_TRUE(mapping->file) << mapping->whyNoFile;
  EXPECT_NE(mapping->file.get(), fd.get());
  EXPECT_TRUE(sameFile(mapping->file.get(), fd.get()));
}

// The whole way of adoption: find, seal, import elsewhere, see the same bytes.
TEST(AdoptedMapping, AdoptedMemoryCanBeSealedAndImported) {
  Fd fd = makeMemfd(4 * kPage);
  Mapped view(4 * kPage, kReadWrite, MAP_SHARED, fd.get());
  auto mapping = findSharedMapping(view.at(kPage), 2 * kPage);
  ASSERT_TRUE(mapping.isOk());
  ASSERT_TRUE(trySeal(mapping->file.get()).isOk());
  auto segment =
      SharedSegment::import(std::move(mapping->file), 2 * kPage, mapping->fileOffset, true);
  ASSERT_TRUE(segment.isOk()) << segment.status().toString();
  *view.at(kPage + 9) = std::byte{77};
  EXPECT_EQ((*segment)->data()[9], std::byte{77});
}

TEST(AdoptedMapping, ClosedDescriptorIsFoundThroughTheMapOrExplained) {
  Fd fd = makeMemfd(2 * kPage);
  Mapped view(2 * kPage, kReadWrite, MAP_SHARED, fd.get());
  fd.reset();
  auto mapping = findSharedMapping(view.at(0), 2 * kPage);
  ASSERT_TRUE(mapping.isOk());
  EXPECT_EQ(mapping->kind, MappingKind::kSharedMemory);
  EXPECT_EQ(static_cast<bool>(mapping->file), mapping->whyNoFile.empty());
  if (mapping->file) {
    *view.at(3) = std::byte{5};
    Mapped again(2 * kPage, PROT_READ, MAP_SHARED, mapping->file.get());
    EXPECT_EQ(*again.at(3), std::byte{5});
  }
}

TEST(AdoptedMapping, FileBelowDevShmIsSharedMemoryAlsoWithoutADescriptor) {
  std::string name = "/peerlane-test-" + std::to_string(::getpid());
  Fd fd(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
  ASSERT_TRUE(fd);
  ASSERT_EQ(::ftruncate(fd.get(), 2 * kPage), 0);
  {
    Mapped view(2 * kPage, kReadWrite, MAP_SHARED, fd.get());
    fd.reset();
    auto mapping = findSharedMapping(view.at(kPage), kPage);
    ASSERT_TRUE(mapping.isOk());
    EXPECT_EQ(mapping->kind, MappingKind::kSharedMemory);
    ASSERT_TRUE(mapping->file) << mapping->whyNoFile;
    EXPECT_EQ(mapping->fileOffset, kPage);
    EXPECT_EQ(trySeal(mapping->file.get()).code(), Code::kPermissionDenied);
  }
  ::shm_unlink(name.c_str());
}

TEST(AdoptedMapping, ReadOnlyIsTold) {
  Fd fd = makeMemfd(2 * kPage);
  Mapped view(2 * kPage, PROT_READ, MAP_SHARED, fd.get());
  EXPECT_FALSE(findSharedMapping(view.at(0), 1)->writable);
  Mapped half(2 * kPage, kReadWrite, kAnonymous);
  ASSERT_EQ(::mprotect(half.at(kPage), kPage, PROT_READ), 0);
  EXPECT_TRUE(findSharedMapping(half.at(0), kPage)->writable);
  EXPECT_FALSE(findSharedMapping(half.at(0), 2 * kPage)->writable);
}

TEST(AdoptedMapping, FilesOnDiskAreNotSharedMemory) {
  auto text = findSharedMapping(reinterpret_cast<const void*>(&findSharedMapping), 16);
  ASSERT_TRUE(text.isOk());
  EXPECT_EQ(text->kind, MappingKind::kPrivateFile);
  EXPECT_FALSE(text->writable);
  Fd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  Mapped view(kPage, PROT_READ, MAP_SHARED, fd.get());
  auto shared = findSharedMapping(view.at(0), kPage);
  ASSERT_TRUE(shared.isOk());
  EXPECT_EQ(shared->kind, MappingKind::kSharedFile);
  EXPECT_FALSE(shared->file);
}

// An array of a program may begin in its data and end in the zeros behind.
TEST(AdoptedMapping, PrivateViewsOfFilesGoWithPrivateMemory) {
  Fd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  Mapped area(3 * kPage, kReadWrite, kAnonymous);
  ASSERT_NE(::mmap(area.at(kPage), kPage, kReadWrite, MAP_PRIVATE | MAP_FIXED, fd.get(), 0),
            MAP_FAILED);
  auto behind = findSharedMapping(area.at(kPage + 1), 2 * kPage - 1);
  ASSERT_TRUE(behind.isOk()) << behind.status().toString();
  EXPECT_EQ(behind->kind, MappingKind::kPrivateFile);
  EXPECT_TRUE(behind->writable);
  EXPECT_FALSE(behind->file);
  auto before = findSharedMapping(area.at(0), 2 * kPage);
  ASSERT_TRUE(before.isOk()) << before.status().toString();
  EXPECT_EQ(before->kind, MappingKind::kPrivateMemory);
  Fd memory = makeMemfd(kPage);
  ASSERT_NE(::mmap(area.at(0), kPage, kReadWrite, MAP_SHARED | MAP_FIXED, memory.get(), 0),
            MAP_FAILED);
  EXPECT_EQ(findSharedMapping(area.at(0), 2 * kPage).status().code(), Code::kInvalidArgument);
}

TEST(AdoptedMapping, HolesAreNamed) {
  Mapped area(4 * kPage, kReadWrite, kAnonymous);
  ASSERT_EQ(::munmap(area.at(2 * kPage), kPage), 0);
  EXPECT_TRUE(findSharedMapping(area.at(0), 2 * kPage).isOk());
  auto hole = findSharedMapping(area.at(0), 4 * kPage);
  ASSERT_EQ(hole.status().code(), Code::kInvalidArgument);
  char address[32];
  std::snprintf(address, sizeof address, "%p", static_cast<void*>(area.at(2 * kPage)));
  EXPECT_NE(hole.status().message().find(address), std::string_view::npos)
      << hole.status().toString();
  EXPECT_EQ(findSharedMapping(area.at(2 * kPage), 1).status().code(), Code::kInvalidArgument);
  // Inside one more page of the hole and beyond: the end of the range counts, too.
  EXPECT_FALSE(findSharedMapping(area.at(kPage), kPage + 1).isOk());
}

TEST(AdoptedMapping, ImpossibleRangesAreRefused) {
  EXPECT_EQ(findSharedMapping(nullptr, 1).status().code(), Code::kInvalidArgument);
  char one = 0;
  EXPECT_EQ(findSharedMapping(&one, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(findSharedMapping(&one, SIZE_MAX).status().code(), Code::kInvalidArgument);
  Mapped closed(kPage, PROT_NONE, kAnonymous);
  EXPECT_EQ(findSharedMapping(closed.at(0), 1).status().code(), Code::kInvalidArgument);
}

TEST(AdoptedMapping, NeighboursMustBeOneFileInOrder) {
  Fd fd = makeMemfd(4 * kPage);
  Mapped area(4 * kPage, kReadWrite, kAnonymous);
  auto place = [&](size_t at, int file, off_t offset, int protection) {
    ASSERT_NE(::mmap(area.at(at), kPage, protection, MAP_SHARED | MAP_FIXED, file, offset),
              MAP_FAILED);
  };
  // Two mappings (different rights keep them apart) that continue each other.
  place(0, fd.get(), 0, kReadWrite);
  place(kPage, fd.get(), kPage, PROT_READ);
  auto joined = findSharedMapping(area.at(10), 2 * kPage - 10);
  ASSERT_TRUE(joined.isOk()) << joined.status().toString();
  EXPECT_EQ(joined->fileOffset, 10u);
  EXPECT_FALSE(joined->writable);
  // The same file at another place, another file, and private memory do not continue it.
  place(kPage, fd.get(), 3 * kPage, kReadWrite);
  EXPECT_EQ(findSharedMapping(area.at(0), 2 * kPage).status().code(), Code::kInvalidArgument);
  Fd other = makeMemfd(4 * kPage);
  place(kPage, other.get(), kPage, kReadWrite);
  EXPECT_EQ(findSharedMapping(area.at(0), 2 * kPage).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(findSharedMapping(area.at(kPage), 2 * kPage).status().code(), Code::kInvalidArgument);
}

TEST(AdoptedMapping, DevicesAndKernelPagesAreNotSupported) {
  // The first page of the vdso is found by name.
  std::string maps = readWhole("/proc/self/maps").value();
  size_t name = maps.find("[vdso]");
  ASSERT_NE(name, std::string::npos);
  size_t line = maps.rfind('\n', name) + 1;
  uint64_t address = std::strtoull(maps.c_str() + line, nullptr, 16);
  EXPECT_EQ(findSharedMapping(reinterpret_cast<void*>(address), 1).status().code(),
            Code::kNotSupported);
}

TEST(AdoptedMapping, LeaksNoDescriptor) {
  Fd fd = makeMemfd(kPage);
  Mapped view(kPage, kReadWrite, MAP_SHARED, fd.get());
  size_t before = openFileCount().value();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(findSharedMapping(view.at(0), kPage).isOk());
  EXPECT_EQ(openFileCount().value(), before);
}

TEST(Touchable, MemoryWithItsRights) {
  std::vector<std::byte> heap(10'000'000);
  EXPECT_TRUE(checkTouchable(heap.data() + 1, heap.size() - 1, Touch::kWrite).isOk());
  EXPECT_TRUE(checkTouchable(heap.data(), 0, Touch::kWrite).isOk());
  const Mapped readable(4 * kPage, PROT_READ, kAnonymous);
  EXPECT_TRUE(checkTouchable(readable.at(5), 3 * kPage, Touch::kRead).isOk());
  Status status = checkTouchable(readable.at(5), 3 * kPage, Touch::kWrite);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("cannot be written (rights r--p)"), std::string::npos);
  const Mapped hidden(kPage, PROT_NONE, kAnonymous);
  status = checkTouchable(hidden.at(0), 1, Touch::kRead);
  EXPECT_NE(status.message().find("cannot be read (rights ---p)"), std::string::npos);
}

TEST(Touchable, HolesAndRightsInTheMiddleAreFound) {
  const Mapped mapping(8 * kPage, kReadWrite, kAnonymous);
  ASSERT_EQ(::mprotect(mapping.at(2 * kPage), kPage, PROT_READ), 0);
  EXPECT_TRUE(checkTouchable(mapping.at(0), 8 * kPage, Touch::kRead).isOk());
  EXPECT_TRUE(checkTouchable(mapping.at(0), 2 * kPage, Touch::kWrite).isOk());
  EXPECT_FALSE(checkTouchable(mapping.at(0), 2 * kPage + 1, Touch::kWrite).isOk());
  ASSERT_EQ(::munmap(mapping.at(5 * kPage), kPage), 0);
  EXPECT_TRUE(checkTouchable(mapping.at(0), 5 * kPage, Touch::kRead).isOk());
  const Status status = checkTouchable(mapping.at(kPage - 1), 6 * kPage, Touch::kRead);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("is not mapped"), std::string::npos);
}

TEST(Touchable, WhatIsNoMemoryAtAll) {
  EXPECT_FALSE(checkTouchable(reinterpret_cast<void*>(8), 1, Touch::kRead).isOk());
  const Status wraps = checkTouchable(&wraps, ~size_t{0}, Touch::kRead);
  EXPECT_NE(wraps.message().find("wraps around"), std::string::npos);
  EXPECT_FALSE(checkTouchable(&wraps, size_t{1} << 50, Touch::kRead).isOk());
}

// There the processor would raise SIGBUS.
TEST(Touchable, BehindTheEndOfAFile) {
  const Fd file = makeMemfd(kPage);
  const Mapped mapping(4 * kPage, kReadWrite, MAP_SHARED, file.get());
  EXPECT_TRUE(checkTouchable(mapping.at(0), kPage, Touch::kWrite).isOk());
  const Status status = checkTouchable(mapping.at(0), kPage + 1, Touch::kRead);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("behind the end of its file"), std::string::npos);
}

}  // namespace
}  // namespace peerlane
