// SPDX-License-Identifier: Apache-2.0
//
// The copy kernel and the word kernel against memcpy: every path, any alignment, guard bytes on all
// sides, on one GPU and between two.
#include "peerlane/program/kernel/copy/copy_kernel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "peerlane/program/kernel/launch/word_kernel.h"
#include "peerlane/program/model/op.h"
#include "tests/core/expect_ok.h"

namespace peerlane::kernel {
namespace {

#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

int deviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

constexpr uint8_t kGuard = 0xE7;

// Bytes on a device with a picture of what they should be.
class Arena {
 public:
  Arena(int device, size_t bytes) : expected_(bytes) {
    EXPECT_EQ(cudaSuccess, cudaSetDevice(device));
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory_, bytes));
    EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&uploads_, cudaStreamNonBlocking));
    EXPECT_EQ(cudaSuccess, cudaSetDevice(0));
  }
  ~Arena() {
    (void)cudaStreamDestroy(uploads_);
    (void)cudaFree(memory_);
  }
  Arena(const Arena&) = delete;

  std::byte* at(size_t offset = 0) const { return static_cast<std::byte*>(memory_) + offset; }
  size_t size() const { return expected_.size(); }
  uint8_t* picture(size_t offset = 0) { return expected_.data() + offset; }

  void fillRandomly(uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i + 4 <= expected_.size(); i += 4) {
      const uint32_t value = random();
      std::memcpy(picture(i), &value, 4);
    }
    upload();
  }
  void fillWithGuards() {
    std::memset(expected_.data(), kGuard, expected_.size());
    upload();
  }
  // On a stream of its own: kernels of other streams may be waiting.
  void upload() {
    ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(memory_, expected_.data(), expected_.size(),
                                           cudaMemcpyDefault, uploads_));
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(uploads_));
  }
  testing::AssertionResult matches() const {
    std::vector<uint8_t> found(expected_.size());
    if (cudaMemcpy(found.data(), memory_, found.size(), cudaMemcpyDefault) != cudaSuccess)
      return testing::AssertionFailure() << "reading back failed";
    if (found == expected_) return testing::AssertionSuccess();
    size_t wrong = 0, first = 0;
    for (size_t i = found.size(); i-- > 0;)
      if (found[i] != expected_[i]) ++wrong, first = i;
    return testing::AssertionFailure() << wrong << " bytes differ, the first at " << first;
  }

 private:
  void* memory_ = nullptr;
  cudaStream_t uploads_ = nullptr;
  std::vector<uint8_t> expected_;
};

// Words in pinned host memory and in device 0's, all 0.
struct Words {
  Words() {
    EXPECT_EQ(cudaSuccess, cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4096,
                                         cudaHostAllocPortable | cudaHostAllocMapped));
    EXPECT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void**>(&device), 4096));
    EXPECT_EQ(cudaSuccess, cudaMemset(device, 0, 4096));
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    std::memset(pinned, 0, 4096);
  }
  ~Words() {
    (void)cudaFreeHost(pinned);
    (void)cudaFree(device);
  }
  void store(size_t index, uint64_t value) const {
    std::atomic_ref<uint64_t>(pinned[index]).store(value, std::memory_order_release);
  }
  uint64_t load(size_t index) const {
    return std::atomic_ref<uint64_t>(pinned[index]).load(std::memory_order_acquire);
  }
  uint64_t deviceWord(size_t index) const {
    uint64_t value = 0;
    EXPECT_EQ(cudaSuccess, cudaMemcpy(&value, device + index, 8, cudaMemcpyDefault));
    return value;
  }
  uint64_t* pinned = nullptr;
  uint64_t* device = nullptr;
};

// Indices in `Words::device`.
constexpr size_t kArrivals = 0, kCursor = 16, kStored = 32;

bool endsWithin(cudaStream_t stream, std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (cudaStreamQuery(stream) == cudaErrorNotReady)
    if (std::chrono::steady_clock::now() > until) return false;
  return true;
}

