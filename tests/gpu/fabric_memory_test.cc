// SPDX-License-Identifier: Apache-2.0
//
// VMM memory that was made for export by fabric handle alone, as allocators make it where there is
// an IMEX channel: it travels as 64 bytes, alone and in chunks, and where the driver makes or takes
// no such handle it is staged, with the reason.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "peerlane/memory/cuda/cuda_mapping.h"
#include "peerlane/memory/fabric_probe.h"
#include "tests/gpu/holdings.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr size_t kBytes = size_t{5} << 20;

Region registered(Context& context, const Segment& segment, size_t offset, size_t bytes) {
  return must(context.registerRegion(segment.data() + offset, bytes, Access::kRemoteReadWrite),
              "registerRegion");
}

void expectParts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
}

// Both ways with both engines, at an odd offset: of one allocation, or of chunks of several sizes.
bool travels(const std::vector<size_t>& sizes, const std::string& said) {
  const auto side = [&](int index, const Line& line) {
    const Meeting meeting(index, line);
    const Segment segment(meeting.device.index, sizes, Export::kFabric);
    const Region region = registered(*meeting.context, segment, 1000, kBytes);
    expectParts(region.description(), {said.c_str(), "unverified on hardware"});
    fill(region.data(), kBytes, static_cast<uint32_t>(index));
    {
      const RemoteRegion remote = exchange(meeting.peer, region, line);
      const Region own =
          must(meeting.context->allocate(kBytes, {.device = meeting.device}), "allocate");
      const Block whole{&own, 0, &remote, 0, kBytes};
      uint32_t seed = 7;
      for (const Engine engine : {Engine::kCe, Engine::kSm}) {
        line.meet();
        must(must(get(meeting.peer, {&whole, 1}, {.engine = engine}), "get").wait(kPatience),
             "wait");
        EXPECT_EQ(
            wrongWords(own.data(), kBytes, seed == 7 ? static_cast<uint32_t>(1 - index) : seed),
            0u);
        line.meet();
        fill(own.data(), kBytes, ++seed);
        must(must(put(meeting.peer, {&whole, 1}, {.engine = engine}), "put").wait(kPatience),
             "wait");
        line.meet();
        EXPECT_EQ(wrongWords(region.data(), kBytes, seed), 0u);
      }
      EXPECT_EQ(remote.engine(), "cuda");
      line.meet();
    }
    must(meeting.context->unregister(region, kPatience), "unregister");
    line.meet();
  };
  return runTwo([&](const Line& line) { side(0, line); }, [&](const Line& line) { side(1, line); });
}

TEST(FabricMemory, TravelsByItsHandle) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(travels({3 * kGranule}, "VMM (fabric handle"));
}

TEST(FabricMemory, TravelsInChunks) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(travels({kGranule, kGranule, kGranule}, "3 chunks of 2 MiB (VMM, fabric handles"));
  EXPECT_TRUE(travels({kGranule, 2 * kGranule}, "2 chunks of 2 MiB to 4 MiB (VMM, fabric handles"));
}

// More chunks than one message is about, and only those that are touched.
TEST(FabricMemory, ChunksComeWhenTheyAreTouched) {
  PEERLANE_NEEDS_FABRIC();
  constexpr size_t kChunks = 40;
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        const Segment segment(meeting.device.index, chunks(kChunks), Export::kFabric);
        const Region region = registered(*meeting.context, segment, 0, segment.bytes());
        (void)exchange(meeting.peer, region, line);
        line.meet();
        EXPECT_EQ(wrongWords(region.data() + 20 * kGranule, 4096, 3), 0u);
        line.meet();
        must(meeting.context->unregister(region, kPatience), "unregister");
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(4096, {.device = meeting.device}), "allocate");
        fill(own.data(), 4096, 3);
        {
          const RemoteRegion remote = exchange(meeting.peer, own, line);
          const Block block{&own, 0, &remote, 20 * kGranule, 4096};
          must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
          EXPECT_EQ(remote.description(), "cuda, 1 of 40 chunks mapped");
          must(remote.prepare(kPatience), "prepare");
          EXPECT_EQ(remote.description(), "cuda, 40 of 40 chunks mapped");
          line.meet();
        }
        line.meet();
      }));
}

// A descriptor is the first choice, of one allocation and of chunks.
TEST(FabricMemory, ADescriptorIsPreferred) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(runOne([](const Line&) {
    const Device device = gpu(0);
    const auto context = makeContext({device});
    const Segment both(device.index, chunks(2), Export::kBoth);
    for (const size_t bytes : {kGranule, 2 * kGranule}) {
      const Region region = registered(*context, both, 0, bytes);
      EXPECT_NE(region.description().find("descriptor"), std::string::npos) << region.description();
      EXPECT_EQ(region.description().find("fabric"), std::string::npos) << region.description();
    }
    // One that has both and one that has a fabric handle alone go by fabric handle.
    Segment mixed(device.index, chunks(2), Export::kBoth);
    mixed.unmap(1);
    mixed.map(1, Export::kFabric);
    EXPECT_NE(registered(*context, mixed, 0, mixed.bytes()).description().find("fabric handles"),
              std::string::npos);
  }));
}

