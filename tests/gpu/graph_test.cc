// SPDX-License-Identifier: Apache-2.0
//
// Transfers, signals, messages and waits captured into CUDA graphs: replayed with changing data,
// beside live posts, across the loss of a peer, and held in use until the graph is gone.
#include <cuda_runtime_api.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "peerlane/core/limits.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

// Everything is imported: a graph cannot wait for that.
struct Ready : Side {
  Ready(int side, const Line& line) : Side(side, line, kBytes) {
    must(remote.prepare(kPatience), "prepare");
  }
};

// What was captured, ready to be launched.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& capture) : stream_(stream) {
    mustCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
    capture();
    cudaGraph_t graph = nullptr;
    mustCuda(cudaStreamEndCapture(stream, &graph), "end");
    mustCuda(cudaGraphInstantiate(&executable_, graph, 0), "instantiate");
    mustCuda(cudaGraphDestroy(graph), "destroy");
  }
  ~Graph() { mustCuda(cudaGraphExecDestroy(executable_), "destroy executable"); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { mustCuda(cudaGraphLaunch(executable_, stream_), "launch"); }

 private:
  const cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// There and back by two graphs that wait for each other, with data that changes at every replay;
// live posts on another stream add to the same signal meanwhile.
TEST(Graphs, ReplaysCarryFreshData) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kReplays = 1000;
  constexpr size_t kHalf = kBytes / 2;
  constexpr int kLive = 50;
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    cudaStream_t other = makeStream();
    const Signal answered = must(Signal::create(side.peer, 1), "signal");
    Transfer sent;
    {
      const Graph graph(side.stream, [&] {
        const Block block = side.block(0, kHalf);
        PostOptions options;
        options.deviceStream = side.deviceStream();
        options.notify.signal = 0;
        sent = must(put(side.peer, {&block, 1}, options), "captured put");
        (void)must(answered.waitOn(side.deviceStream(), 1), "captured wait");
      });
      EXPECT_EQ(sent.wait(kPatience).code(), Code::kNotSupported);
      std::vector<unsigned char> back(kHalf);
      for (int i = 0; i < kReplays; ++i) {
        mustCuda(cudaMemsetAsync(side.region.data(), i % 251, kHalf, side.stream), "memset");
        graph.launch();
        if (i % (kReplays / kLive) == 0) {
          // Not in order with the graph: signal 2 counts both sorts.
          PostOptions live;
          live.deviceStream = side.deviceStream(other);
          live.notify.signal = 2;
          const Block block = side.block(kHalf, 4096);
          must(must(put(side.peer, {&block, 1}, live), "live").wait(kPatience), "live wait");
        }
        if (i % 100 != 99) continue;
        mustSync(side.stream);
        mustCuda(cudaMemcpy(back.data(), side.region.data() + kHalf, kHalf, cudaMemcpyDeviceToHost),
                 "copy");
        const auto wrong = std::count_if(back.begin() + 4096, back.end(),
                                         [&](int byte) { return byte != i % 251; });
        ASSERT_EQ(wrong, 0) << "replay " << i;
      }
      EXPECT_EQ(answered.value(), uint64_t{kReplays});
      EXPECT_EQ(sent.status().code(), Code::kTryAgain) << "alive and well";
    }
    // The graph is gone, and what it held with it.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (sent.status().code() == Code::kTryAgain && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_TRUE(sent.status().isOk()) << sent.status().toString();
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    const Signal arrived = must(Signal::create(side.peer, 0), "signal");
    const Signal mixed = must(Signal::create(side.peer, 2), "signal");
    {
      const Graph graph(side.stream, [&] {
        (void)must(arrived.waitOn(side.deviceStream(), 1), "captured wait");
        const Block block{&side.region, 4096, &side.remote, kHalf + 4096, kHalf - 4096};
        PostOptions options;
        options.deviceStream = side.deviceStream();
        options.notify.signal = 1;
        (void)must(put(side.peer, {&block, 1}, options), "captured put");
      });
      for (int i = 0; i < kReplays; ++i) graph.launch();
      mustSync(side.stream);
      EXPECT_EQ(arrived.value(), uint64_t{kReplays});
      must(mixed.wait(kLive, kPatience), "live ones");
    }
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive, 240));
}