struct Setting {
  const char* name;
  int from, to;
  CopyMethod method;
};

class CopyKernel : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const int needed = 1 + std::max(GetParam().from, GetParam().to);
    if (deviceCount() < needed)
      GTEST_SKIP() << "needs " << needed << (needed == 1 ? " GPU" : " GPUs");
    for (int device = 0; device < needed; ++device)
      for (int peer = 0; peer < needed; ++peer) {
        if (peer == device) continue;
        CUDA_OK(cudaSetDevice(device));
        int possible = 0;
        CUDA_OK(cudaDeviceCanAccessPeer(&possible, device, peer));
        if (possible == 0) GTEST_SKIP() << "needs GPUs that reach each other";
        const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        ASSERT_TRUE(error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled);
        (void)cudaGetLastError();
      }
    for (int device = needed; device-- > 0;) {
      CUDA_OK(cudaSetDevice(device));
      EXPECT_OK(loadCopyKernels());
      EXPECT_OK(loadWordKernels());
    }
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    words_ = std::make_unique<Words>();
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      (void)cudaStreamDestroy(stream_);
    }
  }

  // With a tail, so that every launch shows whether it ended and left its arrivals at 0.
  CopyLaunch launchOf(uint32_t ctas = 0, uint32_t threads = 0) {
    CopyLaunch launch;
    launch.method = GetParam().method;
    launch.ctas = ctas;
    launch.threads = GetParam().method == CopyMethod::kBulk ? std::min(threads, 64u) : threads;
    launch.arrivals = reinterpret_cast<uint32_t*>(words_->device + kArrivals);
    launch.stream = stream_;
    launch.tail.stores[0] = {words_->device + kStored, {nullptr, ++ticket_}};
    launch.tail.storeCount = 1;
    return launch;
  }
  void runAndCheck(const CopyLaunch& launch, const Arena& to) {
    ASSERT_OK(launchCopy(launch));
    CUDA_OK(cudaStreamSynchronize(stream_));
    EXPECT_TRUE(to.matches());
    EXPECT_EQ(ticket_, words_->deviceWord(kStored));
    EXPECT_EQ(0u, words_->deviceWord(kArrivals));
  }
  bool ends(std::chrono::milliseconds patience = std::chrono::milliseconds(5000)) {
    return endsWithin(stream_, patience);
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Words> words_;
  uint64_t ticket_ = 0;
};

TEST_P(CopyKernel, OnePieceAtEveryAlignment) {
  Arena from(GetParam().from, 80 << 10), to(GetParam().to, 80 << 10);
  from.fillRandomly(1);
  const size_t sizes[] = {0,    1,    7,    15,   16,   17,   33,    127,   128,  512,
                          2047, 4095, 4096, 4111, 6143, 6144, 10000, 69632, 70001};
  for (size_t fromShift = 0; fromShift < 16; ++fromShift)
    for (size_t toShift = 0; toShift < 16; ++toShift) {
      const size_t bytes = sizes[(fromShift * 16 + toShift) % std::size(sizes)];
      for (const size_t size : {bytes, bytes + 3, size_t{40000}}) {
        to.fillWithGuards();
        const CopyPiece piece{from.at(96 + fromShift), to.at(112 + toShift), size};
        std::memcpy(to.picture(112 + toShift), from.picture(96 + fromShift), size);
        CopyLaunch launch = launchOf();
        launch.pieces = &piece;
        launch.pieceCount = 1;
        runAndCheck(launch, to);
        if (HasFailure()) FAIL() << "from +" << fromShift << " to +" << toShift << ", " << size;
      }
    }
}

