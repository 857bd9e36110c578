// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "peerlane/core/counted_list.h"
#include "peerlane/memory/region.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

class RegionTableTest : public testing::Test {
 protected:
  std::shared_ptr<RegionRecord> add(Access access = Access::kRemoteReadWrite) {
    MemoryDescription memory;
    memory.text = "test memory";
    return table_.add(bytes_.data(), bytes_.size(), access, std::move(memory), nullptr).value();
  }
  Result<PinnedMemory> pin(const RegionRecord& record, uint64_t offset, uint64_t bytes,
                           Access wanted = Access::kRemoteWrite) {
    return table_.pin(record.allocation, record.generation, offset, bytes, wanted);
  }
  static void expectRefused(const Result<PinnedMemory>& result, Code code, const char* said) {
    ASSERT_FALSE(result.isOk());
    EXPECT_EQ(result.status().code(), code) << result.status().toString();
    EXPECT_NE(result.status().message().find(said), std::string_view::npos)
        << result.status().toString();
  }

  std::array<std::byte, 4096> bytes_{};
  RegionTable table_;
};

TEST_F(RegionTableTest, NumbersAreNeverUsedTwiceAndGenerationsDiffer) {
  std::set<uint64_t> allocations;
  std::set<uint64_t> generations;
  for (int i = 0; i < 100; ++i) {
    const auto record = add();
    allocations.insert(record->allocation);
    generations.insert(record->generation);
    record->gate.close();
    table_.remove(record->allocation);
  }
  EXPECT_EQ(allocations.size(), 100u);
  EXPECT_EQ(generations.size(), 100u);
  EXPECT_TRUE(table_.view().empty());
}

TEST_F(RegionTableTest, ReadOnlyMemoryIsNotOfferedForWriting) {
  for (const Access access : {Access::kRemoteWrite, Access::kRemoteReadWrite}) {
    MemoryDescription memory;
    memory.writable = false;
    const auto refused = table_.add(bytes_.data(), 1, access, std::move(memory), nullptr);
    ASSERT_FALSE(refused.isOk());
    EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
  }
  MemoryDescription memory;
  memory.writable = false;
  EXPECT_TRUE(table_.add(bytes_.data(), 1, Access::kRemoteRead, std::move(memory), nullptr).isOk());
}

TEST_F(RegionTableTest, PinsTheRangeAskedFor) {
  const auto record = add();
  const auto whole = pin(*record, 0, 4096);
  ASSERT_TRUE(whole.isOk());
  EXPECT_EQ(whole->at, bytes_.data());
  EXPECT_FALSE(whole->isOurs);
  const auto last = pin(*record, 4095, 1);
  ASSERT_TRUE(last.isOk());
  EXPECT_EQ(last->at, bytes_.data() + 4095);
  EXPECT_EQ(table_.view().front().pins, 2u);
  table_.unpin(record->allocation);
  table_.unpin(record->allocation);
  EXPECT_EQ(table_.view().front().pins, 0u);
}

TEST_F(RegionTableTest, RefusesRangesOutsideNamingTheNumbers) {
  const auto record = add();
  expectRefused(pin(*record, 0, 4097), Code::kInvalidArgument, "4097");
  expectRefused(pin(*record, 4096, 1), Code::kInvalidArgument, "4096");
  expectRefused(pin(*record, 1, 4096), Code::kInvalidArgument, "[1, +4096)");
  expectRefused(pin(*record, UINT64_MAX, 1), Code::kInvalidArgument, "18446744073709551615");
  expectRefused(pin(*record, UINT64_MAX - 10, 100), Code::kInvalidArgument, "lies outside");
  expectRefused(pin(*record, 1, UINT64_MAX), Code::kInvalidArgument, "lies outside");
  EXPECT_EQ(table_.view().front().pins, 0u);
}

TEST_F(RegionTableTest, RefusesUnknownStaleAndClosing) {
  const auto record = add();
  expectRefused(table_.pin(record->allocation + 1, record->generation, 0, 1, Access::kRemoteRead),
                Code::kInvalidArgument, "not registered");
  expectRefused(table_.pin(record->allocation, record->generation + 1, 0, 1, Access::kRemoteRead),
                Code::kInvalidArgument, "generation");
  table_.setState(record->allocation, RegionState::kClosing);
  expectRefused(pin(*record, 0, 1), Code::kClosed, "unregistered");
  table_.setState(record->allocation, RegionState::kLive);
  record->gate.close();
  expectRefused(pin(*record, 0, 1), Code::kClosed, "unregistered");
  table_.remove(record->allocation);
  expectRefused(pin(*record, 0, 1), Code::kInvalidArgument, "not registered");
}

