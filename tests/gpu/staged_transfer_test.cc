// SPDX-License-Identifier: Apache-2.0
//
// Transfers between memories that cannot reach each other: staged through host memory, said so, and
// refused where that is wished.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

#include "tests/gpu/both_ways.h"

namespace peerlane::gputest {
namespace {

// Slots of 64 KiB: a transfer goes round them many times.
constexpr size_t kStaging = size_t{256} << 10;
constexpr size_t kBytes = (size_t{3} << 20) - 12;

void configure(const std::string& links, size_t staging = kStaging) {
  setenv("PEERLANE_STAGING_BYTES", std::to_string(staging).c_str(), 1);
  if (!links.empty()) setenv("PEERLANE_LINKS", links.c_str(), 1);
}

// --- Every way ---

struct Way {
  Memory local;
  Memory remote;
  std::string links;
};

class StagedTransfers : public ::testing::TestWithParam<Way> {};

// One block, and 300 of odd sizes in any order; with a stream of the user's and without.
TEST_P(StagedTransfers, ArriveBothWays) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    configure(GetParam().links);
    const Side side(0, line, kBytes, GetParam().local);
    EXPECT_TRUE(side.remote.prepare().isOk());
    uint32_t round = 0;
    for (const bool onStream : {false, true})
      for (const size_t blocks : {1, 300})
        putAndGet(side, line, {.blocks = blocks, .onStream = onStream}, ++round);
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    configure(GetParam().links);
    lookAndAnswer(Side(1, line, kBytes, GetParam().remote), line);
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(Ways, StagedTransfers,
                         ::testing::Values(Way{Memory::kVmm, Memory::kPrivate, ""},
                                           Way{Memory::kPrivate, Memory::kPrivate, ""},
                                           Way{Memory::kHeap, Memory::kPrivate, ""},
                                           Way{Memory::kVmm, Memory::kHeap, ""},
                                           Way{Memory::kPrivate, Memory::kHeap, ""},
                                           Way{Memory::kVmm, Memory::kVmm, "tcp"},
                                           Way{Memory::kVmm, Memory::kShared, "tcp"},
                                           Way{Memory::kHeap, Memory::kVmm, "tcp"}),
                         [](const auto& tested) {
                           return nameOf(tested.param.local) + "To" + nameOf(tested.param.remote) +
                                  (tested.param.links == "tcp" ? "OverTcp" : "");
                         });

// Runs two sides, the second one of which only has memory.
bool runWith(Memory local, Memory remote, const std::function<void(Side& side, const Line&)>& body,
             size_t localStaging = kStaging) {
  return runTwo(
      [&](const Line& line) {
        configure("", localStaging);
        Side side(0, line, kBytes, local);
        body(side, line);
        line.send("end");
      },
      [&](const Line& line) {
        configure("");
        const Side side(1, line, kBytes, remote);
        fill(side.region.data(), kBytes, 77);
        line.send("filled");
        (void)line.receive();
      });
}

// --- Order ---

// The bytes are those that the stream wrote before, and what it does afterwards sees what came.
TEST(StagedOrder, IsTheStreams) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    void* source = nullptr;
    void* copy = nullptr;
    mustCuda(cudaMalloc(&source, kBytes), "cudaMalloc");
    mustCuda(cudaMalloc(&copy, kBytes), "cudaMalloc");
    PostOptions options;
    options.deviceStream = side.deviceStream();
    const Block all = side.block(0, kBytes);
    for (uint32_t round = 0; round < 5; ++round) {
      fill(source, kBytes, round);
      clear(side.region.data(), kBytes, 0xee);
      mustCuda(cudaMemcpyAsync(side.region.data(), source, kBytes, cudaMemcpyDefault, side.stream),
               "copy");
      const Transfer sent = must(put(side.peer, {&all, 1}, options), "put");
      mustCuda(cudaMemsetAsync(side.region.data(), 0, kBytes, side.stream), "memset");
      const Transfer back = must(get(side.peer, {&all, 1}, options), "get");
      mustCuda(cudaMemcpyAsync(copy, side.region.data(), kBytes, cudaMemcpyDefault, side.stream),
               "copy");
      mustSync(side.stream);
      EXPECT_EQ(wrongWords(copy, kBytes, round), 0u);
      must(sent.wait(kPatience), "put");
      must(back.wait(kPatience), "get");
    }
  }));
}