// Pieces of random sizes, many of them tiny or empty, at random alignments, in shuffled order.
std::vector<CopyPiece> randomPieces(Arena& from, Arena& to, size_t count, size_t largest,
                                    uint32_t seed, bool vectors) {
  std::mt19937 random(seed);
  std::vector<CopyPiece> pieces;
  size_t fromAt = random() % 300, toAt = random() % 300;
  if (vectors) fromAt &= ~size_t{15}, toAt &= ~size_t{15};
  for (size_t i = 0; i < count; ++i) {
    size_t bytes = random() % (random() % 4 == 0 ? largest : largest / 16 + 1);
    if (random() % 16 == 0) bytes = 0;
    if (vectors) bytes &= ~size_t{15};
    if (fromAt + bytes > from.size() || toAt + bytes > to.size()) break;
    std::memcpy(to.picture(toAt), from.picture(fromAt), bytes);
    pieces.push_back({from.at(fromAt), to.at(toAt), bytes});
    fromAt += bytes + random() % 40;
    toAt += bytes + 1 + random() % 40;
    if (vectors) fromAt = (fromAt + 15) & ~size_t{15}, toAt = (toAt + 15) & ~size_t{15};
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

TEST_P(CopyKernel, PiecesInTheParameters) {
  Arena from(GetParam().from, 4 << 20), to(GetParam().to, 4 << 20);
  from.fillRandomly(2);
  uint32_t seed = 10;
  for (const size_t count : {2, 3, 32, 33, 128, 129, 512})
    for (const uint32_t ctas : {0u, 1u, 3u, 132u})
      for (const uint32_t threads : {0u, 32u, 128u, 1024u})
        for (const bool vectors : {false, true}) {
          if (count > kMiddleInlinePieces && (ctas == 1 || threads == 128)) continue;
          to.fillWithGuards();
          ++seed;
          const size_t most = count > kMiddleInlinePieces ? 7000 : 100000;
          const auto pieces = randomPieces(from, to, count, most, seed, vectors);
          EXPECT_TRUE(count <= kMiddleInlinePieces || pieces.size() == count);
          CopyLaunch launch = launchOf(ctas, threads);
          launch.pieces = pieces.data();
          launch.pieceCount = static_cast<uint32_t>(pieces.size());
          runAndCheck(launch, to);
          if (HasFailure()) FAIL() << count << " pieces, " << ctas << " x " << threads;
        }
}

TEST_P(CopyKernel, PiecesInMemory) {
  Arena from(GetParam().from, 24 << 20), to(GetParam().to, 24 << 20);
  from.fillRandomly(3);
  uint32_t seed = 100;
  for (const size_t count : {1, 2, 127, 513, 1024, 5000})
    for (const bool pinned : {false, true})
      for (const uint32_t threads : {0u, 96u}) {
        to.fillWithGuards();
        const auto pieces = randomPieces(from, to, count, 20000, ++seed, threads == 96);
        std::vector<uint64_t> ends;
        uint64_t tiles = 0;
        for (const CopyPiece& piece : pieces) ends.push_back(tiles += copyTiles(piece.bytes));
        void* memory = nullptr;
        const size_t listBytes = pieces.size() * sizeof(CopyPiece), endBytes = ends.size() * 8;
        CUDA_OK(pinned ? cudaMallocHost(&memory, listBytes + endBytes)
                       : cudaMalloc(&memory, listBytes + endBytes));
        CUDA_OK(cudaMemcpy(memory, pieces.data(), listBytes, cudaMemcpyDefault));
        CUDA_OK(cudaMemcpy(static_cast<std::byte*>(memory) + listBytes, ends.data(), endBytes,
                           cudaMemcpyDefault));
        CUDA_OK(cudaDeviceSynchronize());  // from pageable memory it may still be on its way
        CopyLaunch launch = launchOf(seed % 2 == 0 ? 7 : 0, threads);
        launch.list = {
            static_cast<const CopyPiece*>(memory),
            reinterpret_cast<const uint64_t*>(static_cast<std::byte*>(memory) + listBytes),
            pieces.size(), tiles, pinned};
        runAndCheck(launch, to);
        CUDA_OK(pinned ? cudaFreeHost(memory) : cudaFree(memory));
        if (HasFailure()) FAIL() << count << " pieces, pinned " << pinned << " " << threads;
      }
}

struct Blocks {
  uint64_t bytes, gap, shift;
  size_t count;
};

TEST_P(CopyKernel, BlocksByIndex) {
  Arena from(GetParam().from, 9 << 20), to(GetParam().to, 9 << 20);
  from.fillRandomly(4);
  uint32_t* indices = nullptr;
  CUDA_OK(cudaHostAlloc(reinterpret_cast<void**>(&indices), 2 << 20, cudaHostAllocMapped));
  std::mt19937 random(5);
  int round = 0;
  for (const Blocks& blocks :
       {Blocks{1, 0, 0, 3000}, {2, 3, 1, 999},       {4, 0, 4, 5000},      {8, 8, 0, 4097},
        {12, 4, 4, 700},       {16, 0, 0, 20000},    {16, 48, 16, 1},      {48, 16, 0, 3333},
        {100, 0, 0, 5001},     {100, 1, 0, 600},     {256, 0, 0, 9000},    {511, 2, 3, 300},
        {512, 0, 8, 777},      {512, 1, 1, 500},     {1000, 8, 0, 999},    {1024, 0, 4, 900},
        {4080, 16, 0, 1500},   {4096, 0, 0, 1300},   {4096, 1, 5, 400},    {5000, 24, 0, 800},
        {16384, 128, 0, 515},  {73 << 10, 0, 0, 31}, {71 << 10, 4, 4, 60}, {3 << 20, 16, 16, 2}}) {
    to.fillWithGuards();
    const uint64_t stride = blocks.bytes + blocks.gap;
    const size_t places = (to.size() - blocks.shift) / stride;
    const size_t count = std::min(blocks.count, places);
    std::vector<uint32_t> order(places);
    for (size_t i = 0; i < places; ++i) order[i] = static_cast<uint32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    const bool useFrom = round % 4 != 1, useTo = round % 4 != 2;
    for (size_t i = 0; i < count; ++i) {
      indices[i] = static_cast<uint32_t>(random() % places);
      indices[count + i] = order[i];
      const size_t source = useFrom ? indices[i] : i, sink = useTo ? order[i] : i;
      std::memcpy(to.picture(blocks.shift + sink * stride), from.picture(source * stride),
                  blocks.bytes);
    }
    CopyLaunch launch = launchOf(round % 5 == 0 ? 3 : 0, round % 3 == 0 ? 64 : 0);
    launch.blocks.from = from.at();
    launch.blocks.to = to.at(blocks.shift);
    launch.blocks.fromStride = launch.blocks.toStride = stride;
    launch.blocks.blockBytes = blocks.bytes;
    launch.blocks.fromIndex = useFrom ? indices : nullptr;
    launch.blocks.toIndex = useTo ? indices + count : nullptr;
    launch.blocks.count = count;
    runAndCheck(launch, to);
    if (HasFailure())
      FAIL() << count << " blocks of " << blocks.bytes << " + " << blocks.gap << ", shift "
             << blocks.shift;
    ++round;
  }
  CUDA_OK(cudaFreeHost(indices));
}

TEST_P(CopyKernel, BlocksWithAnIndexBeyondTheLimitAreLeftOutAndReported) {
  constexpr size_t kPlaces = 64;
  uint32_t* indices = nullptr;
  CUDA_OK(cudaHostAlloc(reinterpret_cast<void**>(&indices), 4096, cudaHostAllocMapped));
  for (const uint64_t bytes : {uint64_t{20}, uint64_t{256}, uint64_t{5000}, uint64_t{40960}}) {
    Arena from(GetParam().from, kPlaces * bytes), to(GetParam().to, kPlaces * bytes);
    from.fillRandomly(9);
    to.fillWithGuards();
    for (uint32_t i = 0; i < kPlaces; ++i) {
      indices[i] = i % 7 == 3 ? 60 + i : i % 60;
      indices[kPlaces + i] = i == 10 ? ~0u : kPlaces - 1 - i;
      if (indices[i] < 60 && i != 10)
        std::memcpy(to.picture((kPlaces - 1 - i) * bytes), from.picture(indices[i] * bytes), bytes);
    }
    CopyLaunch launch = launchOf(3);
    launch.blocks.from = from.at();
    launch.blocks.to = to.at();
    launch.blocks.fromStride = launch.blocks.toStride = launch.blocks.blockBytes = bytes;
    launch.blocks.fromIndex = indices;
    launch.blocks.toIndex = indices + kPlaces;
    launch.blocks.count = kPlaces;
    launch.blocks.fromLimit = 60;
    launch.blocks.toLimit = kPlaces;
    launch.blocks.fault = words_->pinned + 24;
    launch.blocks.faultValue = bytes;
    runAndCheck(launch, to);
    EXPECT_EQ(bytes, words_->load(24));
    if (HasFailure()) FAIL() << "blocks of " << bytes;
  }
  CUDA_OK(cudaFreeHost(indices));
}

TEST_P(CopyKernel, NothingToCopyStillStoresItsWords) {
  Arena to(GetParam().to, 4096);
  to.fillWithGuards();
  runAndCheck(launchOf(), to);
  CopyLaunch launch = launchOf(5);
  launch.blocks.from = to.at();
  launch.blocks.to = to.at();
  launch.blocks.blockBytes = 16;
  runAndCheck(launch, to);
  const CopyPiece none[3] = {};
  launch = launchOf(2);
  launch.pieces = none;
  launch.pieceCount = 3;
  runAndCheck(launch, to);
}

TEST_P(CopyKernel, MoreThan4GiBInOnePieceAndInBlocks) {
  const size_t bytes = (size_t{5} << 30) + 12345;
  void *from = nullptr, *to = nullptr;
  CUDA_OK(cudaSetDevice(GetParam().from));
  if (cudaMalloc(&from, bytes) != cudaSuccess) GTEST_SKIP() << "needs 10 GiB of device memory";
  CUDA_OK(cudaMemset(from, 0x11, bytes));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaSetDevice(GetParam().to));
  if (cudaMalloc(&to, bytes) != cudaSuccess) {
    (void)cudaFree(from);
    GTEST_SKIP() << "needs 10 GiB of device memory";
  }
  CUDA_OK(cudaMemset(to, 0x22, bytes));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaSetDevice(0));
  const size_t marks[] = {0, (size_t{1} << 31) - 8, (size_t{1} << 32) - 8, size_t{1} << 32,
                          bytes - 16};
  for (const bool inBlocks : {false, true}) {
    for (size_t i = 0; i < std::size(marks); ++i)
      CUDA_OK(cudaMemset(static_cast<uint8_t*>(from) + marks[i],
                         0x30 + static_cast<int>(i) + (inBlocks ? 8 : 0), 16));
    CUDA_OK(cudaDeviceSynchronize());
    CopyLaunch launch = launchOf();
    const CopyPiece piece{static_cast<std::byte*>(from), static_cast<std::byte*>(to), bytes};
    if (inBlocks) {
      launch.blocks.from = piece.from;
      launch.blocks.to = piece.to;
      launch.blocks.fromStride = launch.blocks.toStride = launch.blocks.blockBytes = bytes / 5;
      launch.blocks.count = 5;
      ASSERT_EQ(0u, bytes % 5);
    } else {
      launch.pieces = &piece;
      launch.pieceCount = 1;
    }
    ASSERT_OK(launchCopy(launch));
    CUDA_OK(cudaStreamSynchronize(stream_));
    for (const size_t mark : marks)
      for (const size_t at : {mark, mark >= 64 ? mark - 64 : mark + 64}) {
        uint8_t wanted[16], found[16];
        CUDA_OK(cudaMemcpy(wanted, static_cast<uint8_t*>(from) + at, 16, cudaMemcpyDefault));
        CUDA_OK(cudaMemcpy(found, static_cast<uint8_t*>(to) + at, 16, cudaMemcpyDefault));
        EXPECT_EQ(0, std::memcmp(wanted, found, 16)) << "at " << at;
      }
  }
  CUDA_OK(cudaFree(from));
  CUDA_OK(cudaFree(to));
}

