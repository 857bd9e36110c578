// SPDX-License-Identifier: Apache-2.0
//
// Memory made of several physical chunks, as PyTorch's expandable segments are: registered as one
// region, imported chunk by chunk as transfers touch it, given back without a trace.
#include <cuda_runtime_api.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "peerlane/os/cuda_driver.h"
#include "peerlane/session/peer_core.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kMiB = 1 << 20;

void mustDriver(CUresult result, const char* what) {
  must(cuda::check(result, what), what);
}

// Reserved addresses with chunks mapped side by side.
class Segment {
 public:
  Segment(int gpu, std::vector<size_t> sizes, size_t notExportable = SIZE_MAX)
      : gpu_(gpu), sizes_(std::move(sizes)) {
    bytes_ = std::accumulate(sizes_.begin(), sizes_.end(), size_t{0});
    mustDriver(cuda::api().cuMemAddressReserve(&base_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    size_t at = 0;
    for (size_t i = 0; i < sizes_.size(); at += sizes_[i++]) {
      offsets_.push_back(at);
      map(i, i != notExportable);
    }
  }
  ~Segment() {
    for (size_t i = 0; i < sizes_.size(); ++i) unmap(i);
    mustDriver(cuda::api().cuMemAddressFree(base_, bytes_), "cuMemAddressFree");
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }
  size_t bytes() const { return bytes_; }

  void map(size_t i, bool exportable = true) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_};
    if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    mustDriver(cuda::api().cuMemCreate(&handle, sizes_[i], &properties, 0), "cuMemCreate");
    mustDriver(cuda::api().cuMemMap(base_ + offsets_[i], sizes_[i], 0, handle, 0), "cuMemMap");
    mustDriver(cuda::api().cuMemRelease(handle), "cuMemRelease");
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mustDriver(cuda::api().cuMemSetAccess(base_ + offsets_[i], sizes_[i], &access, 1),
               "cuMemSetAccess");
    mapped_.resize(sizes_.size());
    mapped_[i] = true;
  }
  void unmap(size_t i) {
    if (!mapped_[i]) return;
    mustDriver(cuda::api().cuMemUnmap(base_ + offsets_[i], sizes_[i]), "cuMemUnmap");
    mapped_[i] = false;
  }

 private:
  const int gpu_;
  const std::vector<size_t> sizes_;
  size_t bytes_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<size_t> offsets_;
  std::vector<bool> mapped_;
};

std::vector<size_t> chunks(size_t count, size_t bytes = 2 * kMiB) {
  return std::vector<size_t>(count, bytes);
}

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
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

