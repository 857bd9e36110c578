// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/kept_imports.h"

#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/program/stream/message/lane_areas.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CountedMapping final : public CudaMapping {
 public:
  CountedMapping(size_t bytes, int& alive) : CudaMapping(nullptr, bytes), alive_(alive) {
    ++alive_;
  }
  ~CountedMapping() override { --alive_; }

 private:
  int& alive_;
};

class KeptImportsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 2 << 20;

  std::shared_ptr<CudaMapping> find(uint64_t identity, std::optional<ProcessName> owner = {},
                                    uint64_t bytes = kBytes) {
    return must(kept_.find(owner.value_or(own_), identity, bytes,
                           [&]() -> Result<std::shared_ptr<CudaMapping>> {
                             ++imports_;
                             return std::shared_ptr<CudaMapping>(
                                 std::make_shared<CountedMapping>(bytes, alive_));
                           }),
                "find");
  }

  const ProcessName own_ = ProcessName::of(getpid()).value();
  const KeptImports::Clock::time_point start_ = KeptImports::Clock::now();
  int alive_ = 0, imports_ = 0;
  KeptImports kept_;  // last: what it holds counts in the others
};

TEST_F(KeptImportsTest, AnAllocationIsMappedOnceWhileItIsUsedAndAfterwards) {
  auto one = find(7);
  auto same = find(7);
  EXPECT_EQ(one, same);
  same.reset();
  one.reset();
  kept_.sweep(start_);
  (void)find(7);
  EXPECT_EQ(imports_, 1);
  EXPECT_EQ(alive_, 1);
}

TEST_F(KeptImportsTest, OthersAreMappedThemselves) {
  ProcessName other = own_;
  ++other.startTime;
  auto one = find(7);
  EXPECT_NE(one, find(8));
  EXPECT_NE(one, find(7, other)) << "the same pid, another process";
  EXPECT_NE(one, find(7, own_, 2 * kBytes));
  EXPECT_EQ(imports_, 4);
}

TEST_F(KeptImportsTest, WhatNobodyUsesGoesAfterItsTime) {
  auto used = find(7);
  (void)find(8);
  kept_.sweep(start_);
  kept_.sweep(start_ + KeptImports::kIdleTime - milliseconds(1));
  EXPECT_EQ(alive_, 2);
  kept_.sweep(start_ + KeptImports::kIdleTime);
  EXPECT_EQ(alive_, 1);
  used.reset();
  kept_.sweep(start_ + seconds(60));
  (void)find(7);  // its time begins anew
  kept_.sweep(start_ + seconds(62));
  kept_.sweep(start_ + seconds(62) + KeptImports::kIdleTime - milliseconds(1));
  EXPECT_EQ(alive_, 1);
  kept_.sweep(start_ + seconds(62) + KeptImports::kIdleTime);
  EXPECT_EQ(alive_, 0);
}

TEST_F(KeptImportsTest, WhatAnEndedProcessKeptGoesAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const ProcessName owner = ProcessName::of(child).value();
  auto used = find(7, owner);
  (void)find(8, owner);
  kept_.sweep(start_);
  EXPECT_EQ(alive_, 2);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  kept_.sweep(start_);
  EXPECT_EQ(alive_, 1) << "only what is used";
  used.reset();
  kept_.sweep(start_);
  EXPECT_EQ(alive_, 0);
}

TEST_F(KeptImportsTest, OfManyTheOldestGo) {
  constexpr int kMany = static_cast<int>(KeptImports::kMostIdle) + 3;
  for (int i = 0; i < kMany; ++i) {
    (void)find(i);
    kept_.sweep(start_ + milliseconds(i));
  }
  EXPECT_EQ(alive_, static_cast<int>(KeptImports::kMostIdle));
  imports_ = 0;
  for (int i = 3; i < kMany; ++i) (void)find(i);
  EXPECT_EQ(imports_, 0);
}

TEST_F(KeptImportsTest, AFailedImportIsTriedAgain) {
  const auto failed = kept_.find(own_, 7, kBytes, []() -> Result<std::shared_ptr<CudaMapping>> {
    return Status(Code::kOutOfMemory, "none");
  });
  EXPECT_EQ(failed.status().code(), Code::kOutOfMemory);
  (void)find(7);
  EXPECT_EQ(imports_, 1);
}

TEST_F(KeptImportsTest, ProcessesThatAreNotSeenHaveNoName) {
  EXPECT_FALSE(ProcessName::of(0));
  EXPECT_FALSE(ProcessName::of(-1));
}

std::byte* import(PeerCore& peer, const RegionName& name) {
  const auto slot = std::make_shared<ImportSlot>();
  peer.imports().request(referenceTo(peer, name), slot);
  must(peer.progress().wait(
           [&] {
             const auto state = slot->state.load(std::memory_order_acquire);
             return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed;
           },
           Progress::deadlineIn(kPatience)),
       "import");
  PEERLANE_CHECK(slot->region != nullptr);
  const RemoteMemory& memory = slot->region->memory;
  // Mappings of GPU memory begin on such a boundary; an area is smaller than its block.
  constexpr uintptr_t kBlock = uintptr_t{2} << 20;
  return memory.mapped - reinterpret_cast<uintptr_t>(memory.mapped) % kBlock;
}

// Areas of two connections, one after the other, of one block.
TEST(KeptImports, TheNextConnectionFindsLanesMapped) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kBytes = 4096;
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const auto context = makeContext({gpu(0)});
        const auto held = must(cuda::PrimaryContext::retainShared(gpu(0).index), "retain");
        const cuda::CurrentContext current(*held);
        stream::LaneAreas areas(held);
        for (int i = 0; i < 2; ++i) {
          Peer peer = meetPeer(*context, line, /*connects=*/false);
          auto memory = must(areas.take(kBytes), "take");
          auto description = must(memory->describe(), "describe");
          std::byte* const base = memory->data();
          const auto record =
              must(peer.core()->regions().add(base, kBytes, Access::kRemoteReadWrite,
                                              std::move(description), std::move(memory)),
                   "add");
          line.send(std::to_string(record->allocation));
          line.send(std::to_string(record->generation));
          line.meet();
          retireRegion(record, {peer.core()});
          peer.close();
          line.meet();
        }
      },
      [](const Line& line) {
        const auto context = makeContext({gpu(1)});
        std::byte* block = nullptr;
        for (int i = 0; i < 2; ++i) {
          Peer peer = meetPeer(*context, line, /*connects=*/true);
          RegionName name{.allocation = std::stoull(line.receive()),
                          .generation = std::stoull(line.receive()),
                          .bytes = kBytes,
                          .access = Access::kRemoteReadWrite};
          std::byte* const here = import(*peer.core(), name);
          // At another address it could be the same block as well, but not by chance at this one.
          EXPECT_TRUE(block == nullptr || block == here);
          block = here;
          line.meet();
          peer.close();
          line.meet();
          // Something else would take its addresses.
          auto other = must(context->allocate(size_t{2} << 20, {.device = gpu(1)}), "allocate");
          EXPECT_NE(other.data(), block);
          must(context->unregister(other), "unregister");
        }
      }));
}

}  // namespace
}  // namespace peerlane::gputest