// Who was posted first, on a stream that cannot go on, keeps nobody from the staging memory: the
// stream goes on only when the second one has ended.
TEST(StagedOrder, IsNotThatOfPosting) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_TWO_QUEUES();
  const auto active = [](const Line& line) {
    configure("");
    const Side side(0, line, kBytes, Memory::kVmm);
    (void)line.receive();
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    const cudaStream_t other = makeStream();
    PostOptions held;
    held.deviceStream = side.deviceStream();
    const Transfer gate = must(signal.waitOn(side.deviceStream(), 1), "waitOn");
    const Block half = side.block(0, kBytes / 2 / 4 * 4);
    const Transfer first = must(get(side.peer, {&half, 1}, held), "get");
    PostOptions free;
    free.deviceStream = side.deviceStream(other);
    free.notify.message = std::as_bytes(std::span("go on", 5));
    const Block rest = side.block(kBytes / 2 / 4 * 4, kBytes / 4 / 4 * 4);
    const Transfer second = must(put(side.peer, {&rest, 1}, free), "put");
    must(second.wait(kPatience), "second");
    must(first.wait(kPatience), "first");
    EXPECT_EQ(wrongWords(side.region.data(), half.bytes, 77), 0u);
    EXPECT_TRUE(gate.wait(kPatience).isOk());
    line.send("end");
  };
  const auto passive = [](const Line& line) {
    configure("");
    const Side side(1, line, kBytes, Memory::kPrivate);
    fill(side.region.data(), kBytes, 77);
    line.send("filled");
    (void)must(waitNotification(side.peer, kPatience), "notification");
    Notify go;
    go.signal = 1;
    must(must(notify(side.peer, go), "notify").wait(kPatience), "notify");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// --- Plans ---

TEST(StagedPlans, PagesByNumber) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    constexpr size_t kPage = 4096;
    constexpr size_t kPages = kBytes / kPage;
    IndexedBlocks blocks;
    blocks.local = &side.region;
    blocks.remote = &side.remote;
    blocks.blockBytes = kPage;
    blocks.localCount = blocks.remoteCount = blocks.maxBlocksPerPost = kPages;
    auto plan = must(Plan::create(side.peer, Direction::kGet, blocks), "plan");
    std::vector<uint32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0u);
    for (uint32_t round = 0; round < 3; ++round) {
      clear(side.region.data(), kBytes, 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(round));
      must(must(plan.post(pages, pages, side.deviceStream()), "post").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(side.region.data(), kPages * kPage, 77), 0u);
    }
    pages[1] = pages[0];
    EXPECT_EQ(plan.post(pages, pages).status().code(), Code::kInvalidArgument);
    pages[0] = kPages;
    EXPECT_EQ(plan.post(pages, pages).status().code(), Code::kInvalidArgument);
    const StridedBlocks every{&side.region, 0, 8192, &side.remote, 0, 8192, 4096, 100};
    auto strided = must(Plan::create(side.peer, Direction::kGet, every), "strided");
    clear(side.region.data(), kBytes, 0);
    must(must(strided.post(), "post").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(side.region.data() + 8192, 4096, 77, 8192), 0u);
  }));
}

// --- Said, and refused ---

TEST(StagedRoute, SaysSo) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    EXPECT_NE(side.remote.description().find("staged through host memory"), std::string::npos)
        << side.remote.description();
    EXPECT_EQ(side.remote.engine(), "staged");
    EXPECT_NE(side.peer.route().toString().find("staged through host memory, at most 262144"),
              std::string::npos)
        << side.peer.route().toString();
    const Block all = side.block(0, kBytes);
    must(must(get(side.peer, {&all, 1}), "get").wait(kPatience), "wait");
    const std::string metrics = side.context->metrics();
    EXPECT_NE(metrics.find("engine=\"staged\""), std::string::npos) << metrics;
  }));
}