// One signal: a graph with several posts on one stream, and live posts, all counted.
TEST(Graphs, OneSignalCountsAll) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kReplays = 20, kPosts = 12;
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    cudaStream_t other = makeStream();
    const Block block = side.block(0, 8192);
    PostOptions options;
    options.notify.signal = 7;
    options.notify.signalAdd = 3;
    for (int round = 0; round < 12; ++round) {  // more graphs, one after the other, than words
      const Graph graph(side.stream, [&] {
        options.deviceStream = side.deviceStream();
        for (int i = 0; i < kPosts; ++i)
          (void)must(put(side.peer, {&block, 1}, options), "captured put");
      });
      for (int i = 0; i < kReplays; ++i) {
        graph.launch();
        options.deviceStream = side.deviceStream(other);
        must(must(put(side.peer, {&block, 1}, options), "live").wait(kPatience), "live wait");
      }
      mustSync(side.stream);
    }
    line.meet();
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    const Signal signal = must(Signal::create(side.peer, 7), "signal");
    line.meet();
    EXPECT_EQ(signal.value(), uint64_t{12} * kReplays * (kPosts + 1) * 3);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Every engine, a list too long for a launch's parameters, and a plan whose page numbers lie in
// device memory and change between replays.
TEST(Graphs, ListsAndPlans) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPage = 4096, kPages = kBytes / kPage;
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    std::vector<Block> list;
    for (size_t i = 0; i < kPages; ++i)
      list.push_back({&side.region, i * kPage, &side.remote, (kPages - 1 - i) * kPage, kPage});
    for (const Engine engine : {Engine::kAuto, Engine::kCe}) {
      PostOptions options{.engine = engine};
      options.deviceStream = side.deviceStream();
      const Graph graph(side.stream,
                        [&] { (void)must(put(side.peer, list, options), "captured put"); });
      for (const uint32_t seed : {3u, 4u}) {
        fill(side.region.data(), kBytes, seed);
        graph.launch();
        mustSync(side.stream);
        line.send("reversed " + std::to_string(seed));
        ASSERT_EQ(line.receive(), "0") << engineName(engine);
      }
    }
    IndexedBlocks blocks;
    blocks.local = &side.region;
    blocks.remote = &side.remote;
    blocks.blockBytes = kPage;
    blocks.localCount = blocks.remoteCount = blocks.maxBlocksPerPost = kPages;
    auto plan = must(Plan::create(side.peer, Direction::kPut, blocks), "plan");
    uint32_t* pages = nullptr;
    mustCuda(cudaMalloc(reinterpret_cast<void**>(&pages), 2 * kPages * sizeof(uint32_t)), "malloc");
    DeviceIndexList indices;
    indices.local = pages;
    indices.remote = pages + kPages;
    indices.count = kPages;
    Transfer posted;
    const Graph graph(side.stream, [&] {
      posted = must(plan.post(indices, side.deviceStream()), "captured post");
    });
    std::vector<uint32_t> numbers(2 * kPages);
    for (const uint32_t seed : {5u, 6u, 7u}) {
      std::iota(numbers.begin(), numbers.begin() + kPages, 0u);
      std::shuffle(numbers.begin(), numbers.begin() + kPages, std::mt19937(seed));
      std::copy_n(numbers.begin(), kPages, numbers.begin() + kPages);
      mustCuda(cudaMemcpy(pages, numbers.data(), numbers.size() * sizeof(uint32_t),
                          cudaMemcpyHostToDevice),
               "numbers");
      fill(side.region.data(), kBytes, seed);
      graph.launch();
      mustSync(side.stream);
      line.send("straight " + std::to_string(seed));
      ASSERT_EQ(line.receive(), "0");
    }
    EXPECT_EQ(posted.status().code(), Code::kTryAgain);
    numbers[3] = kPages;  // a page that is not there
    mustCuda(cudaMemcpy(pages, numbers.data(), numbers.size() * sizeof(uint32_t),
                        cudaMemcpyHostToDevice),
             "numbers");
    // From pageable memory they may still be on their way.
    mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    graph.launch();
    mustSync(side.stream);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (posted.status().code() == Code::kTryAgain && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(posted.status().code(), Code::kInvalidArgument) << posted.status().toString();
    line.send("end 0");
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    std::vector<std::byte> pages(kBytes), straight(kBytes);
    void* ordered = nullptr;
    mustCuda(cudaMalloc(&ordered, kBytes), "malloc");
    for (;;) {
      const std::string said = line.receive();
      const auto seed = static_cast<uint32_t>(std::stoul(said.substr(said.find(' '))));
      if (said.starts_with("end")) return;
      mustCuda(cudaMemcpy(pages.data(), side.region.data(), kBytes, cudaMemcpyDeviceToHost),
               "copy");
      for (size_t i = 0; i < kPages; ++i) {
        const size_t from = said.starts_with("reversed") ? kPages - 1 - i : i;
        std::copy_n(pages.begin() + static_cast<ptrdiff_t>(from * kPage), kPage,
                    straight.begin() + static_cast<ptrdiff_t>(i * kPage));
      }
      mustCuda(cudaMemcpy(ordered, straight.data(), kBytes, cudaMemcpyHostToDevice), "copy");
      line.send(std::to_string(wrongWords(ordered, kBytes, seed)));
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// A message at every replay, behind the bytes of that replay.
TEST(Graphs, MessagesAreDelivered) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kReplays = 25;
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    const std::string text = "page table 7";
    const Graph graph(side.stream, [&] {
      const Block block = side.block(0, kBytes);
      PostOptions options;
      options.deviceStream = side.deviceStream();
      options.notify.message = std::as_bytes(std::span(text));
      options.notify.tag = 9;
      (void)must(put(side.peer, {&block, 1}, options), "captured put");
    });
    for (int i = 0; i < kReplays; ++i) {
      fill(side.region.data(), kBytes, static_cast<uint32_t>(i));
      graph.launch();
      mustSync(side.stream);
      ASSERT_EQ(line.receive(), "0") << "replay " << i;
    }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    for (int i = 0; i < kReplays; ++i) {
      const Notification got = must(waitNotification(side.peer, kPatience), "message");
      EXPECT_EQ(got.tag, 9u);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.message.data()), got.message.size()),
                "page table 7");
      line.send(std::to_string(wrongWords(side.region.data(), kBytes, static_cast<uint32_t>(i))));
    }
    EXPECT_EQ(line.receive(), "end");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// More replays than the peer has room for: those that wait here are delivered when it has, though