size_t mappings() {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

size_t freeMemory() {
  size_t available = 0, total = 0;
  mustCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

// One side with a segment, registered; the other reaches it. `owner` ends when the other has ended.
using OwnerBody = std::function<void(Context&, const Peer&, Segment&, const Region&, const Line&)>;
using UserBody = std::function<void(Context&, const Peer&, const RemoteRegion&, const Line&)>;

bool runOwnerAndUser(const std::vector<size_t>& sizes, size_t offset, size_t spare,
                     const OwnerBody& owner, const UserBody& user, int seconds = 60) {
  return runTwo(
      [&](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        Segment segment(device.index, sizes);
        const Region region = registered(*context, segment, offset, spare);
        const Peer peer = meetPeer(*context, line, false);
        tell(region, line);
        owner(*context, peer, segment, region, line);
        line.meet();
        (void)context->unregister(region, kPatience);
      },
      [&](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        {
          const RemoteRegion remote = hear(peer, line);
          user(*context, peer, remote, line);
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
      [&](Context&, const Peer&, Segment&, const Region& region, const Line& line) {
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
      [&](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        // This side's memory is made of chunks as well, with borders elsewhere.
        const Device device = gpu(1);
        Segment segment(device.index, chunks(bytes / (4 * kMiB) + 2, 4 * kMiB));
        const Region mine = registered(context, segment);
        uint32_t seed = 0;
        for (const Engine engine : {Engine::kSm, Engine::kCe}) {
          line.meet();
          constexpr size_t kMine = 777'216;
          fill(mine.data() + kMine, bytes, ++seed);
          const Block block{&mine, kMine, &remote, 0, bytes};
          done(put(peer, {&block, 1}, {.engine = engine}));
          clear(mine.data(), mine.bytes(), 0);
          done(get(peer, {&block, 1}, {.engine = engine}));
          EXPECT_EQ(wrongWords(mine.data() + kMine, bytes, seed), 0u);
          line.meet();
          line.meet();
        }
        must(context.unregister(mine, kPatience), "unregister");
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
      [](Context& context, const Peer&, Segment&, const Region& region, const Line& line) {
        clear(region.data(), region.bytes(), 0);
        line.meet();
        line.meet();
        EXPECT_EQ(wrongWords(region.data() + 5 * 2 * kMiB + 4096, 8192, 7), 0u);
        EXPECT_EQ(wrongWords(region.data() + 41 * 2 * kMiB, 4096, 7, 8192), 0u);
        EXPECT_EQ(metric(context, "peerlane_chunks_exported_total"), 2u);
        line.meet();
        line.meet();
        EXPECT_EQ(metric(context, "peerlane_chunks_exported_total"), 64u);
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const Region mine = must(context.allocate(4 * kMiB, {.device = gpu(1)}), "allocate");
        fill(mine.data(), mine.bytes(), 7);
        line.meet();
        EXPECT_EQ(remote.description(), "not imported yet");
        const Block blocks[] = {{&mine, 0, &remote, 5 * 2 * kMiB + 4096, 4096},
                                {&mine, 8192, &remote, 41 * 2 * kMiB, 4096},
                                {&mine, 4096, &remote, 5 * 2 * kMiB + 8192, 4096}};
        done(put(peer, blocks));
        EXPECT_EQ(remote.description(), "cuda, 2 of 64 chunks mapped");
        EXPECT_EQ(metric(context, "peerlane_chunks_imported_total"), 2u);
        done(put(peer, blocks));  // there already
        EXPECT_EQ(metric(context, "peerlane_chunks_imported_total"), 2u);
        line.meet();
        line.meet();
        const Block border{&mine, 0, &remote, 6 * 2 * kMiB - 100, 200};
        done(get(peer, {&border, 1}));
        EXPECT_EQ(remote.description(), "cuda, 3 of 64 chunks mapped");
        must(remote.prepare(kPatience), "prepare");
        must(remote.prepare(kPatience), "prepare");
        EXPECT_EQ(remote.description(), "cuda, 64 of 64 chunks mapped");
        EXPECT_EQ(metric(context, "peerlane_chunks_imported_total"), 64u);
        EXPECT_GT(metric(context, "peerlane_chunk_import_nanoseconds_total"), 0u);
        line.meet();
      }));
}

// Who does not ask for chunks by himself (messages on streams) gets a region with all of them.
TEST(ChunkedImport, OthersGetAllOfIt) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(40), 4096, 0,
      [](Context&, const Peer&, Segment& segment, const Region&, const Line& line) {
        line.meet();
        segment.unmap(30);  // nobody has asked for it yet
        line.meet();
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const auto imported = [&](const RemoteRegion& what) {
          auto slot = std::make_shared<ImportSlot>();
          peer.core()->requestImport(what.reference(), slot);
          must(peer.core()->progress().waitAsleep(
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
          EXPECT_EQ(metric(context, "peerlane_chunks_imported_total"), 40u);
        }
        line.meet();
        line.meet();
        // It was let go of above, so it comes anew; one chunk does not.
        const auto slot = imported(remote);
        EXPECT_EQ(slot->state, ImportSlot::State::kFailed);
        EXPECT_EQ(slot->failure.code(), Code::kClosed) << slot->failure.toString();
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
        const Device device = gpu(0);
        auto context = makeContext({device});
        Segment segment(device.index, chunks(count));
        const Region region = registered(*context, segment);
        const Peer peer = meetPeer(*context, line, false);
        tell(region, line);
        const size_t before = openDescriptors();
        line.meet();
        for (size_t i = 0; i < 8; ++i)
          EXPECT_EQ(wrongWords(region.data() + (i * count / 8) * 2 * kMiB, 4096, 3), 0u);
        line.meet();
        EXPECT_LE(openDescriptors(), before);
        must(context->unregister(region, kPatience), "unregister");
        std::printf(
            "[ owner ] %zu chunks, %.1f us each\n", count,
            static_cast<double>(metric(*context, "peerlane_chunk_export_nanoseconds_total")) / 1e3 /
                static_cast<double>(count));
        line.meet();
      },
      [&](const Line& line) {
        limit();
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        const Region mine = must(context->allocate(2 * kMiB, {.device = device}), "allocate");
        fill(mine.data(), mine.bytes(), 3);
        {
          const RemoteRegion remote = hear(peer, line);
          std::vector<Block> blocks;
          for (size_t i = 0; i < 8; ++i)
            blocks.push_back({&mine, 0, &remote, (i * count / 8) * 2 * kMiB, 4096});
          done(put(peer, blocks));
          EXPECT_EQ(metric(*context, "peerlane_chunks_imported_total"), 8u);
          line.meet();
          const size_t before = openDescriptors();
          const auto begin = std::chrono::steady_clock::now();
          must(remote.prepare(std::chrono::seconds(60)), "prepare");
          const std::chrono::duration<double, std::micro> took =
              std::chrono::steady_clock::now() - begin;
          EXPECT_EQ(metric(*context, "peerlane_chunks_imported_total"), count);
          EXPECT_LE(openDescriptors(), before + (inSoftware() ? count - 8 : 0));
          std::printf(
              "[ importer ] %zu chunks, %.1f us each, %.1f us of it here\n", count,
              took.count() / static_cast<double>(count),
              static_cast<double>(metric(*context, "peerlane_chunk_import_nanoseconds_total")) /
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
      [](Context&, const Peer&, Segment&, const Region& region, const Line& line) {
        line.meet();
        EXPECT_EQ(wrongWords(region.data() + 3 * kMiB, kBytes, 5), 0u);
        EXPECT_EQ(wrongWords(region.data() + 33 * kMiB, kBytes, 6), 0u);
        EXPECT_EQ(wrongWords(region.data() + 53 * kMiB, 65536, 6), 0u);
        EXPECT_EQ(wrongWords(region.data() + 57 * kMiB, 65536, 6), 0u);
        line.meet();
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const Region mine = must(context.allocate(kBytes, {.device = gpu(1)}), "allocate");
        cudaStream_t stream = nullptr;
        mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        const auto onStream = DeviceStream::cuda(stream);
        // First nothing is imported, then the region is, but not these chunks.
        for (const auto& [seed, offset] : {std::pair{5u, 3 * kMiB}, std::pair{6u, 33 * kMiB}}) {
          fill(mine.data(), kBytes, seed);
          const Block block{&mine, 0, &remote, offset, kBytes};
          const Transfer first = must(put(peer, {&block, 1}, {.deviceStream = onStream}), "put");
          mustCuda(cudaMemsetAsync(mine.data(), 0, kBytes, stream), "memset");
          const Transfer second = must(get(peer, {&block, 1}, {.deviceStream = onStream}), "get");
          must(first.wait(kPatience), "wait");
          must(second.wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(mine.data(), kBytes, seed), 0u);
        }
        // A list, and with a signal.
        const Block list[] = {{&mine, 0, &remote, 53 * kMiB, 65536},
                              {&mine, 0, &remote, 57 * kMiB, 65536}};
        done(put(peer, list, {.notify = {.signal = 3}, .deviceStream = onStream}));
        line.meet();
        line.meet();
        mustCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
      }));
}

TEST(ChunkedImport, PlansBringAllThatTheyMayTouch) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPage = 96 * 1024;  // borders run through pages
  constexpr size_t kPages = 12 * 2 * kMiB / kPage;
  EXPECT_TRUE(runOwnerAndUser(
      chunks(12), 0, 0,
      [](Context&, const Peer&, Segment&, const Region& region, const Line& line) {
        clear(region.data(), region.bytes(), 0);
        line.meet();
        line.meet();
        for (size_t i = 0; i < kPages; ++i)
          EXPECT_EQ(wrongWords(region.data() + (kPages - 1 - i) * kPage, kPage, 9, i * kPage), 0u);
        line.meet();
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const Region mine = must(context.allocate(kPages * kPage, {.device = gpu(1)}), "allocate");
        fill(mine.data(), mine.bytes(), 9);
        line.meet();
        const IndexedBlocks pages{.local = &mine,
                                  .localCount = kPages,
                                  .remote = &remote,
                                  .remoteCount = kPages,
                                  .blockBytes = kPage,
                                  .maxBlocksPerPost = kPages};
        Plan plan = must(Plan::create(peer, Direction::kPut, pages), "plan");
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
      chunks(8), 0, 0, [](Context&, const Peer&, Segment&, const Region&, const Line&) {},
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line&) {
        const Region mine = must(context.allocate(2 * kMiB, {.device = gpu(1)}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block other{&mine, 0, &remote, 9 * kMiB, 4096};
        done(put(peer, {&first, 1}));
        cudaStream_t stream = nullptr;
        mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        mustCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        const auto refused =
            put(peer, {&other, 1}, {.deviceStream = DeviceStream::cuda(stream)}).status();
        EXPECT_EQ(refused.code(), Code::kNotPrepared) << refused.toString();
        EXPECT_TRUE(put(peer, {&first, 1}, {.deviceStream = DeviceStream::cuda(stream)}).isOk());
        cudaGraph_t graph = nullptr;
        mustCuda(cudaStreamEndCapture(stream, &graph), "end of capture");
        mustCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
        mustCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
      }));
}

// --- Lifetimes ---

// A chunk in the middle goes: who asks for it is refused at once, and the sweep tells of the rest.
TEST(ChunkedLife, ChunksFreedBehindOurBackAreTold) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(16), 0, 0,
      [](Context& context, const Peer&, Segment& segment, const Region&, const Line& line) {
        line.meet();  // chunk 0 is imported
        segment.unmap(7);
        segment.map(7);  // other memory at the same address
        line.meet();
        line.meet();
        EXPECT_NE(context.dump().find("freed behind our back"), std::string::npos)
            << context.dump();
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const Region mine = must(context.allocate(2 * kMiB, {.device = gpu(1)}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block freed{&mine, 0, &remote, 14 * kMiB, 4096};
        done(put(peer, {&first, 1}));
        line.meet();
        line.meet();
        auto late = put(peer, {&freed, 1});
        const Status refused = late.isOk() ? late->wait(kPatience) : late.status();
        EXPECT_EQ(refused.code(), Code::kClosed) << refused.toString();
        EXPECT_NE(refused.message().find("freed"), std::string::npos) << refused.toString();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        Status told;
        while (told.code() != Code::kClosed && std::chrono::steady_clock::now() < deadline) {
          auto again = put(peer, {&first, 1});
          told = again.isOk() ? again->wait(kPatience) : again.status();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_EQ(told.code(), Code::kClosed) << told.toString();
        EXPECT_NE(told.message().find("freed"), std::string::npos) << told.toString();
        line.meet();
      }));
}

TEST(ChunkedLife, UnregisteredWhileImported) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOwnerAndUser(
      chunks(16), 0, 0,
      [](Context& context, const Peer&, Segment&, const Region& region, const Line& line) {
        line.meet();
        must(context.unregister(region, kPatience), "unregister");
        line.meet();
      },
      [](Context& context, const Peer& peer, const RemoteRegion& remote, const Line& line) {
        const Region mine = must(context.allocate(2 * kMiB, {.device = gpu(1)}), "allocate");
        const Block first{&mine, 0, &remote, 0, 4096};
        const Block other{&mine, 0, &remote, 14 * kMiB, 4096};
        done(put(peer, {&first, 1}));
        line.meet();
        line.meet();
        for (const Block& block : {first, other}) {
          auto posted = put(peer, {&block, 1});
          const Status closed = posted.isOk() ? posted->wait(kPatience) : posted.status();
          EXPECT_EQ(closed.code(), Code::kClosed) << closed.toString();
        }
      }));
}

TEST(ChunkedLife, CyclesLeaveNothing) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kCycles = 50;
  struct Footprint {
    size_t descriptors = openDescriptors();
    size_t maps = mappings();
    size_t memory = freeMemory();
    bool kept() const {
      return openDescriptors() <= descriptors && mappings() <= maps + 4 &&  // the heap's own
             freeMemory() + 4 * kMiB >= memory;
    }
    // What is released last goes by the progress thread.
    void expectKept() const {
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (!kept() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_LE(openDescriptors(), descriptors);
      EXPECT_LE(mappings(), maps + 4);
      EXPECT_GE(freeMemory() + 4 * kMiB, memory);
    }
  };
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, false);
        Segment segment(device.index, chunks(24));
        std::optional<Footprint> before;
        for (int i = 0; i < kCycles; ++i) {
          if (i == 10) before.emplace();
          const Region region = registered(*context, segment, 4096 * static_cast<size_t>(i));
          tell(region, line);
          line.meet();  // imported, used and, every other time, released
          must(context->unregister(region, kPatience), "unregister");
          line.meet();
        }
        before->expectKept();
        line.meet();
      },
      [](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        const Region mine = must(context->allocate(2 * kMiB, {.device = device}), "allocate");
        std::optional<Footprint> before;
        for (int i = 0; i < kCycles; ++i) {
          if (i == 10) before.emplace();
          std::optional<RemoteRegion> remote(hear(peer, line));
          const Block block{&mine, 0, &*remote, 3 * kMiB, kMiB + 1};
          done(put(peer, {&block, 1}));
          if (i % 3 == 0) must(remote->prepare(kPatience), "prepare");
          if (i % 2 == 0) remote.reset();
          line.meet();
          line.meet();
        }
        before->expectKept();
        line.meet();
      },
      120));
}

// --- What is refused ---

TEST(ChunkedImport, WhatCannotTravelIsRefusedByName) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Device device = gpu(0);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, false);
        {
          Segment segment(device.index, chunks(6), 3);
          const Region region = registered(*context, segment);
          EXPECT_NE(region.description().find("chunk 3 was not made for export"), std::string::npos)
              << region.description();
          tell(region, line);
          line.meet();
          must(context->unregister(region, kPatience), "unregister");
          // Past the end, and over a gap.
          const auto refusal = [&](std::byte* at, size_t bytes) {
            return context->registerRegion(at, bytes, Access::kRemoteReadWrite).status();
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
        Segment segment(device.index, changing);
        const Status many =
            context->registerRegion(segment.data(), segment.bytes(), Access::kRemoteRead).status();
        EXPECT_EQ(many.code(), Code::kNotSupported) << many.toString();
        EXPECT_NE(many.message().find("register it in parts"), std::string::npos);
      },
      [](const Line& line) {
        const Device device = gpu(1);
        auto context = makeContext({device});
        const Peer peer = meetPeer(*context, line, true);
        const RemoteRegion remote = hear(peer, line);
        const Status refused = remote.prepare(kPatience);
        EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
        EXPECT_NE(refused.message().find("export"), std::string::npos) << refused.toString();
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