TEST_P(CopyKernel, WaitsForItsWordBeforeTheFirstByte) {
  Arena from(GetParam().from, 1 << 20), to(GetParam().to, 1 << 20);
  from.fillRandomly(6);
  to.fillWithGuards();
  CopyLaunch launch = launchOf(8);
  const CopyPiece piece{from.at(), to.at(), 1 << 20};
  launch.pieces = &piece;
  launch.pieceCount = 1;
  launch.wait = {words_->pinned, {nullptr, 5}, words_->pinned + 8};
  launch.tail.completion = {words_->pinned + 16, {nullptr, 77}};
  words_->store(0, 4);
  ASSERT_OK(launchCopy(launch));
  EXPECT_FALSE(ends(std::chrono::milliseconds(50)));
  EXPECT_EQ(0u, words_->load(16));
  from.fillRandomly(7);  // what was there at the launch must not be what arrives
  std::memcpy(to.picture(), from.picture(), 1 << 20);
  words_->store(0, 6);
  const bool ended = ends();
  words_->store(8, 1);
  ASSERT_TRUE(ended);
  EXPECT_TRUE(to.matches());
  EXPECT_EQ(77u, words_->load(16));
  EXPECT_EQ(ticket_, words_->deviceWord(kStored));
  EXPECT_EQ(0u, words_->deviceWord(kArrivals));
}

