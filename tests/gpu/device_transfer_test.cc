// SPDX-License-Identifier: Apache-2.0
//
// put, get, plans and signals between GPUs of two processes: every kind of memory, every engine,
// on streams of the caller's and of the library's own.
#include <cuda_runtime_api.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

#include "tests/gpu/both_ways.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{24} << 20;

class EveryMemory : public ::testing::TestWithParam<Memory> {};

// Contiguous, with every engine, put and get, without a stream and on one.
TEST_P(EveryMemory, PutAndGetArrive) {
  PEERLANE_NEEDS_GPUS(1);
  const size_t bytes = GetParam() == Memory::kSmall ? 40000 : kBytes;
  const auto active = [&](const Line& line) {
    const Side side(0, line, bytes, GetParam());
    ASSERT_EQ(side.peer.route().deviceEngine, "cuda");
    uint32_t round = 0;
    for (const Engine engine : {Engine::kAuto, Engine::kCe, Engine::kSm, Engine::kInline})
      for (const bool onStream : {false, true})
        if (engine != Engine::kInline || bytes <= 1 << 20)
          putAndGet(side, line, {.onStream = onStream, .engine = engine}, ++round);
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    lookAndAnswer(Side(1, line, bytes, GetParam()), line);
  };
  EXPECT_TRUE(runTwo(active, passive));
}

INSTANTIATE_TEST_SUITE_P(DeviceTransfer, EveryMemory,
                         ::testing::Values(Memory::kMalloc, Memory::kVmm, Memory::kOddOffset,
                                           Memory::kSmall),
                         [](const auto& tested) { return nameOf(tested.param); });

