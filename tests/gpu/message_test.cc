// SPDX-License-Identifier: Apache-2.0
//
// Send and receive on streams of GPUs: small and large, in groups, on many streams, in graphs, with
// lengths that differ, with nobody to meet, and with a peer that dies.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <random>

#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/talker.h"

namespace peerlane::gputest {
namespace {

// There and back, every size from nothing over the eager limit to several thread blocks' worth.
TEST(StreamMessages, SizesThereAndBack) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    uint32_t seed = 1;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{777}, size_t{2048},
                               size_t{2049}, size_t{65536}, size_t{1000001}, kBytes}) {
      ++seed;
      if (index == 0) {
        fill(side.out.data(), kBytes, seed);
        must(side.ranks->send(1, side.out, 0, bytes, side.on()), "send");
        auto back = must(side.ranks->recv(1, side.in, 0, bytes, side.on()), "recv");
        must(back.wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(side.in.data(), bytes / 4 * 4, seed), 0u) << bytes;
      } else {
        must(side.ranks->recv(0, side.in, 0, bytes, side.on()), "recv");
        must(must(side.ranks->send(0, side.in, 0, bytes, side.on()), "send").wait(kPatience),
             "wait");
      }
    }
    line.meet();
  }));
}

// More small messages than there are slots, many under way, on one stream.
TEST(StreamMessages, ManySmallOnes) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kCount = 500, kEach = 64;
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    if (index == 0) {
      fill(side.out.data(), kCount * kEach, 3);
      for (size_t i = 0; i < kCount; ++i)
        must(side.ranks->send(1, side.out, i * kEach, kEach, side.on()), "send");
      mustSync(side.stream);
    } else {
      for (size_t i = 0; i < kCount; ++i)
        must(side.ranks->recv(0, side.in, i * kEach, kEach, side.on()), "recv");
      mustSync(side.stream);
      EXPECT_EQ(wrongWords(side.in.data(), kCount * kEach, 3), 0u);
    }
    line.meet();
  }));
}

// Both ways at once in one group, whatever the order in which it is written down.
TEST(StreamMessages, GroupsExchange) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    for (uint32_t round = 0; round < 20; ++round)
      for (const size_t bytes : {size_t{512}, size_t{300000}}) {
        fill(side.out.data(), bytes, round + 100 * static_cast<uint32_t>(index));
        constexpr size_t kMessages = 40;  // more than slots
        exchangeInGroup(side, index, kMessages, bytes / kMessages / 4 * 4, round);
        line.meet();
      }
  }));
}

// Several streams on one communicator; messages meet in the order of posting.
TEST(StreamMessages, ManyStreams) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    // Sizes on both sides of the limit.
    sendOnManyStreams(side, index, line, 30, 40000, 1024);
  }));
}

// From and to memory of several chunks: small messages and long ones, in one chunk and over the
// border of two; the first ones while the receiver's region is still imported; in a group as well.
TEST(StreamMessages, MemoryOfSeveralChunks) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kChunk = size_t{2} << 20, kAll = 4 * kChunk;
  constexpr size_t kBorder = kChunk - 1000;  // the regions begin 1000 bytes behind the first one
  struct Part {
    size_t from, to, bytes;
  };
  static constexpr Part kParts[] = {{64, 128, 256},
                                    {4096, 8192, 100000},
                                    {kBorder + kChunk - 1000, kBorder - 1024, 2048},
                                    {kBorder - 5000, kBorder + kChunk - 60000, 200000},
                                    {300000, 2 * kChunk + 200000, kChunk + 500004}};
  const auto expectArrived = [](const Talker& side, uint32_t seed) {
    for (const Part& part : kParts)
      EXPECT_EQ(wrongWords(side.in.data() + part.to, part.bytes, seed, part.from), 0u)
          << part.bytes << " bytes, round " << seed;
  };
  EXPECT_TRUE(runBoth(
      [&](Talker& side, int index, const Line& line) {
        ASSERT_NE(side.in.description().find("chunks"), std::string::npos) << side.in.description();
        for (const int sender : {0, 1, 0}) {
          static uint32_t seed = 0;
          fill(side.out.data(), kAll, ++seed);
          clear(side.in.data(), kAll, 0);
          line.meet();
          std::vector<Transfer> posted;
          for (const Part& part : kParts)
            posted.push_back(
                index == sender
                    ? must(side.ranks->send(side.other, side.out, part.from, part.bytes, side.on()),
                           "send")
                    : must(side.ranks->recv(side.other, side.in, part.to, part.bytes, side.on()),
                           "recv"));
          for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
          if (index != sender) expectArrived(side, seed);
          line.meet();
        }
        constexpr uint32_t kGroups = 50;
        fill(side.out.data(), kAll, kGroups + static_cast<uint32_t>(index));
        clear(side.in.data(), kAll, 0);
        line.meet();
        auto group = side.ranks->group();
        for (const Part& part : kParts) {
          group.recv(side.other, side.in, part.to, part.bytes);
          group.send(side.other, side.out, part.from, part.bytes);
        }
        must(must(group.post(side.on()), "group").wait(kPatience), "wait");
        expectArrived(side, kGroups + side.other);
        line.meet();
      },
      60, Memory::kChunks, kAll));
}