TEST_P(CopyKernel, ReleasedByAbortOrPoisonItCopiesNothingAndCompletes) {
  Arena from(GetParam().from, 1 << 20), to(GetParam().to, 1 << 20);
  from.fillRandomly(8);
  to.fillWithGuards();
  for (const bool byPoison : {false, true})
    for (const uint32_t ctas : {1u, 16u}) {
      words_->store(0, 0);
      words_->store(8, 0);
      words_->store(16, 0);
      CopyLaunch launch = launchOf(ctas);
      const CopyPiece piece{from.at(), to.at(), 1 << 20};
      launch.pieces = &piece;
      launch.pieceCount = 1;
      launch.wait = {words_->pinned, {nullptr, 1}, words_->pinned + 8};
      launch.tail.completion = {words_->pinned + 16, {nullptr, 5}};
      const uint64_t before = words_->deviceWord(kStored);
      ASSERT_OK(launchCopy(launch));
      EXPECT_FALSE(ends(std::chrono::milliseconds(20)));
      words_->store(byPoison ? 0 : 8, byPoison ? kPoison + 3 : 1);
      ASSERT_TRUE(ends());
      EXPECT_EQ(5u, words_->load(16));
      EXPECT_EQ(before, words_->deviceWord(kStored));
      EXPECT_EQ(0u, words_->deviceWord(kArrivals));
      EXPECT_TRUE(to.matches());
    }
}

