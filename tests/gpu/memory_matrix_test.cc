// SPDX-License-Identifier: Apache-2.0
//
// Every kind of memory at one side with every kind at the other: put and get of odd sizes at odd
// offsets, by each engine, every byte looked at, and the way that they took. What would be staged
// is refused where that is wished, with the reason.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

// A new kind is one line here, and one in wayBetween if bytes take another way to it.
constexpr Memory kKinds[] = {
    Memory::kVmm,    Memory::kMalloc, Memory::kOddOffset, Memory::kSmall,
    Memory::kChunks, Memory::kPool,   Memory::kPrivate,   Memory::kShared,
    Memory::kPinned, Memory::kHeap,   Memory::kFabric,
};
// The last one is not everywhere.
size_t kindCount() {
  return std::size(kKinds) - (whyNoFabric().empty() ? 0 : 1);
}

struct Way {
  std::vector<std::string> engines;  // any of which may move the bytes, as the metrics say
  std::string whyStaged = {};        // what PEERLANE_STRICT says
};

Way wayBetween(Memory here, Memory there) {
  if (there == Memory::kPrivate)
    return {{"staged"}, "because the peer's memory was not made for export"};
  const bool isPrivate = there == Memory::kPinned || there == Memory::kHeap;
  if (isOfGpu(here) && isPrivate) return {{"staged"}, "because it is private memory of the peer"};
  if (isOfGpu(here) || isOfGpu(there)) return {{"cuda"}};
  // Where a process may not look into another one, the staged ring is what there is.
  return isPrivate ? Way{{"cma", "ring"}} : Way{{"mapped"}};
}

// Borders of chunks lie inside; each is odd.
size_t bytesOf(Memory memory) {
  return memory == Memory::kSmall ? 40'003 : (size_t{9} << 18) + 13;
}

unsigned char byteAt(size_t index, uint32_t seed) {
  const uint64_t mixed = (index + seed) * 0x9e3779b97f4a7c15ull;
  return static_cast<unsigned char>(mixed >> 53);
}

constexpr unsigned char kGuard = 0xee;

// Bytes of one thread: the thread sanitizer would look at each, for seconds, and find nothing.
__attribute__((noinline, no_sanitize("thread"))) void setBytes(unsigned char* at, size_t bytes,
                                                               uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = byteAt(i, seed);
}
__attribute__((noinline, no_sanitize("thread"))) uint64_t countWrong(
    const std::vector<unsigned char>& content, uint32_t seed, size_t offset, size_t bytes) {
  const unsigned char* const at = content.data();
  const size_t count = content.size();
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool isInside = i >= offset && i - offset < bytes;
    wrong += at[i] != (isInside ? byteAt(i - offset, seed) : kGuard);
  }
  return wrong;
}