// A large message to memory that the sender has never heard of: it is imported meanwhile.
TEST(StreamMessages, FreshRegionsAreFound) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    for (uint32_t i = 0; i < 12; ++i) {
      const Region fresh =
          must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
      if (index == 0) {
        fill(fresh.data(), kBytes, i);
        must(must(side.ranks->send(1, fresh, 4096, 100000, side.on()), "send").wait(kPatience),
             "wait");
      } else {
        must(must(side.ranks->recv(0, fresh, 8192, 100000, side.on()), "recv").wait(kPatience),
             "wait");
        EXPECT_EQ(wrongWords(fresh.data() + 8192, 100000, i, 4096), 0u);
      }
      line.meet();
      must(side.context->unregister(fresh, kPatience), "unregister");
    }
  }));
}

TEST(StreamMessages, LengthsThatDifferAreTold) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    // Eager: the receiver sees it.
    clear(side.in.data(), kBytes, 9);
    if (index == 0) {
      must(must(side.ranks->send(1, side.out, 0, 64, side.on()), "send").wait(kPatience), "wait");
    } else {
      const Status status =
          must(side.ranks->recv(0, side.in, 0, 65, side.on()), "recv").wait(kPatience);
      EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
    }
    // Direct: both do, and nothing is written.
    const size_t mine = index == 0 ? 100000 : 100004;
    const auto posted = index == 0 ? side.ranks->send(1, side.out, 0, mine, side.on())
                                   : side.ranks->recv(0, side.in, 0, mine, side.on());
    const Status status = must(posted, "post").wait(kPatience);
    EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
    std::vector<unsigned char> seen(kBytes);
    mustCuda(cudaMemcpy(seen.data(), side.in.data(), kBytes, cudaMemcpyDeviceToHost), "copy");
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int byte) { return byte == 9; }));
    // The next ones are not disturbed.
    if (index == 0) {
      fill(side.out.data(), 4096, 5);
      must(must(side.ranks->send(1, side.out, 0, 4096, side.on()), "send").wait(kPatience), "wait");
    } else {
      must(must(side.ranks->recv(0, side.in, 0, 4096, side.on()), "recv").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(side.in.data(), 4096, 5), 0u);
    }
    line.meet();
  }));
}

// Both sides receive before they send, on one stream each: told by name, and the streams go on.
TEST(StreamMessages, TwoReceivesThatWaitForEachOther) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int, const Line& line) {
    MessageOptions options = side.on();
    options.timeout = std::chrono::milliseconds(300);
    line.meet();
    // A side that a busy machine holds up between these posts is told of the end at the next one.
    const auto received = side.ranks->recv(side.other, side.in, 0, 100, options);
    const auto sent = side.ranks->send(side.other, side.out, 0, 100, options);
    EXPECT_TRUE(sent.isOk() || sent.status().code() == Code::kTimeout) << sent.status().toString();
    const Status status = endOf(received);
    // Whoever was first tells the other.
    EXPECT_EQ(status.code(), Code::kTimeout) << status.toString();
    mustSync(side.stream);
    if (received.isOk()) {
      EXPECT_EQ(poisonings(*side.context), 1u) << "the lane's word";
    }
    const Status later = side.ranks->send(side.other, side.out, 0, 8, options).status();
    EXPECT_EQ(later.code(), Code::kTimeout) << later.toString();
    line.send(std::string(status.message()));
    const std::string others = line.receive();
    EXPECT_TRUE(std::string(status.message()).find("group") != std::string::npos ||
                others.find("group") != std::string::npos)
        << status.toString() << " / " << others;
    clear(side.in.data(), kBytes, 1);  // the device works
    line.meet();
  }));
}

