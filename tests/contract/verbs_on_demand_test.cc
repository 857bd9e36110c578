// SPDX-License-Identifier: Apache-2.0
//
// Memory that an RDMA device pages in on demand, between two contexts.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "peerlane/peerlane.h"
#include "tests/channel/context_pair.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"

namespace peerlane {
namespace {

constexpr size_t kBytes = 1 << 20;

Config onDemand() {
  Config config = configFor(kVerbs);
  config.ibRegister = IbRegister::kOnDemand;
  return config;
}

// In whole pages, which is all that rxe does, and in others; pages that are there when they are
// registered, and pages that come later.
TEST(VerbsOnDemand, EveryByteGoesAndComesBack) {
  void* const mapped =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const at = static_cast<std::byte*>(mapped);
  {
    const ContextPair pair(onDemand());
    const Region here = MUST(pair.a->registerRegion(at, kBytes, Access::kLocal));
    const Region there = MUST(pair.b->allocate(kBytes));
    const RemoteRegion remote = MUST(pair.toB.importRegion(there.share()));
    struct Part {
      size_t from, bytes;
    };
    uint64_t pattern = 0;
    for (const Part part : {Part{0, kBytes / 2}, Part{kBytes / 2, kBytes / 2}, Part{100, 5000}}) {
      const std::span<std::byte> near{at + part.from, part.bytes};
      const std::span<std::byte> far{there.data() + part.from, part.bytes};
      const Block block{&here, part.from, &remote, part.from, part.bytes};
      fillPattern(near, ++pattern);
      ASSERT_OK(MUST(put(pair.toB, {&block, 1})).wait(kSoon));
      EXPECT_EQ(firstWrong(far, pattern), part.bytes) << part.from;
      fillPattern(far, ++pattern);
      ASSERT_OK(MUST(get(pair.toB, {&block, 1})).wait(kSoon));
      EXPECT_EQ(firstWrong(near, pattern), part.bytes) << part.from;
    }
  }
  ::munmap(mapped, kBytes);
}

}  // namespace
}  // namespace peerlane
