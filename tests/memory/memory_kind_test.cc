// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/memory_kind.h"

#include <gtest/gtest.h>

#include <set>

#include "peerlane/memory/region_exports.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

TEST(MemoryKind, NamesTellAllApart) {
  std::set<std::string> names;
  size_t count = 0;
  for (uint8_t place = 0; place < kMemoryPlaces; ++place)
    for (uint8_t exported = 0; exported < kMemoryExports; ++exported)
      for (uint8_t shape = 0; shape < kMemoryShapes; ++shape, ++count) {
        const auto kind = MemoryKind::of(place, exported, shape);
        ASSERT_TRUE(kind);
        EXPECT_EQ(kind->name().find("unknown"), std::string::npos) << kind->name();
        names.insert(kind->name());
      }
  EXPECT_EQ(names.size(), count);
  EXPECT_EQ(MemoryKind::kCudaFabricChunks.name(), "CUDA memory in chunks by fabric handle");
}

TEST(MemoryKind, NumbersAboveTheLastAreNone) {
  EXPECT_FALSE(MemoryKind::of(kMemoryPlaces, 0, 0));
  EXPECT_FALSE(MemoryKind::of(0, kMemoryExports, 0));
  EXPECT_FALSE(MemoryKind::of(0, 0, kMemoryShapes));
  EXPECT_FALSE(MemoryKind::of(255, 255, 255));
}

// What the last appended number is has no say in what is CUDA's.
TEST(MemoryKind, OnlyItsPlaceMakesItCudas) {
  for (const MemoryKind& kind : knownKinds())
    EXPECT_EQ(isCuda(kind), kind.place == MemoryPlace::kCuda) << kind.name();
  EXPECT_FALSE(isCuda({.place = MemoryPlace::kPci, .exported = MemoryExport::kDmaBuf}));
  EXPECT_FALSE(isCuda({.place = MemoryPlace::kLent, .exported = MemoryExport::kKey}));
}

// Exports that count those alive.
struct Counted final : RegionExport {
  Status revoke(std::chrono::nanoseconds) override { return Status::ok(); }
  explicit Counted(int& count) : alive(count) { ++alive; }
  ~Counted() override { --alive; }
  int& alive;
};

TEST(RegionExports, OneForEachDomainUntilItEnds) {
  RegionExports exports;
  int alive = 0;
  int made = 0;
  const auto make = [&]() -> Result<std::shared_ptr<RegionExport>> {
    ++made;
    return std::shared_ptr<RegionExport>(std::make_shared<Counted>(alive));
  };
  const int one = 0;
  const int other = 0;
  const auto first = MUST(exports.of(&one, make));
  EXPECT_EQ(MUST(exports.of(&one, make)), first);
  EXPECT_NE(MUST(exports.of(&other, make)), first);
  EXPECT_EQ(made, 2);
  exports.drop(&other);
  EXPECT_EQ(alive, 1);
  exports.end();
  EXPECT_EQ(alive, 1) << "kept by who still has it";
  EXPECT_EQ(exports.of(&one, make).status().code(), Code::kClosed);
  EXPECT_EQ(made, 2);
}

TEST(RegionExports, AnErrorIsNotKept) {
  RegionExports exports;
  const int domain = 0;
  bool works = false;
  int alive = 0;
  const auto make = [&]() -> Result<std::shared_ptr<RegionExport>> {
    if (!works) return Status(Code::kUnavailable, "not now");
    return std::shared_ptr<RegionExport>(std::make_shared<Counted>(alive));
  };
  EXPECT_EQ(exports.of(&domain, make).status().code(), Code::kUnavailable);
  works = true;
  EXPECT_OK(exports.of(&domain, make).status());
}

}  // namespace
}  // namespace peerlane