// the graph is gone by then.
TEST(Graphs, MessagesOutliveTheirGraph) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr uint32_t kReplays = limits::kNotificationSlots + limits::kNotificationsWaiting + 60;
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    Transfer sent;
    {
      const Graph graph(side.stream, [&] {
        PostOptions options;
        options.deviceStream = side.deviceStream();
        options.notify.message = std::as_bytes(std::span("page"));
        const Block block = side.block(0, 64);
        sent = must(put(side.peer, {&block, 1}, options), "captured put");
      });
      for (uint32_t i = 0; i < kReplays; ++i) graph.launch();
      mustSync(side.stream);
    }
    line.send("take");
    pollfd ended{must(sent.fd(), "fd"), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
    EXPECT_TRUE(sent.status().isOk()) << sent.status().toString();
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    EXPECT_EQ(line.receive(), "take");
    for (uint32_t i = 0; i < kReplays; ++i)
      (void)must(waitNotification(side.peer, kPatience), "message");
    EXPECT_EQ(line.receive(), "end");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

TEST(Graphs, AMissDuringCaptureIsNotPrepared) {
  PEERLANE_NEEDS_GPUS(1);
  const auto sideOf = [](int index, const Line& line) {
    const Side side(index, line, kBytes);
    if (index == 0) {
      const Block block = side.block(0, kBytes);
      PostOptions options;
      options.deviceStream = side.deviceStream();
      mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal), "begin");
      const auto refused = put(side.peer, {&block, 1}, options);
      cudaGraph_t graph = nullptr;
      mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
      mustCuda(cudaGraphDestroy(graph), "destroy");
      EXPECT_EQ(refused.status().code(), Code::kNotPrepared) << refused.status().toString();
      EXPECT_NE(refused.status().message().find("prepare"), std::string::npos);
    }
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { sideOf(0, line); },
                     [&](const Line& line) { sideOf(1, line); }));
}