TEST(StagedRefusals, UnderStrict) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    setenv("PEERLANE_STRICT", "1", 1);
    const Side side(0, line, kBytes, Memory::kVmm);
    (void)line.receive();
    const Block all = side.block(0, kBytes);
    for (const Status& status : {get(side.peer, {&all, 1}).status(),
                                 Plan::create(side.peer, Direction::kPut, {&all, 1}).status()}) {
      EXPECT_EQ(status.code(), Code::kNotSupported);
      EXPECT_NE(status.message().find("PEERLANE_STRICT"), std::string_view::npos)
          << status.toString();
      EXPECT_NE(status.message().find("not made for export"), std::string_view::npos)
          << status.toString();
    }
    line.send("end");
  };
  const auto passive = [](const Line& line) {
    const Side side(1, line, kBytes, Memory::kPrivate);
    line.send("there");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// The peer gives less than this side counts on.
TEST(StagedRefusals, UnequalStagingMemory) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(
      Memory::kVmm, Memory::kPrivate,
      [](Side& side, const Line& line) {
        (void)line.receive();
        const Block all = side.block(0, kBytes);
        for (const bool onStream : {true, false}) {
          PostOptions options;
          if (onStream) options.deviceStream = side.deviceStream();
          const Status status = must(get(side.peer, {&all, 1}, options), "get").wait(kPatience);
          EXPECT_EQ(status.code(), Code::kNotSupported);
          EXPECT_NE(status.message().find("set both sides alike"), std::string_view::npos)
              << status.toString();
        }
        mustSync(side.stream);
      },
      2 * kStaging));
}

// The host does not wait for room on a stream that waits for the host.
TEST(StagedRefusals, MoreThanAStreamTakes) {
  PEERLANE_NEEDS_GPUS(1);
  // Waits and copies for each 32 KiB of it.
  constexpr size_t kMany = size_t{16} << 20;
  const auto configure = [] { setenv("PEERLANE_STAGING_BYTES", "262144", 1); };
  EXPECT_TRUE(runTwo(
      [&](const Line& line) {
        configure();
        Side side(0, line, kMany, Memory::kVmm);
        (void)line.receive();
        const Block all = side.block(0, kMany);
        PostOptions options;
        options.deviceStream = side.deviceStream();
        const Status status = get(side.peer, {&all, 1}, options).status();
        EXPECT_EQ(status.code(), Code::kNotSupported);
        for (const char* part : {"a stream takes 1000 at once", "PEERLANE_STAGING_BYTES (262144)"})
          EXPECT_NE(status.message().find(part), std::string_view::npos) << status.toString();
        mustSync(side.stream);
        options.deviceStream = {};
        must(must(get(side.peer, {&all, 1}, options), "get").wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(side.region.data(), kMany, 77), 0u);
        line.send("end");
      },
      [&](const Line& line) {
        configure();
        const Side side(1, line, kMany, Memory::kPrivate);
        fill(side.region.data(), kMany, 77);
        line.send("filled");
        (void)line.receive();
      }));
}

// Its copies would hold up those of other transfers, whose turn it is.
TEST(StagedRefusals, ByTheCopyEngineOnAStream) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    const Block all = side.block(0, kBytes);
    PostOptions options;
    options.engine = Engine::kCe;
    options.deviceStream = side.deviceStream();
    const Status status = get(side.peer, {&all, 1}, options).status();
    EXPECT_EQ(status.code(), Code::kNotSupported);
    EXPECT_NE(status.message().find("engine ce"), std::string_view::npos) << status.toString();
    options.deviceStream = {};
    must(must(get(side.peer, {&all, 1}, options), "get").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(side.region.data(), kBytes, 77), 0u);
  }));
}

TEST(StagedRefusals, InAGraph) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeRelaxed), "begin");
    const Block all = side.block(0, kBytes);
    PostOptions options;
    options.deviceStream = side.deviceStream();
    const Status status = put(side.peer, {&all, 1}, options).status();
    EXPECT_EQ(status.code(), Code::kNotSupported);
    EXPECT_NE(status.message().find("graph"), std::string_view::npos) << status.toString();
    cudaGraph_t graph = nullptr;
    mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
    mustCuda(cudaGraphDestroy(graph), "destroy");
  }));
}

// --- Ends ---

