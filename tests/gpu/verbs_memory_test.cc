// SPDX-License-Identifier: Apache-2.0
//
// Memory of GPUs between two processes over a NIC: straight where the NIC takes a dma-buf of it,
// else staged through host memory; in each case every byte, and the way as the route says it. What
// the NIC wrote is seen by whoever was told of it, also where the GPU does not order such writes.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/gpu/both_ways.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = (size_t{3} << 20) - 12;

struct Way {
  Memory local;
  Memory remote;
  const char* dmaBuf = "yes";         // as SOFTWARE_HCA_DMABUF
  const char* nicWrites = "ordered";  // as SOFTWARE_GPU_NIC_WRITES
  bool isStraight = true;             // what is on no stream is not staged
  const char* why = "";               // else: in the route
  const char* limits = "mtu=4096";    // as SOFTWARE_HCA_LIMITS
};

constexpr const char* kNoSecondQueue = "maxCompletionQueues=1";
constexpr const char* kNotReadBack = "after a read by that NIC, which is not possible: sw0: ";

void configure(const Way& way) {
  setenv("PEERLANE_LINKS", "self,verbs", 1);
  setenv("PEERLANE_STAGING_BYTES", "262144", 1);
  setenv("SOFTWARE_HCA_DMABUF", way.dmaBuf, 1);
  setenv("SOFTWARE_GPU_NIC_WRITES", way.nicWrites, 1);
  setenv("SOFTWARE_HCA_LIMITS", way.limits, 1);
}

// Of GPUs in software, in this process.
uint64_t flushes() {
  using Count = uint64_t (*)();
  const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "software_gpu_flushes"));
  return count == nullptr ? 0 : count();
}

// By the side that has this memory: only where its GPU needs it.
void expectFlushes(const Way& way, Memory memory) {
  if (!inSoftware()) return;
  const bool areNeeded = std::string(way.nicWrites) == "flush" && way.isStraight;
  EXPECT_EQ(flushes() != 0, areNeeded && isOfGpu(memory)) << flushes();
}

// The route says what the GPU needs.
void expectSaid(const Side& side, const Way& way) {
  if (!inSoftware()) return;
  const std::string writes = way.nicWrites;
  const char* const says = writes == "flush"                          ? "after a flush by the host"
                           : writes == "ordered" || writes == "owner" ? "when a later word of it is"
                                                                      : "after a read by that NIC";
  std::string all;
  for (const std::string& each : side.peer.route().registrations) all += each + "\n";
  EXPECT_NE(all.find(says), std::string::npos) << all;
}

void expectRoute(const Side& side, const Way& way) {
  EXPECT_EQ(side.peer.route().link, "verbs");
  const MemoryRoute route = side.peer.routeOf(side.remote, side.region);
  EXPECT_EQ(route.link, way.isStraight ? "verbs" : "") << side.remote.description();
  const std::string metrics = side.context->metrics();
  EXPECT_EQ(metrics.find("engine=\"staged\"") == std::string::npos, way.isStraight) << metrics;
  std::string refused;
  for (const std::string& each : route.refused) refused += each + "\n";
  EXPECT_EQ(refused.find("verbs") == std::string::npos, way.isStraight) << refused;
  EXPECT_NE(refused.find(way.why), std::string::npos) << refused;
}

class VerbsMemory : public ::testing::TestWithParam<Way> {};

TEST_P(VerbsMemory, ArrivesBothWays) {
  PEERLANE_NEEDS_GPUS(1);
  const Way& way = GetParam();
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    must(side.remote.prepare(), "prepare");
    uint32_t round = 0;
    // The NIC does not know the order of a stream, so what is on one is staged, or copied by it.
    for (const bool onStream : {false, true}) {
      for (const size_t blocks : {1, 300})
        putAndGet(side, line, {.blocks = blocks, .onStream = onStream}, ++round);
      if (onStream) continue;
      expectRoute(side, way);
      expectSaid(side, way);
      expectFlushes(way, way.local);
    }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    lookAndAnswer(Side(1, line, kBytes, way.remote), line);
    expectFlushes(way, way.remote);
  };
  EXPECT_TRUE(runTwo(active, passive));
}

