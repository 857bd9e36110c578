// SPDX-License-Identifier: Apache-2.0
//
// A model's tensors are thousands of pieces of a few files, and a process has 1024 descriptors: the
// pieces of one file share one, at their owner and at the importer. Without any, a registration
// says which limit it is.
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/os/fd.h"
#include "tests/channel/context_pair.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/open_files.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPieces = 300;

class MappedFile {
 public:
  MappedFile() : fd_(::memfd_create("peerlane-pieces", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(::ftruncate(fd_.get(), kPieces * kPage), 0);
    void* const at =
        ::mmap(nullptr, kPieces * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    base_ = static_cast<std::byte*>(at);
  }
  ~MappedFile() { ::munmap(base_, kPieces * kPage); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::byte* piece(size_t number) const { return base_ + number * kPage; }

 private:
  const Fd fd_;
  std::byte* base_ = nullptr;
};

TEST(FewDescriptorsOfAFile, PiecesShareOne) {
  ContextPair pair(configFor(kMapped));
  const MappedFile file;
  const size_t before = MUST(openFileCount());
  const auto more = [before] { return MUST(openFileCount()) - before; };
  std::vector<Region> regions;
  std::vector<RemoteRegion> remotes;
  for (size_t i = 0; i < kPieces; ++i)
    regions.push_back(MUST(pair.b->registerRegion(file.piece(i), kPage, Access::kRemoteReadWrite)));
  EXPECT_EQ(more(), 1u);
  for (const Region& region : regions) {
    remotes.push_back(MUST(pair.toB.importRegion(region.share())));
    ASSERT_OK(remotes.back().prepare(kSoon));
    EXPECT_EQ(remotes.back().engine(), "mapped");
  }
  // One that was sent is open twice for a moment.
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (more() != 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(more(), 1u);
  // Each is its own piece.
  TestMemory source(*pair.a, kPage, false);
  for (const size_t i : {size_t{0}, size_t{7}, kPieces - 1}) {
    const Block block{&source.region(), 0, &remotes[i], 0, kPage};
    ASSERT_OK(MUST(put(pair.toB, {&block, 1})).wait(kSoon));
    EXPECT_EQ(firstDifference(file.piece(i), source.data(), kPage), kPage) << "wrong bytes";
  }
  remotes.clear();
  for (const Region& region : regions) EXPECT_OK(pair.b->unregister(region, kSoon));
  regions.clear();
  EXPECT_EQ(more(), 0u);
}

// No two files share one.
TEST(FewDescriptorsOfAFile, AnotherFileHasItsOwn) {
  ContextPair pair(configFor(kMapped));
  const MappedFile one, other;
  const size_t before = MUST(openFileCount());
  const Region first = MUST(pair.b->registerRegion(one.piece(0), kPage, Access::kRemoteReadWrite));
  const Region second =
      MUST(pair.b->registerRegion(other.piece(0), kPage, Access::kRemoteReadWrite));
  EXPECT_EQ(MUST(openFileCount()) - before, 2u);
  EXPECT_OK(pair.b->unregister(first, kSoon));
  EXPECT_OK(pair.b->unregister(second, kSoon));
}

TEST(FewDescriptorsOfAFile, WithoutAnyTheLimitIsNamed) {
  ContextPair pair(configFor(kMapped));
  const MappedFile file;
  std::vector<std::byte> heap(kPage);
  for (std::byte* const memory : {file.piece(0), heap.data()})
    // As many as one step of the registration needs, and one too few.
    for (const size_t free : {size_t{0}, size_t{1}}) {
      Status refused;
      {
        const FewDescriptors few(free);
        const auto made = pair.b->registerRegion(memory, kPage, Access::kRemoteReadWrite);
        refused = made.status();
        if (made.isOk()) {
          EXPECT_OK(pair.b->unregister(*made, kSoon));
        }
      }
      if (refused.isOk()) continue;
      EXPECT_EQ(refused.code(), Code::kUnavailable) << refused.toString();
      EXPECT_NE(refused.message().find("ulimit -n"), std::string_view::npos);
    }
}

}  // namespace
}  // namespace peerlane
