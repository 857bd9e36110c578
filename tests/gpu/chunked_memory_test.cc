// SPDX-License-Identifier: Apache-2.0
//
// Memory made of several physical chunks, as PyTorch's expandable segments are: registered as one
// region, imported chunk by chunk as transfers touch it, given back without a trace.
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/gpu/holdings.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kMiB = 1 << 20;

Region registered(Context& context, const Segment& segment, size_t offset = 0, size_t spare = 0) {
  return must(context.registerRegion(segment.data() + offset, segment.bytes() - offset - spare,
                                     Access::kRemoteReadWrite),
              "register");
}

void tell(const Region& region, const Line& line) {
  const auto reference = region.share();
  line.send(std::string(reinterpret_cast<const char*>(reference.data()), reference.size()));
}
RemoteRegion hear(const Peer& peer, const Line& line) {
  const std::string reference = line.receive();
  return must(peer.importRegion(std::as_bytes(std::span(reference))), "importRegion");
}

uint64_t metric(const Context& context, const std::string& name) {
  const std::string text = "\n" + context.metrics();
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size() + 2));
}

size_t openDescriptors() {
  return Holdings::now().descriptors;
}

// One side with a segment, registered; the other reaches it. `owner` ends when the other has ended.
using OwnerBody = std::function<void(const Meeting&, Segment&, const Region&, const Line&)>;
using UserBody = std::function<void(const Meeting&, const RemoteRegion&, const Line&)>;

bool runOwnerAndUser(const std::vector<size_t>& sizes, size_t offset, size_t spare,
                     const OwnerBody& owner, const UserBody& user, int seconds = 60) {
  return runTwo(
      [&](const Line& line) {
        const Meeting here(0, line);
        Segment segment(here.device.index, sizes);
        const Region region = registered(*here.context, segment, offset, spare);
        tell(region, line);
        owner(here, segment, region, line);
        line.meet();
        (void)here.context->unregister(region, kPatience);
      },
      [&](const Line& line) {
        const Meeting here(1, line);
        {
          const RemoteRegion remote = hear(here.peer, line);
          user(here, remote, line);
        }
        line.meet();
      },
      seconds);
}

void done(const Result<Transfer>& transfer) {
  if (!transfer.isOk()) die("post", transfer.status());
  must(transfer->wait(kPatience), "wait");
}

// --- Copies ---

class ChunkedMemory : public ::testing::TestWithParam<std::vector<size_t>> {};

TEST_P(ChunkedMemory, PutAndGetAcrossBorders) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kOffset = 123'456, kSpare = 65'436;
  const size_t bytes =
      std::accumulate(GetParam().begin(), GetParam().end(), size_t{0}) - kOffset - kSpare;
  EXPECT_TRUE(runOwnerAndUser(
      GetParam(), kOffset, kSpare,
      [&](const Meeting&, Segment&, const Region& region, const Line& line) {
        EXPECT_EQ(region.bytes(), bytes);
        EXPECT_NE(region.description().find("chunks"), std::string::npos) << region.description();
        for (uint32_t seed : {1u, 2u}) {
          clear(region.data(), bytes, 0);
          line.meet();
          line.meet();  // written
          EXPECT_EQ(wrongWords(region.data(), bytes, seed), 0u);
          line.meet();
        }
      },
      [&](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        // This side's memory is made of chunks as well, with borders elsewhere.
        const Device device = gpu(1);
        Segment segment(device.index, chunks(bytes / (4 * kMiB) + 2, 4 * kMiB));
        const Region mine = registered(*here.context, segment);
        uint32_t seed = 0;
        for (const Engine engine : {Engine::kSm, Engine::kCe}) {
          line.meet();
          constexpr size_t kMine = 777'216;
          fill(mine.data() + kMine, bytes, ++seed);
          const Block block{&mine, kMine, &remote, 0, bytes};
          done(put(here.peer, {&block, 1}, {.engine = engine}));
          clear(mine.data(), mine.bytes(), 0);
          done(get(here.peer, {&block, 1}, {.engine = engine}));
          EXPECT_EQ(wrongWords(mine.data() + kMine, bytes, seed), 0u);
          line.meet();
          line.meet();
        }
        must(here.context->unregister(mine, kPatience), "unregister");
      }));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ChunkedMemory,
                         ::testing::Values(chunks(9), chunks(3, 20 * kMiB),
                                           std::vector<size_t>{2 * kMiB, 20 * kMiB, 2 * kMiB,
                                                               2 * kMiB, 6 * kMiB}));

// --- What is imported, and when ---