constexpr const char* kChunked = "makes no dma-buf of this memory";

INSTANTIATE_TEST_SUITE_P(
    Ways, VerbsMemory,
    ::testing::Values(Way{Memory::kVmm, Memory::kVmm}, Way{Memory::kPool, Memory::kPool},
                      Way{Memory::kVmm, Memory::kHeap}, Way{Memory::kHeap, Memory::kMalloc},
                      Way{Memory::kMalloc, Memory::kMalloc}, Way{Memory::kOddOffset, Memory::kVmm},
                      Way{Memory::kVmm, Memory::kVmm, "EOPNOTSUPP", "ordered", false},
                      Way{Memory::kMalloc, Memory::kHeap, "EOPNOTSUPP", "ordered", false},
                      Way{Memory::kHeap, Memory::kVmm, "EOPNOTSUPP", "ordered", false},
                      // The NIC takes dma-bufs, but none of this memory.
                      Way{Memory::kChunks, Memory::kHeap, "yes", "ordered", false, kChunked},
                      Way{Memory::kHeap, Memory::kChunks, "yes", "ordered", false, kChunked},
                      Way{Memory::kVmm, Memory::kChunks, "yes", "ordered", false, kChunked},
                      Way{Memory::kChunks, Memory::kChunks, "yes", "ordered", false, kChunked},
                      Way{Memory::kVmm, Memory::kVmm, "EINVAL", "ordered", false, "Invalid"},
                      // What the NIC wrote is seen after a flush only.
                      Way{Memory::kVmm, Memory::kVmm, "late", "flush"},
                      Way{Memory::kMalloc, Memory::kHeap, "late", "flush"},
                      Way{Memory::kHeap, Memory::kMalloc, "late", "flush"},
                      Way{Memory::kVmm, Memory::kVmm, "yes", "owner"},
                      // By the NIC's own reads, where the GPU knows no flush by the host.
                      Way{Memory::kVmm, Memory::kVmm, "late", "memops"},
                      Way{Memory::kMalloc, Memory::kHeap, "late", "never"},
                      Way{Memory::kHeap, Memory::kVmm, "late", "never"},
                      Way{Memory::kHeap, Memory::kVmm, "late", "never", false, kNotReadBack,
                          kNoSecondQueue}),
    [](const auto& tested) {
      const Way& way = tested.param;
      return nameOf(way.local) + "To" + nameOf(way.remote) + "DmaBuf" + way.dmaBuf + "Writes" +
             way.nicWrites + (way.limits == kNoSecondQueue ? "WithoutReads" : "");
    });