// A stream that was let go goes on; what it would have sent behind that is not sent, by any
// protocol, because it may have been made of what never came.
TEST(StreamMessages, NothingIsSentBehindAMessageThatWasLetGo) {
  PEERLANE_NEEDS_GPUS(1);
  for (const size_t bytes : {size_t{100}, size_t{100000}})
    for (const bool byGet : {false, true})
      EXPECT_TRUE(runBoth([&](Talker& side, int index, const Line& line) {
        MessageOptions options = side.on();
        if (byGet) options.protocol = Protocol::kGet;
        clear(side.in.data(), kBytes, 9);
        fill(side.out.data(), kBytes, 5);
        mustSync(nullptr);
        line.meet();
        if (index == 1) {
          const Transfer waiting = must(side.ranks->recv(0, side.in, 0, bytes, options), "recv");
          line.send("waiting");
          EXPECT_EQ(waiting.wait(kPatience).code(), Code::kTimeout);
          mustSync(side.stream);
          std::vector<unsigned char> seen(kBytes);
          mustCuda(cudaMemcpy(seen.data(), side.in.data(), kBytes, cudaMemcpyDeviceToHost), "copy");
          EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int byte) { return byte == 9; }));
        } else {
          line.receive();
          options.timeout = std::chrono::milliseconds(500);
          const auto never = side.ranks->recv(1, side.in, 0, 8, options);
          options.timeout = kPatience;
          const auto behind = side.ranks->send(1, side.out, 0, bytes, options);
          EXPECT_EQ(endOf(never).code(), Code::kTimeout);
          // It is refused if a busy machine held up this side between the posts.
          EXPECT_EQ(endOf(behind).code(), Code::kTimeout);
        }
        line.meet();
      }));
}

// A message lies in the receiver's inbox, and the sender has gone, before the receiver's stream
// comes to it.
TEST(StreamMessages, WhatWasSentBeforeTheEndIsReceived) {
  PEERLANE_NEEDS_GPUS(1);
  for (const size_t bytes : {size_t{8}, size_t{1000}})
    EXPECT_TRUE(runBoth([bytes](Talker& side, int index, const Line& line) {
      if (index == 1) {
        fill(side.out.data(), kBytes, 5);
        (void)line.receive();
        must(must(side.ranks->send(0, side.out, 0, bytes, side.on()), "send").wait(kPatience),
             "wait");
        side.ranks.reset();
        line.send("gone");
        (void)line.receive();
        return;
      }
      uint64_t* word = nullptr;
      mustCuda(cudaMallocHost(reinterpret_cast<void**>(&word), 64), "cudaMallocHost");
      std::atomic_ref<uint64_t> gate(*word);
      gate = 0;
      ASSERT_EQ(cuda::api().cuStreamWaitValue64(side.stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                                CU_STREAM_WAIT_VALUE_GEQ),
                CUDA_SUCCESS);
      const Transfer received = must(side.ranks->recv(1, side.in, 0, bytes, side.on()), "recv");
      line.send("posted");
      (void)line.receive();
      // Until the end is known here as well.
      const cudaStream_t other = makeStream();
      const auto giveUp = std::chrono::steady_clock::now() + kPatience;
      while (side.ranks->send(1, side.out, 0, 0, side.on(other)).isOk())
        ASSERT_LT(std::chrono::steady_clock::now(), giveUp);
      gate = 1;
      const Status ended = received.wait(kPatience);
      EXPECT_TRUE(ended.isOk()) << ended.toString();
      EXPECT_EQ(wrongWords(side.in.data(), bytes / 4 * 4, 5), 0u);
      mustSync(other);
      line.send("end");
    }));
}