// What a graph uses is in use until it is gone.
TEST(Graphs, HoldTheirRegions) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Ready side(0, line);
    line.meet();  // the other side has imported the region
    {
      const Graph graph(side.stream, [&] {
        const Block block = side.block(0, kBytes);
        PostOptions options;
        options.deviceStream = side.deviceStream();
        (void)must(put(side.peer, {&block, 1}, options), "captured put");
      });
      const Status held = side.context->unregister(side.region, std::chrono::milliseconds(50));
      EXPECT_EQ(held.code(), Code::kTimeout) << held.toString();
      graph.launch();
      mustSync(side.stream);
    }
    must(side.context->unregister(side.region, kPatience), "unregister");
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Ready side(1, line);
    line.meet();
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// No host thread of the producer looks at a replay, so nobody rings: the consumer's progress thread
// looks by itself while a descriptor waits, and tells it.
TEST(Graphs, ASignalOfReplaysMakesItsDescriptorReadable) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr uint64_t kRounds = 20;
  const auto withoutHeartbeats = [] {  // they wake everybody
    setenv("PEERLANE_PEER_TIMEOUT", "60m", 1);
    setenv("PEERLANE_HEARTBEAT", "10m", 1);
  };
  const auto active = [&](const Line& line) {
    withoutHeartbeats();
    const Ready side(0, line);
    const Signal signal = must(Signal::create(side.peer, 2), "signal");
    line.meet();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    uint64_t late = 0;
    for (uint64_t i = 1; i <= kRounds; ++i) {
      pollfd wanted{must(signal.fd(i), "fd"), POLLIN, 0};
      EXPECT_EQ(::poll(&wanted, 1, 0), 0);
      // The progress thread polls for a moment after the call above, and would see the store even
      // if it did not look for itself. No test fails where this pause is too short.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      line.send("replay");
      const auto begin = std::chrono::steady_clock::now();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - begin);
      ASSERT_EQ(::poll(&wanted, 1, std::max(0, static_cast<int>(left.count()))), 1)
          << "round " << i;
      if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(250)) ++late;
      EXPECT_EQ(signal.value(), i);
    }
    // Something else may wake the progress thread: the looks at memory that was freed, twice a
    // second.
    EXPECT_LT(late, kRounds / 2) << "rounds that nobody looked for";
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    withoutHeartbeats();
    const Ready side(1, line);
    {
      const Graph graph(side.stream, [&] {
        Notify add;
        add.signal = 2;
        (void)must(notify(side.peer, add, side.deviceStream()), "captured notify");
      });
      line.meet();
      while (line.receive() == "replay") graph.launch();
      mustSync(side.stream);
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// A peer that dies while a replay waits for it: the graph ends, later replays end at once.
TEST(Graphs, APeerLostInTheMiddle) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWithVictims(
      [](const Victims& victims) {
        const Victim victim = victims.next();
        const Ready side(0, victim.line());
        const Signal never = must(Signal::create(side.peer, 4), "signal");
        Transfer waiting, sent;
        const Graph graph(side.stream, [&] {
          waiting = must(never.waitOn(side.deviceStream(), 1), "captured wait");
          const Block block = side.block(0, kBytes);
          PostOptions options;
          options.deviceStream = side.deviceStream();
          options.notify.signal = 0;
          sent = must(put(side.peer, {&block, 1}, options), "captured put");
        });
        graph.launch();
        victim.kill();
        mustSync(side.stream);
        EXPECT_EQ(waiting.status().code(), Code::kPeerLost) << waiting.status().toString();
        EXPECT_EQ(sent.status().code(), Code::kPeerLost) << sent.status().toString();
        EXPECT_EQ(poisonings(*side.context), 2u) << "the words of both captured posts";
        for (int i = 0; i < 10; ++i) graph.launch();
        mustSync(side.stream);
        clear(side.region.data(), kBytes, 1);  // the device works
      },
      [](const Line& line) {
        const Ready side(1, line);
        for (;;) pause();
      }));
}

}  // namespace
}  // namespace peerlane::gputest