// Guards everywhere, but bytes of `seed` in [offset, +bytes).
void write(const Region& region, uint32_t seed, size_t offset, size_t bytes) {
  std::vector<unsigned char> content(region.bytes(), kGuard);
  setBytes(content.data() + offset, bytes, seed);
  mustCuda(cudaMemcpy(region.data(), content.data(), content.size(), cudaMemcpyDefault), "copy");
  mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// How many bytes differ from that.
uint64_t wrongIn(const Region& region, uint32_t seed, size_t offset, size_t bytes) {
  std::vector<unsigned char> content(region.bytes());
  mustCuda(cudaMemcpy(content.data(), region.data(), content.size(), cudaMemcpyDefault), "copy");
  return countWrong(content, seed, offset, bytes);
}

// Payload bytes by engine, both directions.
std::map<std::string, uint64_t> movedBy(const Context& context) {
  std::map<std::string, uint64_t> moved;
  std::istringstream metrics(context.metrics());
  for (std::string line; std::getline(metrics, line);) {
    constexpr std::string_view kEngine = "engine=\"";
    const size_t at = line.find(kEngine);
    if (!line.starts_with("peerlane_bytes_total{") || at == std::string::npos) continue;
    const size_t from = at + kEngine.size();
    moved[line.substr(from, line.find('"', from) - from)] +=
        std::stoull(line.substr(line.rfind(' ') + 1));
  }
  return moved;
}

struct Tried {
  Memory here;
  bool isStrict;
};

class MemoryMatrix : public ::testing::TestWithParam<Tried> {};

std::vector<Tried> everything() {
  std::vector<Tried> all;
  for (const Memory memory : kKinds)
    for (const bool isStrict : {false, true}) all.push_back({memory, isStrict});
  return all;
}

INSTANTIATE_TEST_SUITE_P(From, MemoryMatrix, ::testing::ValuesIn(everything()),
                         [](const auto& tested) {
                           return nameOf(tested.param.here) +
                                  (tested.param.isStrict ? "Strict" : "");
                         });

struct Extent {
  size_t here, there, bytes;
  Engine engine;
};

// Small ones, and most of both regions.
std::vector<Extent> extentsOf(Memory here, Memory there) {
  const size_t most = std::min(bytesOf(here), bytesOf(there)) - 8191;
  return {{5, 3, 1, Engine::kAuto},
          {4099, 7, 1021, Engine::kAuto},
          {7, 4099, most, Engine::kCe},
          {4099, 7, most, Engine::kSm}};
}

// One pair of kinds; the other side does what the line says with its region number `there`.
void tryPair(const Meeting& side, const Line& line, const Region& region, const Tried& tried,
             const RemoteRegion& remote, size_t there) {
  const Memory here = tried.here;
  const Way way = wayBetween(here, kKinds[there]);
  const std::string place = std::to_string(there) + " ";
  uint32_t seed = 1;
  for (const Extent& extent : extentsOf(here, kKinds[there])) {
    SCOPED_TRACE("to " + nameOf(kKinds[there]) + ", " + std::to_string(extent.bytes) +
                 " bytes by " + engineName(extent.engine));
    const std::string what = " " + std::to_string(++seed) + " " + std::to_string(extent.there) +
                             " " + std::to_string(extent.bytes);
    const Block block{&region, extent.here, &remote, extent.there, extent.bytes};
    const auto before = movedBy(*side.context);
    line.send(place + "write 0 0 0");
    ASSERT_EQ(line.receive(), "0");
    write(region, seed, extent.here, extent.bytes);
    auto sent = put(side.peer, {&block, 1}, {.engine = extent.engine});
    const Status status = sent.isOk() ? sent->wait(kPatience) : sent.status();
    if (tried.isStrict && !way.whyStaged.empty()) {
      EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
      EXPECT_NE(status.message().find(way.whyStaged), std::string::npos) << status.toString();
      continue;
    }
    ASSERT_TRUE(status.isOk()) << status.toString();
    line.send(place + "check" + what);
    ASSERT_EQ(line.receive(), "0");
    line.send(place + "write" + what);
    ASSERT_EQ(line.receive(), "0");
    write(region, 0, 0, 0);
    must(must(get(side.peer, {&block, 1}, {.engine = extent.engine}), "get").wait(kPatience),
         "get");
    EXPECT_EQ(wrongIn(region, seed, extent.here, extent.bytes), 0u);
    size_t ways = 0;
    for (const auto& [name, bytes] : movedBy(*side.context)) {
      const auto found = before.find(name);
      const uint64_t moved = bytes - (found == before.end() ? 0 : found->second);
      if (moved == 0) continue;
      const bool isExpected =
          std::find(way.engines.begin(), way.engines.end(), name) != way.engines.end();
      // What is staged is moved by others, too: from and to the staging memory.
      EXPECT_TRUE(isExpected || !way.whyStaged.empty()) << "it went by " << name;
      if (!isExpected) continue;
      EXPECT_EQ(moved, 2 * extent.bytes) << name;
      ++ways;
    }
    EXPECT_EQ(ways, 1u);
  }
}

TEST_P(MemoryMatrix, ToEveryKind) {
  PEERLANE_NEEDS_GPUS(1);
  if (GetParam().here == Memory::kFabric) {
    PEERLANE_NEEDS_FABRIC();
  }
  const size_t kinds = kindCount();
  const auto active = [&](const Line& line) {
    if (GetParam().isStrict) setenv("PEERLANE_STRICT", "1", 1);
    const Meeting side(0, line);
    const Memory here = GetParam().here;
    const Region region = makeRegion(*side.context, side.device, here, bytesOf(here));
    // All of the other side's, before anything moves.
    std::vector<RemoteRegion> remotes;
    for (size_t i = 0; i < kinds; ++i) remotes.push_back(exchange(side.peer, region, line));
    for (size_t there = 0; there < kinds; ++there)
      tryPair(side, line, region, GetParam(), remotes[there], there);
    line.send("0 end 0 0 0");
  };
  const auto passive = [&](const Line& line) {
    const Meeting side(1, line);
    std::vector<Region> regions;
    for (const Memory memory : std::span(kKinds).first(kinds)) {
      regions.push_back(makeRegion(*side.context, side.device, memory, bytesOf(memory)));
      (void)exchange(side.peer, regions.back(), line);
    }
    for (;;) {
      std::istringstream said(line.receive());
      size_t which = 0, offset = 0, bytes = 0;
      uint32_t seed = 0;
      std::string verb;
      said >> which >> verb >> seed >> offset >> bytes;
      if (verb == "end") return;
      if (verb == "write") {
        write(regions[which], seed, offset, bytes);
        line.send("0");
      } else {
        line.send(std::to_string(wrongIn(regions[which], seed, offset, bytes)));
      }
    }
  };
  EXPECT_TRUE(runTwo(active, passive, 120));
}

}  // namespace
}  // namespace peerlane::gputest