// Lists: few and many, sizes of all kinds, permuted, with every engine; plans posted many times
// without waiting in between, each with its own contents.
TEST(DeviceTransfer, ScatteredListsArrive) {
  PEERLANE_NEEDS_GPUS(1);
  struct Case {
    size_t count;
    size_t bytes;
  };
  static constexpr Case kCases[] = {{3, 5}, {31, 7300}, {128, 4096}, {300, 1234}, {1500, 4096}};
  const auto placesOf = [](const Case& tried) {
    std::vector<size_t> places(tried.count);
    std::iota(places.begin(), places.end(), size_t{0});
    std::mt19937 random(static_cast<uint32_t>(tried.count));
    std::shuffle(places.begin(), places.end(), random);
    return places;
  };
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    uint32_t seed = 0;
    for (const Case& tried : kCases)
      for (const Engine engine : {Engine::kAuto, Engine::kCe, Engine::kSm}) {
        const auto places = placesOf(tried);
        std::vector<Block> blocks;
        for (size_t i = 0; i < tried.count; ++i)
          blocks.push_back(
              {&side.region, i * tried.bytes, &side.remote, places[i] * tried.bytes, tried.bytes});
        Plan plan =
            must(Plan::create(side.peer, Direction::kPut, blocks, {.signal = 1, .engine = engine}),
                 "plan");
        for (int round = 0; round < 3; ++round) {
          fill(side.region.data(), tried.count * tried.bytes, ++seed);
          if (round == 2) {
            auto once = must(put(side.peer, blocks,
                                 {.notify = {.signal = 1},
                                  .deviceStream = side.deviceStream(),
                                  .engine = engine}),
                             "put");
            must(once.wait(kPatience), "wait");
          } else {
            auto posted = must(plan.post(side.deviceStream()), "post");
            must(posted.wait(kPatience), "wait");
          }
          line.send("look");
          ASSERT_EQ(line.receive(), "good")
              << tried.count << " x " << tried.bytes << " " << engineName(engine) << " " << round;
        }
      }
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    const Signal signal = must(Signal::create(side.peer, 1), "signal");
    uint32_t seed = 0;
    for (const Case& tried : kCases)
      for (int engine = 0; engine < 3; ++engine)
        for (int round = 0; round < 3; ++round) {
          if (line.receive() != "look") return;
          must(signal.wait(++seed, kPatience), "signal wait");
          const size_t bytes = tried.count * tried.bytes;
          std::vector<std::byte> here(bytes), sorted(bytes);
          mustCuda(cudaMemcpy(here.data(), side.region.data(), bytes, cudaMemcpyDefault), "copy");
          const auto places = placesOf(tried);
          for (size_t i = 0; i < tried.count; ++i)
            std::copy_n(here.begin() + static_cast<ptrdiff_t>(places[i] * tried.bytes), tried.bytes,
                        sorted.begin() + static_cast<ptrdiff_t>(i * tried.bytes));
          const uint64_t wrong = wrongWords(sorted.data(), bytes, seed);
          clear(side.region.data(), bytes, 0xee);
          line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong");
        }
    line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Block numbers fresh with every post, from host memory and from the GPU's; and what is refused.
TEST(DeviceTransfer, IndexedBlocksArrive) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr uint64_t kBlock = 8192, kCount = 1000;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes, Memory::kMalloc);
    IndexedBlocks layout;
    layout.local = &side.region;
    layout.remote = &side.remote;
    layout.localCount = layout.remoteCount = kCount;
    layout.blockBytes = kBlock;
    layout.maxBlocksPerPost = kCount;
    Plan plan = must(Plan::create(side.peer, Direction::kPut, layout, {.signal = 9}), "plan");
    uint32_t* deviceNumbers = nullptr;
    mustCuda(cudaMalloc(reinterpret_cast<void**>(&deviceNumbers), 2 * kCount * 4), "cudaMalloc");
    fill(side.region.data(), kCount * kBlock, 77);
    std::mt19937 random(5);
    for (int round = 0; round < 12; ++round) {
      std::vector<uint32_t> local(kCount), remote(kCount);
      std::iota(local.begin(), local.end(), 0u);
      std::iota(remote.begin(), remote.end(), 0u);
      std::shuffle(local.begin(), local.end(), random);
      if (round % 3 != 2) std::shuffle(remote.begin(), remote.end(), random);
      const size_t count = 1 + random() % kCount;
      local.resize(count);
      remote.resize(count);
      Transfer posted;
      if (round % 2 == 0) {
        posted = must(plan.post(local, remote, side.deviceStream()), "post");
        // The caller's arrays are free at once.
        std::fill(local.begin(), local.end(), 0xffffffffu);
      } else {
        mustCuda(cudaMemcpy(deviceNumbers, local.data(), count * 4, cudaMemcpyDefault), "copy");
        mustCuda(cudaMemcpy(deviceNumbers + kCount, remote.data(), count * 4, cudaMemcpyDefault),
                 "copy");
        // From pageable memory they may still be on their way.
        mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        posted = must(plan.post(DeviceIndexList{deviceNumbers, deviceNumbers + kCount, count},
                                side.deviceStream()),
                      "post");
        std::fill(local.begin(), local.end(), 0xffffffffu);
      }
      must(posted.wait(kPatience), "wait");
    }
    // The last post: every block to its own place, so that the peer can look at all.
    std::vector<uint32_t> all(kCount);
    std::iota(all.begin(), all.end(), 0u);
    must(must(plan.post(all, all, side.deviceStream()), "post").wait(kPatience), "wait");
    line.send("look");
    EXPECT_EQ(line.receive(), "good");
    // Refused before anything moves.
    all[3] = kCount;
    EXPECT_EQ(plan.post(all, all, side.deviceStream()).status().code(), Code::kInvalidArgument);
    all[3] = 4;
    EXPECT_EQ(plan.post(all, all, side.deviceStream()).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(plan.post(side.deviceStream()).status().code(), Code::kInvalidArgument);
    // In device memory: left out, and told.
    const std::vector<uint32_t> bad{1, 5000, 2};
    mustCuda(cudaMemcpy(deviceNumbers, bad.data(), 12, cudaMemcpyDefault), "copy");
    mustCuda(cudaMemcpy(deviceNumbers + kCount, bad.data(), 12, cudaMemcpyDefault), "copy");
    mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    auto faulty = must(
        plan.post(DeviceIndexList{deviceNumbers, deviceNumbers + kCount, 3}, side.deviceStream()),
        "post");
    const Status fault = faulty.wait(kPatience);
    EXPECT_EQ(fault.code(), Code::kInvalidArgument) << fault.toString();
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes, Memory::kMalloc);
    const Signal signal = must(Signal::create(side.peer, 9), "signal");
    line.receive();
    must(signal.wait(13, kPatience), "signal");
    line.send(wrongWords(side.region.data(), kCount * kBlock, 77) == 0 ? "good" : "wrong");
    line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Streams wait for signals of the peer, before and after these come; the stream behind sees the