// One launch writes and stores a word, another, already waiting for it (on the destination's GPU),
// reads at once what was written.
TEST_P(CopyKernel, WhatATailAnnouncesIsThere) {
  constexpr size_t kBytes = 3 << 20;
  Arena from(GetParam().from, kBytes), to(GetParam().to, kBytes), seen(GetParam().to, kBytes);
  CUDA_OK(cudaSetDevice(GetParam().to));
  cudaStream_t reader = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  uint64_t* counter = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&counter), 4096));
  CUDA_OK(cudaMemset(counter, 0, 4096));
  CUDA_OK(cudaDeviceSynchronize());
  for (uint64_t turn = 1; turn <= 40; ++turn) {
    from.fillRandomly(static_cast<uint32_t>(1000 + turn));
    const size_t bytes = turn % 3 == 0 ? kBytes : turn % 3 == 1 ? 40000 : 333333;
    const CopyPiece write{from.at(), to.at(), bytes}, read{to.at(), seen.at(), bytes};
    CopyLaunch reading = launchOf(8);
    reading.pieces = &read;
    reading.pieceCount = 1;
    reading.stream = reader;
    reading.tail = {};
    reading.wait = {counter, {nullptr, turn}, words_->pinned + 8};
    CUDA_OK(cudaSetDevice(GetParam().to));
    ASSERT_OK(launchCopy(reading));
    CUDA_OK(cudaSetDevice(0));
    CopyLaunch writing = launchOf(12);
    writing.pieces = &write;
    writing.pieceCount = 1;
    writing.tail.stores[0] = {counter, {nullptr, turn}};
    ASSERT_OK(launchCopy(writing));
    const bool ended = ends();
    if (!ended) words_->store(8, 1);
    ASSERT_TRUE(ended);
    CUDA_OK(cudaStreamSynchronize(reader));
    std::vector<uint8_t> found(bytes);
    CUDA_OK(cudaMemcpy(found.data(), seen.at(), bytes, cudaMemcpyDefault));
    ASSERT_EQ(0, std::memcmp(found.data(), from.picture(), bytes)) << "turn " << turn;
  }
  CUDA_OK(cudaStreamDestroy(reader));
  CUDA_OK(cudaFree(counter));
}