TEST(ChunkedImport, OnlyWhatIsTouched) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(64), 0, 0,
      [](const Meeting& here, Segment&, const Region& region, const Line& line) {
        clear(region.data(), region.bytes(), 0);
        line.meet();
        line.meet();
        EXPECT_EQ(wrongWords(region.data() + 5 * 2 * kMiB + 4096, 8192, 7), 0u);
        EXPECT_EQ(wrongWords(region.data() + 41 * 2 * kMiB, 4096, 7, 8192), 0u);
        EXPECT_EQ(metric(*here.context, "peerlane_chunks_exported_total"), 2u);
        line.meet();
        line.meet();
        EXPECT_EQ(metric(*here.context, "peerlane_chunks_exported_total"), 64u);
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const Region mine =
            must(here.context->allocate(4 * kMiB, {.device = here.device}), "allocate");
        fill(mine.data(), mine.bytes(), 7);
        line.meet();
        EXPECT_EQ(remote.description(), "not imported yet");
        const Block blocks[] = {{&mine, 0, &remote, 5 * 2 * kMiB + 4096, 4096},
                                {&mine, 8192, &remote, 41 * 2 * kMiB, 4096},
                                {&mine, 4096, &remote, 5 * 2 * kMiB + 8192, 4096}};
        done(put(here.peer, blocks));
        EXPECT_EQ(remote.description(), "cuda, 2 of 64 chunks mapped");
        EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), 2u);
        done(put(here.peer, blocks));  // there already
        EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), 2u);
        line.meet();
        line.meet();
        const Block border{&mine, 0, &remote, 6 * 2 * kMiB - 100, 200};
        done(get(here.peer, {&border, 1}));
        EXPECT_EQ(remote.description(), "cuda, 3 of 64 chunks mapped");
        must(remote.prepare(kPatience), "prepare");
        must(remote.prepare(kPatience), "prepare");
        EXPECT_EQ(remote.description(), "cuda, 64 of 64 chunks mapped");
        EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), 64u);
        EXPECT_GT(metric(*here.context, "peerlane_chunk_import_nanoseconds_total"), 0u);
        line.meet();
      }));
}

// Who does not ask for chunks by himself (messages on streams) gets a region with all of them.
TEST(ChunkedImport, OthersGetAllOfIt) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(40), 4096, 0,
      [](const Meeting&, Segment& segment, const Region&, const Line& line) {
        line.meet();
        segment.unmap(30);  // nobody has asked for it yet
        line.meet();
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const auto imported = [&](const RemoteRegion& what) {
          auto slot = std::make_shared<ImportSlot>();
          here.peer.core()->imports().request(what.reference(), slot);
          must(here.peer.core()->progress().waitAsleep(
                   [&] {
                     const auto state = slot->state.load(std::memory_order_acquire);
                     return state == ImportSlot::State::kReady ||
                            state == ImportSlot::State::kFailed;
                   },
                   Progress::deadlineIn(kPatience)),
               "import");
          return slot;
        };
        {
          const auto slot = imported(remote);
          EXPECT_EQ(slot->state, ImportSlot::State::kReady) << slot->failure.toString();
          EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), 40u);
        }
        line.meet();
        line.meet();
        // It was let go of above, so it comes anew; one chunk does not.
        const auto slot = imported(remote);
        EXPECT_EQ(slot->state, ImportSlot::State::kFailed);
        EXPECT_EQ(slot->failure.code(), Code::kRevoked) << slot->failure.toString();
      }));
}