// Chunks that cannot all travel alike: staged, and both are named.
TEST(FabricMemory, ARangeOfBothKindsIsStagedAndSaysWhy) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting meeting(0, line);
        Segment segment(meeting.device.index, chunks(3));
        segment.unmap(1);
        segment.map(1, Export::kFabric);
        const Region region = registered(*meeting.context, segment, 0, segment.bytes());
        expectParts(region.description(),
                    {"not mapped by peers", "chunk 1 was not made for export as a descriptor",
                     "chunk 0 not by fabric handle"});
        fill(region.data(), segment.bytes(), 4);
        (void)exchange(meeting.peer, region, line);
        line.meet();
      },
      [](const Line& line) {
        const Meeting meeting(1, line);
        const Region own =
            must(meeting.context->allocate(3 * kGranule, {.device = meeting.device}), "allocate");
        const RemoteRegion remote = exchange(meeting.peer, own, line);
        const Block all{&own, 0, &remote, 0, 3 * kGranule};
        must(must(get(meeting.peer, {&all, 1}), "get").wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(own.data(), own.bytes(), 4), 0u);
        expectParts(remote.description(), {"staged"});
        line.meet();
      }));
}

// In another process: a handle opens what it is of, a changed one nothing, and neither does one
// whose memory is gone.
TEST(FabricMemory, AForgedHandleOpensNothing) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        const auto context = makeContext({device});
        std::optional<Segment> segment(std::in_place, device.index, chunks(1), Export::kFabric);
        fill(segment->data(), kGranule, 6);
        const auto handle = must(exportFabric(segment->data()), "exportFabric");
        line.send(std::string(reinterpret_cast<const char*>(handle.data()), handle.size()));
        line.meet();
        segment.reset();
        line.meet();
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        const cuda::Gpus gpus{must(cuda::PrimaryContext::retainShared(device.index), "retain")};
        const std::string sent = line.receive();
        VmmHandle handle;
        handle.fabric.resize(sent.size());
        std::copy_n(reinterpret_cast<const std::byte*>(sent.data()), sent.size(),
                    handle.fabric.begin());
        const auto refused = [&](const VmmHandle& forged) {
          return CudaMapping::importAllocation(forged, kGranule, gpus).status();
        };
        {
          const auto mapping =
              must(CudaMapping::importAllocation(handle, kGranule, gpus), "import");
          EXPECT_EQ(wrongWords(mapping->data(), kGranule, 6), 0u);
        }
        for (const size_t at : {size_t{1}, size_t{5}, size_t{20}}) {
          VmmHandle forged{{}, handle.fabric};
          forged.fabric[at] ^= std::byte{0x55};
          const Status status = refused(forged);
          EXPECT_FALSE(status.isOk()) << at;
          expectParts(status.toString(),
                      {"the fabric handle leads to no memory", "cuMemImportFromShareableHandle"});
        }
        VmmHandle cut{{}, handle.fabric};
        cut.fabric.pop_back();
        EXPECT_EQ(refused(cut).code(), Code::kCorrupt);
        line.meet();
        line.meet();  // it is gone
        EXPECT_FALSE(refused(handle).isOk());
        line.meet();
      }));
}

TEST(FabricMemory, CyclesLeaveNothing) {
  PEERLANE_NEEDS_FABRIC();
  constexpr int kCycles = 100;
  const auto side = [](int index, const Line& line) {
    const Meeting meeting(index, line);
    Holdings before;
    for (int i = 0; i < kCycles; ++i) {
      if (i == 20) before = Holdings::now();
      const Segment segment(meeting.device.index, chunks(i % 3 == 0 ? 3 : 1), Export::kFabric);
      const Region region = registered(*meeting.context, segment, 0, segment.bytes());
      {
        std::optional<RemoteRegion> remote(exchange(meeting.peer, region, line));
        const Block block{&region, 0, &*remote, 8, 4096};
        must(must(put(meeting.peer, {&block, 1}), "put").wait(kPatience), "wait");
        if (i % 2 == 0) remote.reset();  // or it is taken back while somebody has a handle of it
        line.meet();
        must(meeting.context->unregister(region, kPatience), "unregister");
      }
    }
    line.meet();
    expectNoMoreThan(before);
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { side(0, line); },
                     [&](const Line& line) { side(1, line); }, 120));
}

// --- Where there is no channel ---