TEST_F(RegionTableTest, GrantsExactlyTheRights) {
  struct Row {
    Access granted;
    Access wanted;
    bool allowed;
  };
  for (const Row& row : {Row{Access::kLocal, Access::kRemoteRead, false},
                         Row{Access::kLocal, Access::kRemoteWrite, false},
                         Row{Access::kRemoteRead, Access::kRemoteRead, true},
                         Row{Access::kRemoteRead, Access::kRemoteWrite, false},
                         Row{Access::kRemoteWrite, Access::kRemoteRead, false},
                         Row{Access::kRemoteWrite, Access::kRemoteWrite, true},
                         Row{Access::kRemoteReadWrite, Access::kRemoteRead, true},
                         Row{Access::kRemoteReadWrite, Access::kRemoteWrite, true}}) {
    const auto record = add(row.granted);
    const auto result = pin(*record, 0, 1, row.wanted);
    EXPECT_EQ(result.isOk(), row.allowed) << accessName(row.granted) << accessName(row.wanted);
    if (!result.isOk()) {
      expectRefused(result, Code::kPermissionDenied, accessName(row.granted));
      expectRefused(result, Code::kPermissionDenied, accessName(row.wanted));
    }
  }
}

// A peer may hold the same region twice for a moment: it asked again while its release of the
// first import was on its way.
TEST_F(RegionTableTest, AnImporterThatAskedTwiceStaysUntilItLetGoTwice) {
  const auto record = add();
  EXPECT_OK(table_.lend(record->allocation, record->generation, 5).status());
  EXPECT_OK(table_.lend(record->allocation, record->generation, 5).status());
  table_.removeImporter(record->allocation, 5);
  EXPECT_EQ(table_.importers(record->allocation), std::vector<uint64_t>{5});
  table_.removeImporter(record->allocation, 5);
  EXPECT_TRUE(table_.importers(record->allocation).empty());
}

TEST_F(RegionTableTest, ForgetsAnImporterWhollyWhenItConfirmed) {
  const auto record = add();
  EXPECT_OK(table_.lend(record->allocation, record->generation, 5).status());
  EXPECT_OK(table_.lend(record->allocation, record->generation, 5).status());
  EXPECT_OK(table_.lend(record->allocation, record->generation, 6).status());
  table_.forgetImporter(record->allocation, 5);
  EXPECT_EQ(table_.importers(record->allocation), std::vector<uint64_t>{6});
  table_.removeImporter(record->allocation, 5);
  table_.removeImporter(record->allocation, 7);
  EXPECT_EQ(table_.importers(record->allocation), std::vector<uint64_t>{6});
  EXPECT_EQ(table_.view().front().importers, 1u);
}

TEST_F(RegionTableTest, WhatIsLentStays) {
  const auto record = add();
  EXPECT_OK(table_.lend(record->allocation, record->generation, 5).status());
  table_.setState(record->allocation, RegionState::kClosing);
  EXPECT_FALSE(table_.removeUnlessLent(record->allocation));
  EXPECT_EQ(table_.lend(record->allocation, record->generation, 6).status().code(), Code::kClosed);
  EXPECT_EQ(table_.importers(record->allocation), std::vector<uint64_t>{5});
  table_.forgetImporter(record->allocation, 5);
  EXPECT_TRUE(table_.removeUnlessLent(record->allocation));
  EXPECT_FALSE(table_.removeUnlessLent(record->allocation));
  EXPECT_EQ(table_.lend(record->allocation, record->generation, 5).status().code(),
            Code::kInvalidArgument);
  const auto local = add(Access::kLocal);
  EXPECT_EQ(table_.lend(local->allocation, local->generation, 5).status().code(),
            Code::kPermissionDenied);
  EXPECT_TRUE(table_.importers(local->allocation).empty());
}