// Many chunks, few descriptors: neither side holds one for each. GPUs in software do (each chunk is
// a file), so there the limit is what these need and not twice as much.
TEST(ChunkedImport, MoreChunksThanDescriptors) {
  PEERLANE_NEEDS_GPUS(1);
  const size_t count = inSoftware() ? 512 : 4096;
  const auto limit = [] {
    const rlim_t most = inSoftware() ? 512 + 256 : 1024;
    const rlimit limits{most, most};
    if (setrlimit(RLIMIT_NOFILE, &limits) != 0) std::_Exit(6);
  };
  EXPECT_TRUE(runTwo(
      [&](const Line& line) {
        limit();
        const Meeting here(0, line);
        Segment segment(here.device.index, chunks(count));
        const Region region = registered(*here.context, segment);
        tell(region, line);
        const size_t before = openDescriptors();
        line.meet();
        for (size_t i = 0; i < 8; ++i)
          EXPECT_EQ(wrongWords(region.data() + (i * count / 8) * 2 * kMiB, 4096, 3), 0u);
        line.meet();
        EXPECT_LE(openDescriptors(), before);
        must(here.context->unregister(region, kPatience), "unregister");
        std::printf(
            "[ owner ] %zu chunks, %.1f us each\n", count,
            static_cast<double>(metric(*here.context, "peerlane_chunk_export_nanoseconds_total")) /
                1e3 / static_cast<double>(count));
        line.meet();
      },
      [&](const Line& line) {
        limit();
        const Meeting here(1, line);
        const Region mine =
            must(here.context->allocate(2 * kMiB, {.device = here.device}), "allocate");
        fill(mine.data(), mine.bytes(), 3);
        {
          const RemoteRegion remote = hear(here.peer, line);
          std::vector<Block> blocks;
          for (size_t i = 0; i < 8; ++i)
            blocks.push_back({&mine, 0, &remote, (i * count / 8) * 2 * kMiB, 4096});
          done(put(here.peer, blocks));
          EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), 8u);
          line.meet();
          const size_t before = openDescriptors();
          const auto begin = std::chrono::steady_clock::now();
          must(remote.prepare(std::chrono::seconds(60)), "prepare");
          const std::chrono::duration<double, std::micro> took =
              std::chrono::steady_clock::now() - begin;
          EXPECT_EQ(metric(*here.context, "peerlane_chunks_imported_total"), count);
          EXPECT_LE(openDescriptors(), before + (inSoftware() ? count - 8 : 0));
          std::printf("[ importer ] %zu chunks, %.1f us each, %.1f us of it here\n", count,
                      took.count() / static_cast<double>(count),
                      static_cast<double>(
                          metric(*here.context, "peerlane_chunk_import_nanoseconds_total")) /
                          1e3 / static_cast<double>(count));
        }
        line.meet();
        line.meet();
      },
      120));
}

// Posted on a stream of the caller's before anything is there: the stream waits, in order.
TEST(ChunkedImport, LatePostsKeepTheOrderOfTheirStream) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kBytes = 5 * kMiB;
  EXPECT_TRUE(runOwnerAndUser(
      chunks(32), 4096, 0,
      [](const Meeting&, Segment&, const Region& region, const Line& line) {
        line.meet();
        EXPECT_EQ(wrongWords(region.data() + 3 * kMiB, kBytes, 5), 0u);
        EXPECT_EQ(wrongWords(region.data() + 33 * kMiB, kBytes, 6), 0u);
        EXPECT_EQ(wrongWords(region.data() + 53 * kMiB, 65536, 6), 0u);
        EXPECT_EQ(wrongWords(region.data() + 57 * kMiB, 65536, 6), 0u);
        line.meet();
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const Region mine =
            must(here.context->allocate(kBytes, {.device = here.device}), "allocate");
        const DeviceStream onStream = here.deviceStream();
        // First nothing is imported, then the region is, but not these chunks.
        for (const auto& [seed, offset] : {std::pair{5u, 3 * kMiB}, std::pair{6u, 33 * kMiB}}) {
          fill(mine.data(), kBytes, seed);
          const Block block{&mine, 0, &remote, offset, kBytes};
          const Transfer first =
              must(put(here.peer, {&block, 1}, {.deviceStream = onStream}), "put");
          mustCuda(cudaMemsetAsync(mine.data(), 0, kBytes, here.stream), "memset");
          const Transfer second =
              must(get(here.peer, {&block, 1}, {.deviceStream = onStream}), "get");
          must(first.wait(kPatience), "wait");
          must(second.wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(mine.data(), kBytes, seed), 0u);
        }
        // A list, and with a signal.
        const Block list[] = {{&mine, 0, &remote, 53 * kMiB, 65536},
                              {&mine, 0, &remote, 57 * kMiB, 65536}};
        done(put(here.peer, list, {.notify = {.signal = 3}, .deviceStream = onStream}));
        line.meet();
        line.meet();
      }));
}