TEST_P(CopyKernel, ReplayedByAGraphItWaitsForAndStoresNewNumbers) {
  Arena from(GetParam().from, 200000), to(GetParam().to, 200000);
  uint64_t* cursor = words_->device + kCursor;
  const CopyPiece piece{from.at(3), to.at(5), 199990};
  CopyLaunch launch = launchOf(4);
  launch.pieces = &piece;
  launch.pieceCount = 1;
  launch.wait = {words_->pinned, {cursor, 1}, words_->pinned + 8};
  launch.tail.stores[0] = {words_->device + kStored, {cursor, 101}};
  launch.tail.completion = {words_->pinned + 16, {cursor, 1}};
  launch.tail.advance = cursor;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  ASSERT_OK(launchCopy(launch));
  CUDA_OK(cudaStreamEndCapture(stream_, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (uint64_t turn = 1; turn <= 10; ++turn) {
    to.fillWithGuards();
    CUDA_OK(cudaGraphLaunch(executable, stream_));
    if (turn < 3) {
      EXPECT_FALSE(ends(std::chrono::milliseconds(20)));
    }
    from.fillRandomly(static_cast<uint32_t>(turn));
    std::memcpy(to.picture(5), from.picture(3), 199990);
    words_->store(0, turn);
    const bool ended = ends();
    if (!ended) words_->store(8, 1);
    ASSERT_TRUE(ended);
    EXPECT_TRUE(to.matches());
    EXPECT_EQ(turn, words_->load(16));
    EXPECT_EQ(100 + turn, words_->deviceWord(kStored));
    EXPECT_EQ(turn, words_->deviceWord(kCursor));
  }
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_P(CopyKernel, RefusesWhatItCannotDo) {
  CopyPiece pieces[kInlinePieces + 1] = {};
  CopyLaunch launch = launchOf();
  launch.pieces = pieces;
  launch.pieceCount = kInlinePieces + 1;
  EXPECT_EQ(Code::kInvalidArgument, launchCopy(launch).code());
  launch = launchOf();
  launch.threads = 100;
  EXPECT_EQ(Code::kInvalidArgument, launchCopy(launch).code());
  launch = launchOf(2);
  launch.arrivals = nullptr;
  EXPECT_EQ(Code::kInvalidArgument, launchCopy(launch).code());
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

INSTANTIATE_TEST_SUITE_P(Placements, CopyKernel,
                         testing::Values(Setting{"ThreadsOnOneGpu", 0, 0, CopyMethod::kThreads},
                                         Setting{"ThreadsPush", 0, 1, CopyMethod::kThreads},
                                         Setting{"ThreadsPull", 1, 0, CopyMethod::kThreads},
                                         Setting{"BulkOnOneGpu", 0, 0, CopyMethod::kBulk},
                                         Setting{"BulkPush", 0, 1, CopyMethod::kBulk},
                                         Setting{"BulkPull", 1, 0, CopyMethod::kBulk}),
                         [](const auto& placement) { return std::string(placement.param.name); });

class WordKernel : public testing::Test {
 protected:
  void SetUp() override {
    if (deviceCount() < 1) GTEST_SKIP() << "needs 1 GPU";
    CUDA_OK(cudaSetDevice(0));
    EXPECT_OK(loadWordKernels());
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    words_ = std::make_unique<Words>();
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      (void)cudaStreamDestroy(stream_);
    }
  }
  bool ends(int milliseconds = 5000) {
    return endsWithin(stream_, std::chrono::milliseconds(milliseconds));
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Words> words_;
};

TEST_F(WordKernel, WaitsForTheSumOfALine) {
  WordLaunch launch;
  launch.stream = stream_;
  launch.waitsForLine = true;
  launch.wait = {words_->pinned + 64, {nullptr, 10}, words_->pinned + 8};
  launch.tail.completion = {words_->pinned + 16, {nullptr, 1}};
  launch.tail.stores[0] = {words_->device + kStored, {nullptr, 55}};
  launch.tail.storeCount = 1;
  ASSERT_OK(launchWords(launch));
  words_->store(64, 4);
  words_->store(71, ~uint64_t{0});  // sums wrap: 4 - 1 + 6 = 9
  words_->store(67, 6);
  EXPECT_FALSE(ends(20));
  words_->store(70, 1);
  ASSERT_TRUE(ends());
  EXPECT_EQ(1u, words_->load(16));
  EXPECT_EQ(55u, words_->deviceWord(kStored));

  for (const size_t released : {64, 8}) {  // by poison in a word of the line, by the abort word
    words_->store(16, 0);
    launch.wait.atLeast.delta = 11;
    launch.tail.stores[0].value.delta = 56;
    ASSERT_OK(launchWords(launch));
    EXPECT_FALSE(ends(20));
    words_->store(released, kPoison + 4);
    ASSERT_TRUE(ends());
    EXPECT_EQ(1u, words_->load(16));
    EXPECT_EQ(55u, words_->deviceWord(kStored));
    words_->store(released, 4);
  }
  launch.wait.word = words_->pinned + 1;
  EXPECT_EQ(Code::kInvalidArgument, launchWords(launch).code());
}

TEST_F(WordKernel, StoresFourWordsFromACursorThatAdvances) {
  WordLaunch launch;
  launch.stream = stream_;
  launch.tail.storeCount = kMaxWordStores;
  for (uint32_t i = 0; i < kMaxWordStores; ++i)
    launch.tail.stores[i] = {words_->device + 64 + i, {words_->device + kCursor, i}};
  launch.tail.advance = words_->device + kCursor;
  launch.tail.step = 2;
  for (int i = 0; i < 3; ++i) ASSERT_OK(launchWords(launch));
  ASSERT_TRUE(ends());
  EXPECT_EQ(6u, words_->deviceWord(kCursor));
  for (uint32_t i = 0; i < kMaxWordStores; ++i) EXPECT_EQ(4u + i, words_->deviceWord(64 + i));
}

}  // namespace
}  // namespace peerlane::kernel