// An answer stays, so that all connections of a process are told the same; but a GPU that was full
// is asked again.
TEST(FabricProbe, AnswersOnceButWhereTheGpuIsFull) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software, whose handles fail when told to";
  EXPECT_TRUE(runOne([](const Line&) {
    const Device device = gpu(0);
    const auto held = must(cuda::PrimaryContext::retain(device.index), "retain");
    size_t available = 0, total = 0;
    mustCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    void* all = nullptr;
    mustCuda(cudaMalloc(&all, available), "cudaMalloc");
    EXPECT_EQ(tryFabric(held).code(), Code::kOutOfMemory);
    mustCuda(cudaFree(all), "cudaFree");
    EXPECT_TRUE(tryFabric(held).isOk());
    setenv("SOFTWARE_GPU_FABRIC", "absent", 1);
    EXPECT_TRUE(tryFabric(held).isOk());
  }));
  EXPECT_TRUE(runOne([](const Line&) {
    setenv("SOFTWARE_GPU_FABRIC", "no-channel", 1);
    const auto held = must(cuda::PrimaryContext::retain(gpu(0).index), "retain");
    const Status refused = tryFabric(held);
    EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
    unsetenv("SOFTWARE_GPU_FABRIC");
    EXPECT_EQ(tryFabric(held).toString(), refused.toString());
  }));
}

struct Failure {
  const char* how;   // SOFTWARE_GPU_FABRIC
  bool isOfOwner;    // who cannot
  const char* says;  // to him
};

class FabricRefused : public ::testing::TestWithParam<Failure> {};

// Allocators have made memory so, and no handle of it is made; or the peer that has one may not use
// it. Both are told.
INSTANTIATE_TEST_SUITE_P(
    By, FabricRefused,
    ::testing::Values(Failure{"no-export", true, "cuMemExportToShareableHandle (fabric)"},
                      Failure{"no-channel", false, "cuMemCreate (fabric)"},
                      Failure{"no-export", false, "cuMemExportToShareableHandle (fabric)"},
                      Failure{"absent", false, "the driver offers none"}),
    [](const auto& tested) {
      std::string name = tested.param.how;
      name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
      return name + (tested.param.isOfOwner ? "OfTheOwner" : "OfTheImporter");
    });

// What the owner does: fills `count` granules and says so, until the other side has ended.
void own(const Line& line, const Failure& failure, size_t count) {
  if (failure.isOfOwner) setenv("SOFTWARE_GPU_FABRIC", failure.how, 1);
  const Meeting meeting(0, line);
  const Segment segment(meeting.device.index, chunks(count), Export::kFabric);
  const Region region = registered(*meeting.context, segment, 0, segment.bytes());
  if (failure.isOfOwner) expectParts(region.description(), {"not mapped by peers", failure.says});
  fill(region.data(), segment.bytes(), 8);
  (void)exchange(meeting.peer, region, line);
  line.meet();
}

void expectReason(const std::string& text, const Failure& failure) {
  if (failure.isOfOwner)
    expectParts(text, {"its driver exports none of it"});
  else
    expectParts(text, {"fabric handles cannot be used on cuda:", failure.says});
}

TEST_P(FabricRefused, ItIsStagedWithTheReason) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software, whose handles fail when told to";
  const Failure failure = GetParam();
  for (const size_t count : {size_t{1}, size_t{3}})
    EXPECT_TRUE(runTwo(
        [&](const Line& line) { own(line, failure, count); },
        [&](const Line& line) {
          if (!failure.isOfOwner) setenv("SOFTWARE_GPU_FABRIC", failure.how, 1);
          const Meeting meeting(1, line);
          const Region mine = must(
              meeting.context->allocate(count * kGranule, {.device = meeting.device}), "allocate");
          {
            const RemoteRegion remote = exchange(meeting.peer, mine, line);
            must(remote.prepare(kPatience), "prepare");
            expectParts(remote.description(), {"staged through host memory"});
            expectReason(remote.description(), failure);
            if (!failure.isOfOwner) expectReason(meeting.peer.route().toString(), failure);
            const Block all{&mine, 0, &remote, 0, mine.bytes()};
            must(must(get(meeting.peer, {&all, 1}), "get").wait(kPatience), "wait");
            EXPECT_EQ(wrongWords(mine.data(), mine.bytes(), 8), 0u);
            EXPECT_NE(meeting.context->metrics().find("engine=\"staged\""), std::string::npos);
          }
          line.meet();
        }));
}

TEST_P(FabricRefused, ItIsAnErrorUnderStrict) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software, whose handles fail when told to";
  const Failure failure = GetParam();
  for (const size_t count : {size_t{1}, size_t{3}})
    EXPECT_TRUE(runTwo(
        [&](const Line& line) { own(line, failure, count); },
        [&](const Line& line) {
          setenv("PEERLANE_STRICT", "1", 1);
          if (!failure.isOfOwner) setenv("SOFTWARE_GPU_FABRIC", failure.how, 1);
          const Meeting meeting(1, line);
          const Region mine =
              must(meeting.context->allocate(kGranule, {.device = meeting.device}), "allocate");
          {
            const RemoteRegion remote = exchange(meeting.peer, mine, line);
            const Block block{&mine, 0, &remote, 0, mine.bytes()};
            for (const Status& status :
                 {get(meeting.peer, {&block, 1}).status(),
                  Plan::create(meeting.peer, Direction::kPut, {&block, 1}).status()}) {
              EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
              expectParts(status.toString(), {"PEERLANE_STRICT"});
              expectReason(status.toString(), failure);
            }
          }
          line.meet();
        }));
}

}  // namespace
}  // namespace peerlane::gputest