// A region that its owner takes back, and rights that it never gave: the transfer says why.
TEST(StagedEnds, WhatTheOwnerRefuses) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    configure("");
    const Side side(0, line, kBytes, Memory::kVmm);
    line.send("unregister");
    (void)line.receive();
    const Block all = side.block(0, kBytes);
    for (const bool onStream : {false, true}) {
      PostOptions options;
      if (onStream) options.deviceStream = side.deviceStream();
      const Status status = must(put(side.peer, {&all, 1}, options), "put").wait(kPatience);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.toString();
      EXPECT_NE(status.message().find("the peer could not move"), std::string_view::npos)
          << status.toString();
    }
    mustSync(side.stream);
    line.send("end");
  };
  const auto passive = [](const Line& line) {
    configure("");
    Side side(1, line, kBytes, Memory::kPrivate);
    (void)line.receive();
    must(side.context->unregister(side.region, kPatience), "unregister");
    line.send("done");
    (void)line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// On a stream that cannot go on yet: it ends when the stream has passed it, and the next one has
// the staging memory.
TEST(StagedEnds, CancelledOnAStreamThatWaits) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWith(Memory::kVmm, Memory::kPrivate, [](Side& side, const Line& line) {
    (void)line.receive();
    const Signal own = must(Signal::create(side.peer, 2), "signal");
    Transfer gate = must(own.waitOn(side.deviceStream(), 1), "waitOn");
    PostOptions options;
    options.deviceStream = side.deviceStream();
    const Block all = side.block(0, kBytes);
    const Transfer held = must(put(side.peer, {&all, 1}, options), "put");
    held.cancel();
    EXPECT_EQ(held.wait(std::chrono::milliseconds(50)).code(), Code::kTimeout);
    gate.cancel();
    EXPECT_EQ(held.wait(kPatience).code(), Code::kCancelled);
    mustSync(side.stream);
    EXPECT_EQ(poisonings(*side.context), 2u) << "the signal's wait and the put's";
    must(must(get(side.peer, {&all, 1}, options), "get").wait(kPatience), "get");
    EXPECT_EQ(wrongWords(side.region.data(), kBytes, 77), 0u);
  }));
}

// A peer that dies in the middle: said within a second, the stream goes on, and another peer's
// bytes arrive.
TEST(StagedEnds, WhenThePeerIsKilled) {
  PEERLANE_NEEDS_GPUS(1);
  const auto survivor = [](const Victims& victims) {
    configure("");
    const auto context = makeContext({gpu(0)});
    const cudaStream_t stream = makeStream();
    const Region region = makeRegion(*context, gpu(0), Memory::kVmm, kBytes);
    for (int round = 0; round < 6; ++round) {
      const Victim victim = victims.next();
      const Line line = victim.line();
      line.send(context->ticket());
      const Peer peer = must(context->accept(kPatience), "accept");
      const RemoteRegion remote = exchange(peer, region, line);
      PostOptions options;
      if (round % 2 == 0) options.deviceStream = DeviceStream::cuda(stream);
      const Block all{&region, 0, &remote, 0, kBytes};
      must(must(get(peer, {&all, 1}, options), "get").wait(kPatience), "get");
      EXPECT_EQ(wrongWords(region.data(), kBytes, 5), 0u);
      std::vector<Transfer> posted;
      for (int i = 0; i < 4; ++i) posted.push_back(must(put(peer, {&all, 1}, options), "put"));
      if (round >= 2) (void)posted.front().wait(kPatience);
      victim.kill();
      for (const Transfer& transfer : posted) {
        const Status status = transfer.wait(kPatience);
        EXPECT_TRUE(status.isOk() || status.code() == Code::kPeerLost) << status.toString();
      }
      mustSync(stream);
    }
  };
  const auto victim = [](const Line& line) {
    configure("");
    const auto context = makeContext({gpu(1)});
    const Peer peer = must(context->connect(line.receive(), kPatience), "connect");
    const Region region = makeRegion(*context, gpu(1), Memory::kPrivate, kBytes);
    fill(region.data(), kBytes, 5);
    (void)exchange(peer, region, line);
    (void)line.receive();  // until it is killed
  };
  EXPECT_TRUE(runWithVictims(survivor, victim));
}

}  // namespace
}  // namespace peerlane::gputest