// Whoever asks for it while another thread takes it out has it, or is refused.
TEST_F(RegionTableTest, ARegionIsLentOrGone) {
  for (int round = 0; round < 200; ++round) {
    const auto record = add();
    std::atomic<bool> begins{false};
    bool isGone = false;
    std::thread other([&] {
      while (!begins) std::this_thread::yield();
      table_.setState(record->allocation, RegionState::kClosing);
      isGone = table_.removeUnlessLent(record->allocation);
    });
    begins = true;
    const bool isLent = table_.lend(record->allocation, record->generation, 5).isOk();
    other.join();
    ASSERT_NE(isLent, isGone);
  }
}

TEST_F(RegionTableTest, CountsTheQuarantined) {
  const auto first = add();
  const auto second = add();
  EXPECT_EQ(table_.quarantined(), 0u);
  table_.setState(second->allocation, RegionState::kQuarantined);
  EXPECT_EQ(table_.quarantined(), 1u);
  EXPECT_STREQ(regionStateName(table_.view()[1].state), "quarantined");
  EXPECT_STREQ(regionStateName(table_.view()[0].state), "live");
  EXPECT_EQ(first->allocation, table_.view()[0].allocation);
  table_.remove(second->allocation);
  EXPECT_EQ(table_.quarantined(), 0u);
}

// Its user has not unregistered it: what was posted with it is told that it was taken back.
TEST_F(RegionTableTest, AQuarantinedRegionIsTakenBackWhenItsUserUnregistersIt) {
  const auto record = add();
  const auto isTakenBack = [&] {
    return table_.isTakenBack(record->allocation, record->generation);
  };
  EXPECT_FALSE(isTakenBack());
  table_.setState(record->allocation, RegionState::kRevoked);
  table_.setState(record->allocation, RegionState::kQuarantined);
  EXPECT_FALSE(isTakenBack());
  table_.setState(record->allocation, RegionState::kClosing);
  EXPECT_TRUE(isTakenBack());
  EXPECT_EQ(table_.quarantined(), 1u) << "it stays in quarantine";
  table_.setState(record->allocation, RegionState::kRevoked);
  EXPECT_TRUE(isTakenBack());
  table_.remove(record->allocation);
  EXPECT_TRUE(isTakenBack());
}

TEST_F(RegionTableTest, NobodyFindsARegionThatIsBeingRegistered) {
  std::vector<std::byte> heap(100);
  const auto record = MUST(table_.begin(heap.data(), 100, Access::kRemoteReadWrite, {}, nullptr));
  expectRefused(pin(*record, 0, 1), Code::kUnavailable, "being registered");
  EXPECT_EQ(table_.holding(heap.data(), 100), nullptr);
  EXPECT_TRUE(table_.live().empty());
  EXPECT_OK(table_.publish(*record));
  EXPECT_EQ(table_.holding(heap.data(), 100), record);
  EXPECT_EQ(table_.publish(*record).code(), Code::kRevoked) << "once";
  const auto late = MUST(table_.begin(heap.data(), 100, Access::kRemoteReadWrite, {}, nullptr));
  table_.setState(late->allocation, RegionState::kRevoked);
  EXPECT_EQ(table_.publish(*late).code(), Code::kRevoked);
}