// bytes. And a wait is let go by time, by cancel, and by the end of the peer.
TEST(DeviceTransfer, StreamsWaitForSignals) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kRounds = 200;
  constexpr size_t kMessage = 65536;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const Signal answer = must(Signal::create(side.peer, 1), "signal");
    std::vector<Transfer> waits;
    fill(side.region.data(), kMessage * 4, 3);
    for (int i = 0; i < kRounds; ++i) {
      const Block block = side.block((i % 4) * kMessage, kMessage);
      must(put(side.peer, {&block, 1},
               {.notify = {.signal = 0}, .deviceStream = side.deviceStream()}),
           "put");
      waits.push_back(
          must(answer.waitOn(side.deviceStream(), static_cast<uint64_t>(i) + 1), "waitOn"));
    }
    for (const Transfer& wait : waits) must(wait.wait(kPatience), "wait");
    EXPECT_EQ(poisonings(*side.context), 0u) << "all of them were satisfied";
    line.meet();
    // Let go by time and by cancel: the stream goes on.
    auto late =
        must(answer.waitOn(side.deviceStream(), 1 << 20, std::chrono::milliseconds(50)), "waitOn");
    EXPECT_EQ(late.wait(kPatience).code(), Code::kTimeout);
    auto cancelled = must(answer.waitOn(side.deviceStream(), 1 << 20), "waitOn");
    cancelled.cancel();
    EXPECT_EQ(cancelled.wait(kPatience).code(), Code::kCancelled);
    auto orphaned = must(answer.waitOn(side.deviceStream(), 1 << 20), "waitOn");
    line.meet();
    EXPECT_EQ(orphaned.wait(kPatience).code(), Code::kPeerLost);
    mustSync(side.stream);
    EXPECT_EQ(poisonings(*side.context), 3u);
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    const Signal arrived = must(Signal::create(side.peer, 0), "signal");
    clear(side.region.data(), kMessage * 4, 0);
    for (int i = 0; i < kRounds; ++i) {
      must(arrived.waitOn(side.deviceStream(), static_cast<uint64_t>(i) + 1), "waitOn");
      Notify back;
      back.signal = 1;
      must(notify(side.peer, back, side.deviceStream()), "notify");
    }
    mustSync(side.stream);
    EXPECT_EQ(wrongWords(side.region.data(), kMessage * 4, 3), 0u);
    line.meet();
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Posts of one plan, all of them behind a wait: each has its own end, descriptor and callbacks.
TEST(DeviceTransfer, PostsOfAPlanAreToldEachOfItsOwnEnd) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kPosts = 300;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const Signal never = must(Signal::create(side.peer, 1), "signal");
    IndexedBlocks blocks;
    blocks.local = &side.region;
    blocks.remote = &side.remote;
    blocks.blockBytes = 4096;
    blocks.localCount = blocks.remoteCount = 16;
    blocks.maxBlocksPerPost = 1;
    Plan plan = must(Plan::create(side.peer, Direction::kPut, blocks), "plan");
    const std::array<uint32_t, 2> numbers{5000, 3};  // one that is not there
    uint32_t* onDevice = nullptr;
    mustCuda(cudaMalloc(reinterpret_cast<void**>(&onDevice), sizeof numbers), "cudaMalloc");
    mustCuda(cudaMemcpy(onDevice, numbers.data(), sizeof numbers, cudaMemcpyDefault), "cudaMemcpy");
    mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const Transfer gate = must(never.waitOn(side.deviceStream(), 1), "waitOn");
    struct Post {
      Transfer transfer;
      std::array<std::atomic<int>, 2> called{};
      std::atomic<bool> asItShould{true};
    };
    std::vector<Post> posts(kPosts);
    const auto codeOf = [](size_t i) { return i % 3 == 0 ? Code::kInvalidArgument : Code::kOk; };
    const auto isReadable = [](const Transfer& transfer) {
      pollfd wanted{must(transfer.fd(), "fd"), POLLIN, 0};
      return ::poll(&wanted, 1, 0) == 1;
    };
    for (size_t i = 0; i < kPosts; ++i) {
      Post& post = posts[i];
      const uint32_t* const number = onDevice + (codeOf(i) == Code::kOk ? 1 : 0);
      post.transfer =
          must(plan.post(DeviceIndexList{number, number, 1}, side.deviceStream()), "post");
      for (auto& called : post.called)
        post.transfer.onEnd([&, expected = codeOf(i)](const Status& status) {
          if (status.code() != expected) post.asItShould = false;
          called.fetch_add(1);
        });
    }
    for (const Post& post : posts) {
      EXPECT_FALSE(post.transfer.done());
      EXPECT_FALSE(isReadable(post.transfer));
    }
    gate.cancel();
    for (const Post& post : posts) {
      pollfd wanted{must(post.transfer.fd(), "fd"), POLLIN, 0};
      ASSERT_EQ(::poll(&wanted, 1, 20'000), 1);
      EXPECT_TRUE(post.transfer.done());
    }
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (size_t i = 0; i < kPosts; ++i) {
      EXPECT_EQ(posts[i].transfer.wait(kPatience).code(), codeOf(i)) << "post " << i;
      for (auto& called : posts[i].called) {
        while (called.load() == 0 && std::chrono::steady_clock::now() < end)
          std::this_thread::yield();
        ASSERT_EQ(called.load(), 1) << "a callback of post " << i;
      }
      EXPECT_TRUE(posts[i].asItShould) << "post " << i;
    }
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// What is on a stream stays there: the peer hears of it, and so does the caller.
TEST(DeviceTransfer, ACancelComesTooLateForWhatTheStreamDoesInWhole) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const Signal never = must(Signal::create(side.peer, 1), "signal");
    const Block block = side.block(0, 4096);
    Plan plan =
        must(Plan::create(side.peer, Direction::kPut, std::span(&block, 1), {.signal = 9}), "plan");
    const Transfer gate = must(never.waitOn(side.deviceStream(), 1), "waitOn");
    const std::array<Transfer, 3> posts{
        must(plan.post(side.deviceStream()), "post"),
        must(put(side.peer, {&block, 1},
                 {.notify = {.signal = 9}, .deviceStream = side.deviceStream()}),
             "put"),
        must(get(side.peer, {&block, 1}, {.deviceStream = side.deviceStream()}), "get")};
    for (const Transfer& post : posts) post.cancel();
    gate.cancel();
    for (const Transfer& post : posts) must(post.wait(kPatience), "what the stream has done");
    line.send("end");
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    const Signal arrived = must(Signal::create(side.peer, 9), "signal");
    must(arrived.wait(2, kPatience), "signal");
    line.receive();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// What the peer added before it left counts, though the stream comes to look only afterwards.
TEST(DeviceTransfer, ASignalFromBeforeTheEndIsWaitedFor) {
  PEERLANE_NEEDS_GPUS(1);
  const auto waiting = [&](const Line& line) {
    const Side side(0, line, kBytes);
    const Signal arrived = must(Signal::create(side.peer, 0), "signal");
    std::atomic<bool> open{false};
    mustCuda(cudaLaunchHostFunc(
                 side.stream,
                 [](void* flag) {
                   while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
                 },
                 &open),
             "host function");
    const Transfer wait = must(arrived.waitOn(side.deviceStream(), 1), "waitOn");
    line.meet();
    EXPECT_EQ(waitNotification(side.peer, kPatience).status().code(), Code::kPeerLost);
    EXPECT_EQ(wait.wait(std::chrono::milliseconds(50)).code(), Code::kTimeout);
    open.store(true);
    must(wait.wait(kPatience), "wait");
    mustSync(side.stream);
  };
  const auto leaving = [&](const Line& line) {
    const Side side(1, line, kBytes);
    line.meet();
    must(must(addSignal(side.peer, 0), "signal").wait(kPatience), "wait");
  };
  EXPECT_TRUE(runTwo(waiting, leaving));
}

// A message comes after the bytes of its put, though a stream moves these and the host the other.
TEST(DeviceTransfer, NotificationsFollowTheBytes) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kRounds = 30;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    for (int i = 0; i < kRounds; ++i) {
      fill(side.region.data(), 1 << 20, static_cast<uint32_t>(i));
      const Block block = side.block(0, 1 << 20);
      const std::string text = "round " + std::to_string(i);
      PostOptions options{.deviceStream = side.deviceStream()};
      options.notify.message = std::as_bytes(std::span(text));
      options.notify.tag = static_cast<uint32_t>(i);
      must(put(side.peer, {&block, 1}, options), "put");
      ASSERT_EQ(line.receive(), "good");
    }
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    for (int i = 0; i < kRounds; ++i) {
      const auto notification = must(waitNotification(side.peer, kPatience), "notification");
      const bool good = notification.tag == static_cast<uint32_t>(i) &&
                        wrongWords(side.region.data(), 1 << 20, static_cast<uint32_t>(i)) == 0;
      line.send(good ? "good" : "wrong");
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// A region that is not imported when a put is posted on a stream: the post does not wait, the
// stream does, and everything keeps its order.
TEST(DeviceTransfer, AMissHoldsTheStream) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes, Memory::kMalloc);
    fill(side.region.data(), kBytes, 8);
    // Behind the put the source is overwritten: the put must have read it before.
    const Block block = side.block(0, kBytes);
    auto transfer = must(
        put(side.peer, {&block, 1}, {.notify = {.signal = 2}, .deviceStream = side.deviceStream()}),
        "put");
    mustCuda(cudaMemsetAsync(side.region.data(), 0, kBytes, side.stream), "cudaMemsetAsync");
    must(transfer.wait(kPatience), "wait");
    mustSync(side.stream);
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes, Memory::kMalloc);
    const Signal signal = must(Signal::create(side.peer, 2), "signal");
    must(signal.wait(1, kPatience), "signal");
    EXPECT_EQ(wrongWords(side.region.data(), kBytes, 8), 0u);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Many streams add to one signal at once: more than a counter has words for them. No addition is
// lost, and the value never runs ahead of the bytes.
TEST(DeviceTransfer, ManyStreamsShareASignal) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kStreams = 20, kPosts = 50;
  const auto active = [&](const Line& line) {
    const Side side(0, line, kBytes);
    std::vector<cudaStream_t> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(makeStream());
    const Block block = side.block(0, 4096);
    for (int post = 0; post < kPosts; ++post)
      for (cudaStream_t stream : streams)
        must(put(side.peer, {&block, 1},
                 {.notify = {.signal = 5, .signalAdd = 3},
                  .deviceStream = side.deviceStream(stream),
                  .engine = post % 2 == 0 ? Engine::kCe : Engine::kInline}),
             "put");
    must(addSignal(side.peer, 5, 1), "addSignal");
    if (const Status flushed = flush(side.peer, std::chrono::seconds(10)); !flushed.isOk()) {
      ADD_FAILURE() << flushed.toString() << "\n" << side.context->dump().substr(0, 3000);
      std::_Exit(1);
    }
    line.meet();
  };
  const auto passive = [&](const Line& line) {
    const Side side(1, line, kBytes);
    const Signal signal = must(Signal::create(side.peer, 5), "signal");
    if (const Status waited = signal.wait(3ull * kStreams * kPosts + 1, std::chrono::seconds(10));
        !waited.isOk()) {
      ADD_FAILURE() << waited.toString() << "; the signal is " << signal.value();
      std::_Exit(1);
    }
    EXPECT_EQ(signal.value(), 3ull * kStreams * kPosts + 1);
    line.meet();
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// Two GPUs of one context add to one signal; and once more over a new connection.
TEST(DeviceTransfer, TwoGpusOfAContextShareASignal) {
  PEERLANE_NEEDS_GPUS(2);
  constexpr int kPosts = 100;
  const auto active = [&](const Line& line) {
    const Device first = gpu(0), second{DeviceKind::kCuda, 1};
    auto context = makeContext({first, second});
    for (int round = 0; round < 2; ++round) {
      const Peer peer = meetPeer(*context, line, false);
      const Region one = must(context->allocate(1 << 20, {.device = first}), "allocate");
      const Region two = must(context->allocate(1 << 20, {.device = second}), "allocate");
      const RemoteRegion remote = exchange(peer, one, line);
      must(remote.prepare(), "prepare");
      for (int i = 0; i < kPosts; ++i)
        for (const Region* region : {&one, &two}) {
          const Block block{region, 0, &remote, 0, 65536};
          must(put(peer, {&block, 1},
                   {.notify = {.signal = 7}, .engine = i % 2 == 0 ? Engine::kCe : Engine::kSm}),
               "put");
        }
      must(flush(peer, kPatience), "flush");
      line.meet();
      peer.close();
    }
  };
  const auto passive = [&](const Line& line) {
    const Device device = gpu(1);
    auto context = makeContext({device});
    for (int round = 0; round < 2; ++round) {
      const Peer peer = meetPeer(*context, line, true);
      const Region region = must(context->allocate(1 << 20, {.device = device}), "allocate");
      const RemoteRegion remote = exchange(peer, region, line);
      const Signal signal = must(Signal::create(peer, 7), "signal");
      EXPECT_TRUE(signal.wait(2 * kPosts, kPatience).isOk()) << signal.value();
      EXPECT_EQ(signal.value(), 2u * kPosts);
      line.meet();
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