TEST(ChunkedImport, PlansBringAllThatTheyMayTouch) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPage = 96 * 1024;  // borders run through pages
  constexpr size_t kPages = 12 * 2 * kMiB / kPage;
  EXPECT_TRUE(runOwnerAndUser(
      chunks(12), 0, 0,
      [](const Meeting&, Segment&, const Region& region, const Line& line) {
        clear(region.data(), region.bytes(), 0);
        line.meet();
        line.meet();
        for (size_t i = 0; i < kPages; ++i)
          EXPECT_EQ(wrongWords(region.data() + (kPages - 1 - i) * kPage, kPage, 9, i * kPage), 0u);
        line.meet();
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const Region mine =
            must(here.context->allocate(kPages * kPage, {.device = here.device}), "allocate");
        fill(mine.data(), mine.bytes(), 9);
        line.meet();
        const IndexedBlocks pages{.local = &mine,
                                  .localCount = kPages,
                                  .remote = &remote,
                                  .remoteCount = kPages,
                                  .blockBytes = kPage,
                                  .maxBlocksPerPost = kPages};
        Plan plan = must(Plan::create(here.peer, Direction::kPut, pages), "plan");
        EXPECT_EQ(remote.description(), "cuda, 12 of 12 chunks mapped");
        std::vector<uint32_t> local(kPages), other(kPages);
        for (uint32_t i = 0; i < kPages; ++i) {
          local[i] = i;
          other[i] = static_cast<uint32_t>(kPages) - 1 - i;
        }
        done(plan.post(local, other, DeviceStream()));
        line.meet();
        line.meet();
      }));
}

// A graph cannot wait for a chunk.
TEST(ChunkedImport, CaptureNeedsPreparedChunks) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(8), 0, 0, [](const Meeting&, Segment&, const Region&, const Line&) {},
      [](const Meeting& here, const RemoteRegion& remote, const Line&) {
        const Region mine =
            must(here.context->allocate(2 * kMiB, {.device = here.device}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block other{&mine, 0, &remote, 9 * kMiB, 4096};
        done(put(here.peer, {&first, 1}));
        mustCuda(cudaStreamBeginCapture(here.stream, cudaStreamCaptureModeThreadLocal), "capture");
        const auto refused =
            put(here.peer, {&other, 1}, {.deviceStream = here.deviceStream()}).status();
        EXPECT_EQ(refused.code(), Code::kNotPrepared) << refused.toString();
        EXPECT_TRUE(put(here.peer, {&first, 1}, {.deviceStream = here.deviceStream()}).isOk());
        cudaGraph_t graph = nullptr;
        mustCuda(cudaStreamEndCapture(here.stream, &graph), "end of capture");
        mustCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
      }));
}

// --- Lifetimes ---

// A chunk in the middle goes: who asks for it is refused at once, and the sweep tells of the rest.
TEST(ChunkedLife, ChunksFreedBehindOurBackAreTold) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(16), 0, 0,
      [](const Meeting& here, Segment& segment, const Region&, const Line& line) {
        line.meet();  // chunk 0 is imported
        segment.unmap(7);
        segment.map(7);  // other memory at the same address
        line.meet();
        line.meet();
        EXPECT_NE(here.context->dump().find("bytes revoked"), std::string::npos)
            << here.context->dump();
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const Region mine =
            must(here.context->allocate(2 * kMiB, {.device = here.device}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block freed{&mine, 0, &remote, 14 * kMiB, 4096};
        done(put(here.peer, {&first, 1}));
        line.meet();
        line.meet();
        auto late = put(here.peer, {&freed, 1});
        const Status refused = late.isOk() ? late->wait(kPatience) : late.status();
        EXPECT_EQ(refused.code(), Code::kRevoked) << refused.toString();
        EXPECT_NE(refused.message().find("freed"), std::string::npos) << refused.toString();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        Status told;
        while (told.code() != Code::kRevoked && std::chrono::steady_clock::now() < deadline) {
          auto again = put(here.peer, {&first, 1});
          told = again.isOk() ? again->wait(kPatience) : again.status();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_EQ(told.code(), Code::kRevoked) << told.toString();
        EXPECT_NE(told.message().find("freed"), std::string::npos) << told.toString();
        line.meet();
      }));
}

TEST(ChunkedLife, UnregisteredWhileImported) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(16), 0, 0,
      [](const Meeting& here, Segment&, const Region& region, const Line& line) {
        line.meet();
        must(here.context->unregister(region, kPatience), "unregister");
        line.meet();
      },
      [](const Meeting& here, const RemoteRegion& remote, const Line& line) {
        const Region mine =
            must(here.context->allocate(2 * kMiB, {.device = here.device}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block other{&mine, 0, &remote, 14 * kMiB, 4096};
        done(put(here.peer, {&first, 1}));
        line.meet();
        line.meet();
        for (const Block& block : {first, other}) {
          auto posted = put(here.peer, {&block, 1});
          const Status closed = posted.isOk() ? posted->wait(kPatience) : posted.status();
          EXPECT_EQ(closed.code(), Code::kClosed) << closed.toString();
        }
      }));
}

