// SPDX-License-Identifier: Apache-2.0
//
// Memory of GPUs between two processes over a NIC: straight where the NIC takes a dma-buf of it,
// else staged through host memory; in each case every byte, and the way as the route says it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = (size_t{3} << 20) - 12;

struct Way {
  Memory local;
  Memory remote;
  bool byDmaBuf;    // the NIC takes it
  bool isStraight;  // what is on no stream is not staged
};

void configure(const Way& way) {
  setenv("PEERLANE_LINKS", "self,verbs", 1);
  setenv("PEERLANE_STAGING_BYTES", "262144", 1);
  setenv("SOFTWARE_HCA_DMABUF", way.byDmaBuf ? "yes" : "EOPNOTSUPP", 1);
}

class VerbsMemory : public ::testing::TestWithParam<Way> {};

// The active side's half of a round: a put of all blocks with a signal, then a get of other bytes.
void putAndGet(const Side& side, const Line& line, size_t blocks, bool onStream, uint32_t seed) {
  fill(side.region.data(), kBytes, seed);
  std::vector<Block> list;
  const size_t each = kBytes / blocks / 4 * 4;
  for (size_t i = 0; i < blocks; ++i)
    list.push_back(side.block(i * each, i + 1 == blocks ? kBytes - i * each : each));
  std::shuffle(list.begin(), list.end(), std::mt19937(seed));
  PostOptions options;
  if (onStream) options.deviceStream = side.deviceStream();
  options.notify.signal = 3;
  must(must(put(side.peer, list, options), "put").wait(kPatience), "put wait");
  line.send("look");
  ASSERT_EQ(line.receive(), "good");
  options.notify = {};
  const Transfer fetched = must(get(side.peer, list, options), "get");
  if (onStream) mustSync(side.stream);
  must(fetched.wait(kPatience), "get wait");
  EXPECT_EQ(wrongWords(side.region.data(), kBytes, seed + 1000), 0u);
}

void expectRoute(const Side& side, const Way& way) {
  EXPECT_EQ(side.peer.route().link, "verbs");
  const MemoryRoute route = side.peer.routeOf(side.remote, side.region);
  EXPECT_EQ(route.link, way.isStraight ? "verbs" : "") << side.remote.description();
  const std::string metrics = side.context->metrics();
  EXPECT_EQ(metrics.find("engine=\"staged\"") == std::string::npos, way.isStraight) << metrics;
  if (way.isStraight) return;
  std::string refused;
  for (const std::string& each : route.refused) refused += each + "\n";
  EXPECT_NE(refused.find("verbs"), std::string::npos) << refused;
}

TEST_P(VerbsMemory, ArrivesBothWays) {
  PEERLANE_NEEDS_GPUS(1);
  const Way& way = GetParam();
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    must(side.remote.prepare(), "prepare");
    uint32_t seed = 1;
    // The NIC does not know the order of a stream, so what is on one is staged, or copied by it.
    for (const bool onStream : {false, true}) {
      for (const size_t blocks : {1, 300}) {
        SCOPED_TRACE(std::to_string(blocks) + " blocks, stream " + std::to_string(onStream));
        putAndGet(side, line, blocks, onStream, ++seed);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (!onStream) expectRoute(side, way);
    }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    uint32_t seed = 1;
    uint64_t puts = 0;
    while (line.receive() == "look") {
      ++seed;
      must(signal.wait(++puts, kPatience), "signal wait");
      const uint64_t wrong = wrongWords(side.region.data(), kBytes, seed);
      fill(side.region.data(), kBytes, seed + 1000);
      (void)side.context->dump();  // orders the engine's thread for the thread sanitizer
      line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(Ways, VerbsMemory,
                         ::testing::Values(Way{Memory::kVmm, Memory::kVmm, true, true},
                                           Way{Memory::kPool, Memory::kPool, true, true},
                                           Way{Memory::kVmm, Memory::kHeap, true, true},
                                           Way{Memory::kHeap, Memory::kMalloc, true, true},
                                           Way{Memory::kMalloc, Memory::kMalloc, true, true},
                                           Way{Memory::kOddOffset, Memory::kVmm, true, true},
                                           Way{Memory::kVmm, Memory::kVmm, false, false},
                                           Way{Memory::kMalloc, Memory::kHeap, false, false},
                                           Way{Memory::kHeap, Memory::kVmm, false, false}),
                         [](const auto& tested) {
                           return nameOf(tested.param.local) + "To" + nameOf(tested.param.remote) +
                                  (tested.param.byDmaBuf ? "ByDmaBuf" : "Staged");
                         });

}  // namespace
}  // namespace peerlane::gputest