TEST(StreamMessages, BadInputIsRefused) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int, const Line& line) {
    std::byte loose[64];
    const auto unregistered =
        side.ranks->send(side.other, std::span<const std::byte>(loose), side.on());
    EXPECT_EQ(unregistered.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(side.ranks->send(side.other, side.out, kBytes, 1, side.on()).status().code(),
              Code::kInvalidArgument);
    EXPECT_EQ(side.ranks->send(7, side.out, 0, 1, side.on()).status().code(),
              Code::kInvalidArgument);
    const Region readable =
        must(side.context->allocate(kBytes, {.device = side.device, .access = Access::kRemoteRead}),
             "allocate");
    EXPECT_EQ(side.ranks->recv(side.other, readable, 0, kBytes, side.on()).status().code(),
              Code::kPermissionDenied);
    // And none of that has cost a number.
    if (side.other == 1)
      must(must(side.ranks->send(1, side.out, 0, 16, side.on()), "send").wait(kPatience), "wait");
    else
      must(must(side.ranks->recv(0, readable, 0, 16, side.on()), "recv").wait(kPatience), "wait");
    line.meet();
  }));
}

// Captured on both sides, small and large in one group, replayed with changing data.
TEST(StreamMessages, InGraphs) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr int kReplays = 300;
  EXPECT_TRUE(runBoth(
      [](Talker& side, int index, const Line& line) {
        constexpr size_t kSmall = 256, kLarge = 50000;
        Transfer captured;
        must(side.ranks->prepare(side.other, {&side.in, 1}), "prepare");
        mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal), "begin");
        for (int message = 0; message < 3; ++message) {
          auto group = side.ranks->group();
          const size_t at = static_cast<size_t>(message) * 100000;
          group.send(side.other, side.out, at, kSmall);
          group.send(side.other, side.out, at + kSmall, kLarge);
          group.recv(side.other, side.in, at, kSmall);
          group.recv(side.other, side.in, at + kSmall, kLarge);
          captured = must(group.post(side.on()), "captured group");
        }
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
        mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        mustCuda(cudaGraphDestroy(graph), "destroy");
        EXPECT_EQ(captured.wait(kPatience).code(), Code::kNotSupported);
        std::vector<unsigned char> seen(300000);
        for (int i = 0; i < kReplays; ++i) {
          const int mine = (i * 2 + index) % 251, theirs = (i * 2 + 1 - index) % 251;
          mustCuda(cudaMemsetAsync(side.out.data(), mine, 300000, side.stream), "memset");
          mustCuda(cudaGraphLaunch(executable, side.stream), "launch");
          if (i % 50 != 49) continue;
          mustCuda(cudaMemcpyAsync(seen.data(), side.in.data(), seen.size(), cudaMemcpyDeviceToHost,
                                   side.stream),
                   "copy");
          mustSync(side.stream);
          for (size_t message = 0; message < 3; ++message) {
            const auto begin = seen.begin() + static_cast<ptrdiff_t>(message * 100000);
            EXPECT_TRUE(std::all_of(begin, begin + kSmall + kLarge,
                                    [&](int byte) { return byte == theirs; }))
                << "replay " << i << ", group " << message;
          }
        }
        mustSync(side.stream);
        // A direction that graphs use is for graphs alone.
        EXPECT_EQ(side.ranks->send(side.other, side.out, 0, 8, side.on()).status().code(),
                  Code::kInvalidArgument);
        EXPECT_EQ(captured.status().code(), Code::kTryAgain);
        line.meet();
        mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (captured.status().code() == Code::kTryAgain &&
               std::chrono::steady_clock::now() < deadline)
          std::this_thread::yield();
        EXPECT_TRUE(captured.status().isOk()) << captured.status().toString();
        line.meet();  // or the other side's goodbye might be the answer
      },
      120));
}

// A peer that dies while a stream waits for its message.
TEST(StreamMessages, APeerThatDies) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWithVictims(
      [](const Victims& victims) {
        const Victim victim = victims.next();
        const Talker side(0, victim.line());
        auto small = must(side.ranks->recv(1, side.in, 0, 64, side.on()), "recv");
        auto large = must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
        victim.kill();
        const Status status = small.wait(kPatience);
        EXPECT_EQ(status.code(), Code::kPeerLost) << status.toString();
        EXPECT_EQ(large.wait(kPatience).code(), Code::kPeerLost);
        mustSync(side.stream);
        clear(side.in.data(), kBytes, 1);  // the device works
      },
      [](const Line& line) {
        const Talker side(1, line);
        for (;;) pause();
      }));
}

}  // namespace
}  // namespace peerlane::gputest