// What is known only when the memory is asked for is found out by the first transfer, and it
// arrives all the same, with its notification; so does a plan.
TEST(VerbsMemoryRefused, IsFoundOutByTheFirst) {
  PEERLANE_NEEDS_GPUS(1);
  const Way way{Memory::kHeap, Memory::kChunks};
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    const Block all = side.block(0, kBytes);
    fill(side.region.data(), kBytes, 5);
    PostOptions options;
    options.notify.message = std::as_bytes(std::span("there", 5));
    const Transfer first = must(put(side.peer, {&all, 1}, options), "put");
    must(first.wait(kPatience), "put wait");
    EXPECT_NE(side.remote.description().find(kChunked), std::string::npos)
        << side.remote.description();
    ASSERT_EQ(line.receive(), "good");
    // Another handle, which does not know it yet.
    const RemoteRegion anew =
        must(side.peer.importRegion(side.remote.reference().encode()), "importRegion");
    const Block fetched{&side.region, 0, &anew, 0, kBytes};
    Plan plan = must(Plan::create(side.peer, Direction::kGet, {&fetched, 1}), "plan");
    fill(side.region.data(), kBytes, 4);
    must(must(plan.post(), "post").wait(kPatience), "get wait");
    EXPECT_EQ(wrongWords(side.region.data(), kBytes, 6), 0u);
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    const Notification came = must(waitNotification(side.peer, kPatience), "notification");
    EXPECT_EQ(came.message.size(), 5u);
    const uint64_t wrong = wrongWords(side.region.data(), kBytes, 5);
    fill(side.region.data(), kBytes, 6);
    line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

TEST(VerbsMemoryRefused, IsAnErrorUnderStrict) {
  PEERLANE_NEEDS_GPUS(1);
  const Way way{Memory::kHeap, Memory::kChunks};
  const auto active = [&](const Line& line) {
    configure(way);
    setenv("PEERLANE_STRICT", "1", 1);
    const Side side(0, line, kBytes, way.local);
    const Block all = side.block(0, kBytes);
    for (int i = 0; i < 2; ++i) {
      const auto posted = put(side.peer, {&all, 1});
      const Status status = posted.isOk() ? posted->wait(kPatience) : posted.status();
      EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
      EXPECT_NE(status.message().find("PEERLANE_STRICT"), std::string_view::npos);
      EXPECT_NE(status.message().find(kChunked), std::string_view::npos) << status.toString();
    }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Of two GPUs of one context, of which a NIC may write into the memory of one.
TEST(VerbsMemoryRefused, IsOfTheGpuThatTakesNoWrites) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs that differ";
  const Way way{Memory::kVmm, Memory::kHeap, "yes", "ordered,never", true, "", kNoSecondQueue};
  const auto active = [&](const Line& line) {
    configure(way);
    const Device first{DeviceKind::kCuda, 0}, second{DeviceKind::kCuda, 1};
    const auto context = makeContext({first, second});
    const Peer peer = meetPeer(*context, line, false);
    const Region good = makeRegion(*context, first, way.local, kBytes);
    const Region staged = makeRegion(*context, second, way.local, kBytes);
    const RemoteRegion remote = exchange(peer, good, line);
    EXPECT_EQ(peer.routeOf(remote, good).link, "verbs");
    const MemoryRoute route = peer.routeOf(remote, staged);
    EXPECT_EQ(route.link, "");
    EXPECT_NE(route.refused.front().find(std::string("cuda:1: what a NIC wrote is there ") +
                                         kNotReadBack),
              std::string::npos)
        << route.refused.front();
    fill(staged.data(), kBytes, 3);
    const Block all{&staged, 0, &remote, 0, kBytes};
    must(must(put(peer, {&all, 1}, {.notify = {.signal = 1}}), "put").wait(kPatience), "wait");
    EXPECT_EQ(line.receive(), "good");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    must(signal.wait(1, kPatience), "signal wait");
    line.send(wrongWords(side.region.data(), kBytes, 3) == 0 ? "good" : "wrong");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// A stream that waits for the word of a put: what stands after the wait sees the bytes.
class VerbsFlush : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Gpus, VerbsFlush, ::testing::Values("flush", "never"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(VerbsFlush, ComesBeforeAStreamSeesTheWord) {
  PEERLANE_NEEDS_GPUS(1);
  const Way way{Memory::kHeap, Memory::kVmm, "late", GetParam()};
  constexpr uint32_t kRounds = 8;
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    const Block all = side.block(0, kBytes);
    for (uint32_t round = 1; round <= kRounds; ++round) {
      EXPECT_EQ(line.receive(), "next");
      fill(side.region.data(), kBytes, round);
      PostOptions options;
      options.notify.signal = 1;
      must(must(put(side.peer, {&all, 1}, options), "put").wait(kPatience), "wait");
    }
    (void)line.receive();
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    void* copy = nullptr;
    mustCuda(cudaMalloc(&copy, kBytes), "cudaMalloc");
    for (uint32_t round = 1; round <= kRounds; ++round) {
      const Transfer waited = must(signal.waitOn(side.deviceStream(), round), "waitOn");
      mustCuda(cudaMemcpyAsync(copy, side.region.data(), kBytes, cudaMemcpyDefault, side.stream),
               "copy");
      line.send("next");
      mustSync(side.stream);
      must(waited.wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(copy, kBytes, round), 0u) << "round " << round;
    }
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// What was read last may be gone.
TEST_P(VerbsFlush, OutlivesARegion) {
  PEERLANE_NEEDS_GPUS(1);
  const Way way{Memory::kHeap, Memory::kVmm, "late", GetParam()};
  const auto putTo = [](const Side& side, const RemoteRegion& remote, uint32_t seed) {
    fill(side.region.data(), kBytes, seed);
    const Block all{&side.region, 0, &remote, 0, kBytes};
    must(must(put(side.peer, {&all, 1}, {.notify = {.signal = 1}}), "put").wait(kPatience), "wait");
  };
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    const RemoteRegion other = exchange(side.peer, side.region, line);
    putTo(side, side.remote, 1);
    putTo(side, other, 1);
    EXPECT_EQ(line.receive(), "ended");
    putTo(side, side.remote, 2);
    EXPECT_EQ(line.receive(), "good");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    Region other = makeRegion(*side.context, side.device, way.remote, kBytes);
    (void)exchange(side.peer, other, line);
    must(signal.wait(2, kPatience), "signal wait");
    EXPECT_EQ(wrongWords(other.data(), kBytes, 1), 0u);
    must(side.context->unregister(std::move(other), kPatience), "unregister");
    line.send("ended");
    must(signal.wait(3, kPatience), "signal wait");
    EXPECT_EQ(wrongWords(side.region.data(), kBytes, 2), 0u);
    line.send("good");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// No word tells of a put; the end of its link does.
TEST_P(VerbsFlush, ComesWhenTheLinkHasEnded) {
  PEERLANE_NEEDS_GPUS(1);
  const Way way{Memory::kHeap, Memory::kVmm, "late", GetParam()};
  const auto active = [&](const Line& line) {
    configure(way);
    const Side side(0, line, kBytes, way.local);
    fill(side.region.data(), kBytes, 5);
    const Block all = side.block(0, kBytes);
    must(must(put(side.peer, {&all, 1}), "put").wait(kPatience), "wait");
    line.send("put");
    EXPECT_EQ(line.receive(), "looked");
  };
  const auto passive = [&](const Line& line) {
    configure(way);
    const Side side(1, line, kBytes, way.remote);
    ASSERT_EQ(line.receive(), "put");
    EXPECT_NE(wrongWords(side.region.data(), kBytes, 5), 0u) << "it is not late";
    line.send("looked");
    const auto isThere = [&] { return wrongWords(side.region.data(), kBytes, 5) == 0; };
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (!isThere() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_TRUE(isThere());
    EXPECT_FALSE(side.peer.status().isOk());
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Words that go over another link than the bytes are not held back for a flush: where the GPU needs
// one, its memory is staged.
TEST(VerbsFlushed, IsForWordsOfTheSameLink) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool isOrdered : {true, false}) {
    const Way way{Memory::kHeap, Memory::kVmm, isOrdered ? "yes" : "late",
                  isOrdered ? "ordered" : "flush"};
    const auto configureBoth = [way] {
      configure(way);
      setenv("PEERLANE_LINKS", "self,shm,verbs", 1);
    };
    const auto active = [&](const Line& line) {
      configureBoth();
      const Side side(0, line, kBytes, way.local);
      ASSERT_EQ(side.peer.route().link, "shm");
      must(side.remote.prepare(), "prepare");
      putAndGet(side, line, {}, 1);
      const std::string how = side.remote.description();
      EXPECT_EQ(how.find("words go over link shm") == std::string::npos, isOrdered) << how;
      EXPECT_EQ(side.peer.routeOf(side.remote, side.region).link, isOrdered ? "verbs" : "");
      line.send("end");
    };
    const auto passive = [&](const Line& line) {
      configureBoth();
      lookAndAnswer(Side(1, line, kBytes, way.remote), line);
    };
    EXPECT_TRUE(runTwo(active, passive));
  }
}

}  // namespace
}  // namespace peerlane::gputest