TEST(ChunkedLife, CyclesLeaveNothing) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kCycles = 50;
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting here(0, line);
        Segment segment(here.device.index, chunks(24));
        Holdings before;
        for (int i = 0; i < kCycles; ++i) {
          if (i == 10) before = Holdings::now();
          const Region region = registered(*here.context, segment, 4096 * static_cast<size_t>(i));
          tell(region, line);
          line.meet();  // imported, used and, every other time, released
          must(here.context->unregister(region, kPatience), "unregister");
          line.meet();
        }
        expectNoMoreThan(before);
        line.meet();
      },
      [](const Line& line) {
        const Meeting here(1, line);
        const Region mine =
            must(here.context->allocate(2 * kMiB, {.device = here.device}), "allocate");
        Holdings before;
        for (int i = 0; i < kCycles; ++i) {
          if (i == 10) before = Holdings::now();
          std::optional<RemoteRegion> remote(hear(here.peer, line));
          const Block block{&mine, 0, &*remote, 3 * kMiB, kMiB + 1};
          done(put(here.peer, {&block, 1}));
          if (i % 3 == 0) must(remote->prepare(kPatience), "prepare");
          if (i % 2 == 0) remote.reset();
          line.meet();
          line.meet();
        }
        expectNoMoreThan(before);
        line.meet();
      },
      120));
}

// --- What is refused ---

TEST(ChunkedImport, WhatCannotTravelIsNamed) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Meeting here(0, line);
        {
          Segment segment(here.device.index, chunks(6));
          segment.unmap(3);
          segment.map(3, Export::kNone);
          const Region region = registered(*here.context, segment);
          EXPECT_NE(region.description().find("chunk 3 was not made for export"), std::string::npos)
              << region.description();
          tell(region, line);
          line.meet();
          must(here.context->unregister(region, kPatience), "unregister");
          // Past the end, and over a gap.
          const auto refusal = [&](std::byte* at, size_t bytes) {
            return here.context->registerRegion(at, bytes, Access::kRemoteReadWrite).status();
          };
          const Status past = refusal(segment.data() + 4096, segment.bytes());
          EXPECT_EQ(past.code(), Code::kInvalidArgument) << past.toString();
          EXPECT_NE(past.message().find("which has " + std::to_string(segment.bytes() - 4096)),
                    std::string::npos)
              << past.toString();
          segment.unmap(4);
          EXPECT_EQ(refusal(segment.data(), segment.bytes()).code(), Code::kInvalidArgument);
          EXPECT_TRUE(refusal(segment.data(), 4 * 2 * kMiB).isOk());
        }
        std::vector<size_t> changing;
        for (int i = 0; i < 257; ++i) changing.push_back((i % 2 == 0 ? 2 : 4) * kMiB);
        Segment segment(here.device.index, changing);
        const Status many =
            here.context->registerRegion(segment.data(), segment.bytes(), Access::kRemoteRead)
                .status();
        EXPECT_EQ(many.code(), Code::kNotSupported) << many.toString();
        EXPECT_NE(many.message().find("register it in parts"), std::string::npos);
      },
      [](const Line& line) {
        const Meeting here(1, line);
        const RemoteRegion remote = hear(here.peer, line);
        must(remote.prepare(kPatience), "prepare");
        for (const char* part : {"staged", "not made for export"})
          EXPECT_NE(remote.description().find(part), std::string::npos) << remote.description();
        line.meet();
      }));
}

// --- One process ---

TEST(ChunkedImport, ContextsOfOneProcess) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    for (const int other : {0, 1}) {
      const Device a = gpu(0), b = gpu(other);
      auto first = makeContext({a});
      auto second = makeContext({b});
      const Peer to = must(first->connect(second->ticket(), kPatience), "connect");
      const Peer from = must(second->accept(kPatience), "accept");
      mustCuda(cudaSetDevice(b.index), "cudaSetDevice");
      Segment segment(b.index, chunks(5));
      const Region target = registered(*second, segment, 8192);
      clear(target.data(), target.bytes(), 0);
      mustCuda(cudaSetDevice(a.index), "cudaSetDevice");
      const Region source = must(first->allocate(target.bytes(), {.device = a}), "allocate");
      fill(source.data(), source.bytes(), 4);
      {
        const RemoteRegion remote = must(to.importRegion(target.share()), "import");
        const Block block{&source, 0, &remote, 0, target.bytes()};
        done(put(to, {&block, 1}));
        EXPECT_EQ(remote.description(), "cuda");
      }
      mustCuda(cudaSetDevice(b.index), "cudaSetDevice");
      EXPECT_EQ(wrongWords(target.data(), target.bytes(), 4), 0u);
      must(second->unregister(target, kPatience), "unregister");
    }
  }));
}

}  // namespace
}  // namespace peerlane::gputest