// Which region a transfer holds: the only one, or of several the only one in use.
TEST_F(RegionTableTest, OfSeveralRegionsTheOneInUseIsMeant) {
  const auto part = [this](uint64_t from, uint64_t bytes, Device device = Device()) {
    MemoryDescription memory;
    memory.device = device;
    return table_.add(bytes_.data() + from, bytes, Access::kLocal, std::move(memory), nullptr)
        .value();
  };
  std::byte* const at = bytes_.data() + 1024;
  EXPECT_EQ(table_.holding(at, 8), nullptr);
  const auto first = part(0, 2048);
  const auto beside = part(2048, 2048);
  EXPECT_EQ(table_.holding(at, 8), first);
  EXPECT_EQ(table_.holding(at, 1025), nullptr) << "in no region as a whole";
  EXPECT_EQ(table_.changes(), 0u) << "none has bytes of another";

  const auto second = part(512, 2048);
  EXPECT_EQ(table_.changes(), 1u);
  EXPECT_TRUE(first->isOverlapped && second->isOverlapped && beside->isOverlapped);
  EXPECT_EQ(table_.holding(at, 8), nullptr) << "no transfer holds either";
  ASSERT_TRUE(first->gate.enter());
  EXPECT_EQ(table_.holding(at, 8), first);
  ASSERT_TRUE(second->gate.enter());
  EXPECT_EQ(table_.holding(at, 8), nullptr) << "it may be either";
  EXPECT_EQ(table_.holding(bytes_.data(), 8), first) << "the other has none of these bytes";
  first->gate.leave();
  first->gate.close();
  second->gate.close();
  EXPECT_EQ(table_.holding(at, 8), second) << "a transfer under way holds one that is going";
  second->gate.leave();
  for (const auto& each : {first, second}) table_.remove(each->allocation);
  EXPECT_EQ(table_.holding(bytes_.data() + 3000, 8), beside);
  table_.remove(beside->allocation);

  // Memory that the CPU does not reach has no other way than a registration.
  const auto gpu = part(0, 4096, Device{DeviceKind::kCuda, 0}),
             other = part(0, 4096, Device{DeviceKind::kCuda, 0});
  EXPECT_NE(table_.holding(at, 8), nullptr);
  ASSERT_TRUE(gpu->gate.enter());
  EXPECT_EQ(table_.holding(at, 8), gpu);
  gpu->gate.leave();
}

TEST_F(RegionTableTest, ARegionSharesWhatItsRecordSays) {
  const auto record = add(Access::kRemoteRead);
  std::array<uint8_t, 16> owner{};
  owner[0] = 42;
  const Region region(record, owner);
  const auto reference = RegionReference::decode(region.share());
  ASSERT_TRUE(reference.isOk());
  EXPECT_EQ(reference->owner, owner);
  EXPECT_EQ(reference->allocation, record->allocation);
  EXPECT_EQ(reference->generation, record->generation);
  EXPECT_EQ(reference->bytes, 4096u);
  EXPECT_EQ(reference->access, Access::kRemoteRead);
  EXPECT_FALSE(region.isShared());
  EXPECT_EQ(region.description(), "test memory");
  EXPECT_FALSE(Region());
}

TEST_F(RegionTableTest, ManyThreadsPinWhileOneTakesRegionsAway) {
  std::atomic<uint64_t> current{0};
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> pinned{0};
  auto record = add();
  generation.store(record->generation);
  current.store(record->allocation);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const uint64_t allocation = current.load();
        if (table_.pin(allocation, generation.load(), 0, 4096, Access::kRemoteWrite).isOk()) {
          pinned.fetch_add(1);
          table_.unpin(allocation);
        }
      }
    });
  }
  for (int i = 0; i < 200 || pinned.load() < 100; ++i) {
    auto next = add();
    generation.store(next->generation);
    current.store(next->allocation);
    table_.setState(record->allocation, RegionState::kClosing);
    record->gate.close();
    while (!record->gate.drained()) std::this_thread::yield();
    table_.remove(record->allocation);
    record = std::move(next);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table_.view().size(), 1u);
  EXPECT_EQ(table_.view().front().pins, 0u);
}

// A large region, of which nobody has a byte, does not make the look at small ones longer; nor do
// others of their size.
TEST_F(RegionTableTest, ManyRegionsTakeAsManyStepsEach) {
  const auto steps = [](size_t count) {
    RegionTable table;
    std::vector<std::byte> pieces(count * 64);
    // Numbers alone: a table touches no memory.
    auto* const large = reinterpret_cast<std::byte*>(uint64_t{1} << 38);
    const auto make = [&table](std::byte* base, uint64_t bytes) {
      return MUST(table.add(base, bytes, Access::kRemoteRead, {}, nullptr));
    };
    (void)make(large, uint64_t{1} << 46);
    const uint64_t before = Steps::taken();
    for (size_t i = 0; i < count; ++i) {
      const auto record = make(pieces.data() + i * 64, 64);
      EXPECT_EQ(table.holding(record->base + 8, 8), record);
    }
    return Steps::taken() - before;
  };
  const uint64_t few = steps(500);
  EXPECT_GE(few, 500u) << "the steps are not counted";
  EXPECT_LE(steps(4000), few * 8 + 100);
}

}  // namespace
}  // namespace peerlane
