// SPDX-License-Identifier: Apache-2.0
//
// Long messages on streams by put and by get: sizes, groups in any order on one hardware queue,
// sides that do not agree, rights, regions that are new or prepared, graphs, lost peers.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/gpu/talker.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

MessageOptions by(const Talker& side, Protocol protocol, cudaStream_t stream = nullptr) {
  MessageOptions options = side.on(stream);
  options.protocol = protocol;
  return options;
}

bool isFilledWith(const std::byte* device, size_t bytes, int value) {
  std::vector<unsigned char> seen(bytes);
  mustCuda(cudaMemcpy(seen.data(), device, bytes, cudaMemcpyDefault), "copy");
  return std::all_of(seen.begin(), seen.end(), [&](int byte) { return byte == value; });
}

class StreamProtocols : public testing::TestWithParam<Protocol> {
 protected:
  static bool run(const Both& both, int seconds = 60) {
    return runBoth(both, seconds, Memory::kVmm, kBytes, {.protocol = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(Protocols, StreamProtocols,
                         testing::Values(Protocol::kPut, Protocol::kGet), [](const auto& tested) {
                           return tested.param == Protocol::kGet ? "Get" : "Put";
                         });

// Around the eager limit, around the size from which a copy has launches of its own, odd places.
TEST_P(StreamProtocols, SizesThereAndBack) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    uint32_t seed = 1;
    for (const size_t bytes :
         {size_t{0}, size_t{8}, size_t{1024}, size_t{1025}, size_t{65537}, size_t{128} << 10,
          (size_t{128} << 10) + 1, size_t{1000001}, kBytes - 12}) {
      ++seed;
      if (index == 0) {
        fill(side.out.data(), kBytes, seed);
        must(side.ranks->send(1, side.out, 4, bytes, side.on()), "send");
        auto back = must(side.ranks->recv(1, side.in, 8, bytes, side.on()), "recv");
        must(back.wait(kPatience), "wait");
        EXPECT_EQ(wrongWords(side.in.data() + 8, bytes / 4 * 4, seed, 4), 0u) << bytes;
      } else {
        must(side.ranks->recv(0, side.in, 12, bytes, side.on()), "recv");
        must(must(side.ranks->send(0, side.in, 12, bytes, side.on()), "send").wait(kPatience),
             "wait");
      }
    }
    const std::string how = side.ranks->explain(side.other);
    EXPECT_NE(how.find(GetParam() == Protocol::kGet ? "longer: get" : "longer: put"),
              std::string::npos)
        << how;
    line.meet();
  }));
}

// What was sent may be overwritten as soon as the stream has passed the send, also when many are
// under way on several streams and the slots come round.
TEST_P(StreamProtocols, BuffersAreFreeBehindTheirMessage) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kEach = 20000, kRounds = 60, kStreams = 3;
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    std::vector<cudaStream_t> streams;
    for (size_t i = 0; i < kStreams; ++i) streams.push_back(makeStream());
    for (size_t round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < kStreams; ++i) {
        const size_t at = i * kEach;
        if (index == 0) {
          mustCuda(
              cudaMemsetAsync(side.out.data() + at, static_cast<int>(round + i), kEach, streams[i]),
              "memset");
          must(side.ranks->send(1, side.out, at, kEach, side.on(streams[i])), "send");
        } else {
          must(side.ranks->recv(0, side.in, at, kEach, side.on(streams[i])), "recv");
          mustCuda(
              cudaMemcpyAsync(side.out.data() + (round * kStreams + i) * kEach, side.in.data() + at,
                              kEach, cudaMemcpyDeviceToDevice, streams[i]),
              "copy");
        }
      }
    for (cudaStream_t stream : streams) mustSync(stream);
    for (size_t i = 0; index == 1 && i < kRounds * kStreams; ++i) {
      EXPECT_TRUE(isFilledWith(side.out.data() + i * kEach, kEach,
                               static_cast<int>(i / kStreams + i % kStreams)))
          << "round " << i / kStreams << ", stream " << i % kStreams;
    }
    line.meet();
  }));
}

// Both ways at once, more messages than slots, receives first at one side and sends first at the
// other, small ones between.
void exchangeGroups(Talker& side, int index, const Line& line, int rounds,
                    const std::function<MessageOptions(int round)>& options) {
  constexpr size_t kMessages = 20, kSmall = 512, kLarge = 60000;
  constexpr size_t kEach = kSmall + kLarge;
  for (int round = 0; round < rounds; ++round) {
    const auto seed = static_cast<uint32_t>(100 * round);
    fill(side.out.data(), kMessages * kEach, seed + static_cast<uint32_t>(index));
    clear(side.in.data(), kMessages * kEach, 0);
    line.meet();
    auto group = side.ranks->group();
    const auto add = [&](bool sends) {
      for (size_t i = 0; i < kMessages; ++i)
        for (const auto& [at, bytes] : {std::pair{i * kEach, kSmall}, {i * kEach + kSmall, kLarge}})
          sends ? group.send(side.other, side.out, at, bytes)
                : group.recv(side.other, side.in, at, bytes);
    };
    add(index == 0);
    add(index != 0);
    must(must(group.post(options(round)), "group").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(side.in.data(), kMessages * kEach, seed + side.other), 0u)
        << "round " << round;
    line.meet();
  }
}

TEST_P(StreamProtocols, GroupsExchange) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    exchangeGroups(side, index, line, 6, [&](int) { return side.on(); });
  }));
}

// One hardware queue for all streams, kernels loaded when they are first launched. What is posted
// first is what stands in front.
TEST_P(StreamProtocols, GroupsExchangeOnOneHardwareQueue) {
  PEERLANE_NEEDS_GPUS(1);
  const Protocol protocol = GetParam();
  const auto sideOf = [protocol](int index) {
    return [protocol, index](const Line& line) {
      setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
      setenv("CUDA_MODULE_LOADING", "LAZY", 1);
      Talker side(index, line, Memory::kVmm, kBytes, {.protocol = protocol});
      const cudaStream_t second = makeStream();
      exchangeGroups(side, index, line, 4,
                     [&](int round) { return side.on(round % 2 == 0 ? nullptr : second); });
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1), 60));
}

// Protocols change from group to group on one communicator.
TEST(StreamMessageProtocols, TakeTurns) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    exchangeGroups(side, index, line, 8, [&](int round) {
      constexpr Protocol kTurns[] = {Protocol::kGet, Protocol::kAuto, Protocol::kPut};
      return by(side, kTurns[round % 3]);
    });
  }));
}

// --- Sides that differ ---

class StreamDisagreements : public testing::TestWithParam<std::pair<size_t, size_t>> {};

INSTANTIATE_TEST_SUITE_P(Lengths, StreamDisagreements,
                         testing::Values(std::pair{size_t{50004}, size_t{50000}},
                                         std::pair{size_t{200000}, size_t{200004}}));

// Both are told, nothing is written, and the next messages are not disturbed.
TEST_P(StreamDisagreements, AreToldToBoth) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    const auto [sent, received] = GetParam();
    clear(side.in.data(), kBytes, 9);
    for (int round = 0; round < 20; ++round) {  // the slots come round
      const auto posted = index == 0
                              ? side.ranks->send(1, side.out, 0, sent, by(side, Protocol::kGet))
                              : side.ranks->recv(0, side.in, 0, received, by(side, Protocol::kGet));
      const Status status = must(posted, "post").wait(kPatience);
      EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
    }
    EXPECT_TRUE(isFilledWith(side.in.data(), kBytes, 9));
    for (const Protocol protocol : {Protocol::kGet, Protocol::kPut})
      for (uint32_t i = 0; i < 20; ++i) {
        if (index == 0) {
          fill(side.out.data(), 4096, i);
          must(must(side.ranks->send(1, side.out, 0, 4096, by(side, protocol)), "send")
                   .wait(kPatience),
               "wait");
        } else {
          must(must(side.ranks->recv(0, side.in, 0, 4096, by(side, protocol)), "recv")
                   .wait(kPatience),
               "wait");
          EXPECT_EQ(wrongWords(side.in.data(), 4096, i), 0u);
        }
      }
    line.meet();
  }));
}

// Short messages, puts and gets go different ways: no GPU sees the other's. Both sides are told
// soon, whoever waits, and also where the one is posted long after the other.
struct Crossing {
  const char* name;
  size_t sent, received;
  Protocol sender, receiver;
  bool receivesFirst;
  Code code = Code::kSizeMismatch;
};

class StreamCrossings : public testing::TestWithParam<Crossing> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, StreamCrossings,
    testing::Values(Crossing{"LongSend", 1025, 1024, Protocol::kPut, Protocol::kPut, true},
                    Crossing{"LongReceive", 1024, 1025, Protocol::kPut, Protocol::kPut, true},
                    Crossing{"LongReceiveLater", 8, 1 << 20, Protocol::kPut, Protocol::kPut, false},
                    Crossing{"LongSendByGet", 100000, 8, Protocol::kGet, Protocol::kGet, false},
                    Crossing{"LongReceiveByGet", 0, 5000, Protocol::kGet, Protocol::kGet, true},
                    Crossing{"PutMeetsGet", 50000, 50000, Protocol::kAuto, Protocol::kGet, true,
                             Code::kInvalidArgument},
                    Crossing{"GetMeetsPut", 300000, 300000, Protocol::kGet, Protocol::kPut, false,
                             Code::kInvalidArgument}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(StreamCrossings, AreTold) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    const Crossing& it = GetParam();
    // Messages before it have been met.
    auto group = side.ranks->group();
    for (const size_t bytes : {size_t{100}, size_t{10000}}) {
      group.send(side.other, side.out, 0, bytes);
      group.recv(side.other, side.in, 0, bytes);
    }
    must(must(group.post(side.on()), "group").wait(kPatience), "wait");
    clear(side.in.data(), kBytes, 9);
    line.meet();
    const bool isFirst = it.receivesFirst == (index == 1);
    if (!isFirst) (void)line.receive();
    const auto posted = index == 0
                            ? side.ranks->send(1, side.out, 0, it.sent,
                                               by(side, index == 0 ? it.sender : it.receiver))
                            : side.ranks->recv(0, side.in, 0, it.received,
                                               by(side, index == 0 ? it.sender : it.receiver));
    if (isFirst) {
      std::this_thread::sleep_for(100ms);  // it has asked, and will ask again
      line.send("posted");
    }
    const auto begin = std::chrono::steady_clock::now();
    Status status = must(posted, "post").wait(kPatience);
    // A short send lies in the inbox, and has ended; its lane has not.
    if (status.isOk()) {
      EXPECT_TRUE(index == 0 && it.sent <= 1024);
      while (status.isOk() && std::chrono::steady_clock::now() - begin < kPatience) {
        std::this_thread::sleep_for(1ms);
        status = side.ranks->prepare(1, {});
      }
    }
    EXPECT_EQ(status.code(), it.code) << status.toString();
    mustSync(side.stream);
    EXPECT_TRUE(isFilledWith(side.in.data(), kBytes, 9));
    line.meet();
  }));
}

// Memory that the other side would reach is unregistered before it has posted its part. If it does
// so at the same time, the message may still be met; else both end with kClosed.
TEST_P(StreamProtocols, MemoryThatGoesBeforeItIsMet) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool isLate : {true, false})
    EXPECT_TRUE(run([isLate](Talker& side, int index, const Line& line) {
      const bool gets = GetParam() == Protocol::kGet;
      const auto isExpected = [isLate](const Status& status) {
        return status.code() == Code::kClosed || (!isLate && status.isOk());
      };
      line.meet();
      if (index == 0) {
        const Region fresh =
            must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
        must(side.ranks->prepare(1, {&fresh, 1}), "prepare");
        const auto waiting = gets ? side.ranks->send(1, fresh, 0, 50000, side.on())
                                  : side.ranks->recv(1, fresh, 0, 50000, side.on());
        if (!isLate) line.send("now");
        const Status gone = side.context->unregister(fresh, kPatience);
        EXPECT_TRUE(gone.isOk()) << gone.toString();
        const Status status = must(waiting, "post").wait(kPatience);
        EXPECT_TRUE(isExpected(status)) << status.toString();
        mustSync(side.stream);
        if (isLate) line.send("now");
      } else {
        (void)line.receive();
        const auto posted = gets ? side.ranks->recv(0, side.in, 0, 50000, side.on())
                                 : side.ranks->send(0, side.out, 0, 50000, side.on());
        const Status status = posted.isOk() ? posted->wait(kPatience) : posted.status();
        EXPECT_TRUE(isExpected(status)) << status.toString();
        mustSync(side.stream);
      }
      line.meet();
    })) << (isLate ? "late" : "at the same time");
}

// The other side has posted its part, and is importing the memory while it goes: the message is
// met, or both sides hear that it will not be.
TEST_P(StreamProtocols, MemoryThatGoesWhileItIsImported) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    const bool gets = GetParam() == Protocol::kGet;
    const auto expectEnd = [&](const Result<Transfer>& posted) {
      const Status status = posted.isOk() ? posted->wait(kPatience) : posted.status();
      EXPECT_TRUE(status.isOk() || status.code() == Code::kClosed) << status.toString();
      mustSync(side.stream);
    };
    for (int i = 0; i < 20; ++i) {
      std::vector<Peer> peers(2);
      peers[side.other] = side.peer;
      line.meet();  // both have the one before
      side.ranks.reset();
      side.ranks = must(Communicator::create(*side.context, peers, static_cast<Rank>(index)),
                        "communicator");
      must(side.ranks->prepare(side.other, {}), "prepare");
      line.meet();
      if (index == 0) {
        const Region brief =
            must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
        (void)line.receive();
        const auto posted = gets ? side.ranks->send(1, brief, 0, 50000, side.on())
                                 : side.ranks->recv(1, brief, 0, 50000, side.on());
        must(side.context->unregister(brief, kPatience), "unregister");
        expectEnd(posted);
      } else {
        const auto posted = gets ? side.ranks->recv(0, side.in, 0, 50000, side.on())
                                 : side.ranks->send(0, side.out, 0, 50000, side.on());
        line.send("posted");
        expectEnd(posted);
      }
      line.meet();
    }
  }));
}

// The same, and certain: the other side has posted its part and stands still, so that it asks for
// the memory when that is going. Whether by itself or by a graph: it hears that the message will
// not be met. Memory that was only freed ends the lane as well.
TEST_P(StreamProtocols, MemoryThatHasGoneWhenItIsImported) {
  PEERLANE_NEEDS_GPUS(1);
  struct Way {
    bool byGraph, isFreed;
  };
  for (const Way way : {Way{false, false}, {true, false}, {false, true}})
    EXPECT_TRUE(run([way](Talker& side, int index, const Line& line) {
      const bool gets = GetParam() == Protocol::kGet;
      const Code gone = way.isFreed ? Code::kRevoked : Code::kClosed;
      must(side.ranks->prepare(side.other, {}), "prepare");
      line.meet();
      const auto post = [&](const Region& region) {
        return gets == (index == 0) ? side.ranks->send(side.other, region, 0, 50000, side.on())
                                    : side.ranks->recv(side.other, region, 0, 50000, side.on());
      };
      if (index == 0) {
        const pid_t other = std::stoi(line.receive());
        (void)line.receive();
        freeze(other);
        const Region brief = makeRegion(*side.context, side.device, Memory::kPool, kBytes);
        const auto posted = post(brief);
        if (way.isFreed) {
          const cudaStream_t stream = makeStream();
          mustCuda(cudaFreeAsync(brief.data(), stream), "cudaFreeAsync");
          mustSync(stream);
          while (side.context->dump().find("bytes revoked") == std::string::npos)
            std::this_thread::sleep_for(1ms);
        } else {
          EXPECT_EQ(side.context->unregister(brief, 0ns).code(), Code::kTimeout);
        }
        thaw(other);
        EXPECT_EQ(must(posted, "post").wait(kPatience).code(), gone);
        must(side.context->unregister(brief, kPatience), "unregister");
        mustSync(side.stream);
      } else {
        line.send(std::to_string(getpid()));
        Result<Transfer> posted = Transfer();
        if (way.byGraph) {
          mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal), "begin");
          posted = post(gets ? side.in : side.out);
          cudaGraph_t graph = nullptr;
          mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
          cudaGraphExec_t executable = nullptr;
          mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
          mustCuda(cudaGraphLaunch(executable, side.stream), "launch");
          line.send("posted");
          mustSync(side.stream);  // let go
          EXPECT_EQ(side.ranks->prepare(0, {}).code(), Code::kClosed);
          mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
          mustCuda(cudaGraphDestroy(graph), "destroy");
        } else {
          posted = post(gets ? side.in : side.out);
          line.send("posted");
          EXPECT_EQ(must(posted, "post").wait(kPatience).code(), gone);
          mustSync(side.stream);
        }
      }
      line.meet();
    })) << (way.byGraph   ? "by a graph"
            : way.isFreed ? "freed"
                          : "live");
}

TEST(StreamMessageProtocols, WhatCannotBeIsRefused) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    const auto refusal = [&](const Region& region, bool sends, size_t bytes, Protocol protocol) {
      const auto posted = sends
                              ? side.ranks->send(side.other, region, 0, bytes, by(side, protocol))
                              : side.ranks->recv(side.other, region, 0, bytes, by(side, protocol));
      return posted.status();
    };
    const Region readable =
        must(side.context->allocate(kBytes, {.device = side.device, .access = Access::kRemoteRead}),
             "allocate");
    const Region writable = must(
        side.context->allocate(kBytes, {.device = side.device, .access = Access::kRemoteWrite}),
        "allocate");
    for (const bool sends : {true, false}) {
      const Status ring = refusal(side.in, sends, 64, Protocol::kRing);
      EXPECT_EQ(ring.code(), Code::kNotSupported) << ring.toString();
      const Status eager = refusal(side.in, sends, 1025, Protocol::kEager);
      EXPECT_EQ(eager.code(), Code::kInvalidArgument) << eager.toString();
      EXPECT_NE(eager.message().find("1024"), std::string::npos) << eager.toString();
    }
    const Status unreadable = refusal(writable, true, 3000, Protocol::kGet);
    EXPECT_EQ(unreadable.code(), Code::kPermissionDenied) << unreadable.toString();
    EXPECT_EQ(refusal(readable, false, 3000, Protocol::kPut).code(), Code::kPermissionDenied);
    // Each protocol needs its one right, and none of the above has cost a number.
    line.meet();
    for (const Protocol protocol : {Protocol::kGet, Protocol::kPut, Protocol::kEager}) {
      const bool gets = protocol == Protocol::kGet;
      const size_t bytes = protocol == Protocol::kEager ? 1024 : 3000;
      const auto posted =
          index == 0
              ? side.ranks->send(1, gets ? readable : writable, 0, bytes, by(side, protocol))
              : side.ranks->recv(0, gets ? readable : writable, 0, bytes, by(side, protocol));
      must(must(posted, "post").wait(kPatience), "wait");
    }
    line.meet();
  }));
}

// Both sides post what waits before what the other waits for: told by name, streams go on.
TEST_P(StreamProtocols, SendsThatWaitForEachOther) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int, const Line& line) {
    MessageOptions options = side.on();
    options.timeout = 300ms;
    line.meet();
    const auto sent = side.ranks->send(side.other, side.out, 0, 100000, options);
    const auto received = side.ranks->recv(side.other, side.in, 0, 100000, options);
    EXPECT_TRUE(received.isOk() || received.status().code() == Code::kTimeout)
        << received.status().toString();
    const Status status = sent.isOk() ? sent->wait(kPatience) : sent.status();
    EXPECT_EQ(status.code(), Code::kTimeout) << status.toString();
    mustSync(side.stream);
    line.send(std::string(status.message()));
    const std::string others = line.receive();
    EXPECT_TRUE(std::string(status.message()).find("group") != std::string::npos ||
                others.find("group") != std::string::npos)
        << status.toString() << " / " << others;
    clear(side.in.data(), kBytes, 1);  // the device works
    line.meet();
  }));
}

// --- Memory that is new, or prepared ---

// One side prepares its memory and the other does not: nobody waits for what the other has not
// done, and what is missed is found.
TEST_P(StreamProtocols, MissesMayDiffer) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    for (uint32_t i = 0; i < 6; ++i) {
      const Region out = must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
      const Region in = must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
      if (static_cast<int>(i % 2) == index) {
        const Region both[] = {out, in};
        must(side.ranks->prepare(side.other, both), "prepare");
      }
      fill(out.data(), kBytes, i + 50 * static_cast<uint32_t>(index));
      auto group = side.ranks->group();
      group.recv(side.other, in, 8192, 100000);
      group.send(side.other, out, 4096, 100000);
      must(must(group.post(side.on()), "group").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(in.data() + 8192, 100000, i + 50 * side.other, 4096), 0u);
      line.meet();
      must(side.context->unregister(out, kPatience), "unregister");
      must(side.context->unregister(in, kPatience), "unregister");
    }
  }));
}

// Announced, and taken back before the other side has imported it: no message misses it.
TEST_P(StreamProtocols, MemoryThatGoesBeforeItIsPrepared) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    for (int i = 0; i < 100; ++i) {
      const Region brief = must(side.context->allocate(8192, {.device = side.device}), "allocate");
      const Status prepared = side.ranks->prepare(side.other, {&brief, 1}, 0ns);
      EXPECT_TRUE(prepared.isOk() || prepared.code() == Code::kTimeout) << prepared.toString();
      must(side.context->unregister(brief, kPatience), "unregister");
    }
    line.meet();
    fill(side.out.data(), kBytes, static_cast<uint32_t>(index));
    auto group = side.ranks->group();
    group.recv(side.other, side.in, 0, 100000);
    group.send(side.other, side.out, 0, 100000);
    must(must(group.post(side.on()), "group").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(side.in.data(), 100000, side.other), 0u);
    line.meet();
  }));
}

TEST(StreamMessageProtocols, PrepareSaysWhatItCannotDo) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int, const Line& line) {
    const Region none =
        must(side.context->allocate(4096, {.device = side.device, .access = Access::kLocal}),
             "allocate");
    must(side.ranks->prepare(side.other, {&none, 1}), "nothing to prepare");
    must(side.ranks->prepare(side.other, {}), "no regions");
    const Region heap = makeRegion(*side.context, side.device, Memory::kHeap, 4096);
    EXPECT_EQ(side.ranks->prepare(side.other, {&heap, 1}).code(), Code::kNotSupported);
    EXPECT_EQ(side.ranks->prepare(7, {&side.in, 1}).code(), Code::kInvalidArgument);
    const Region empty;
    EXPECT_EQ(side.ranks->prepare(side.other, {&empty, 1}).code(), Code::kInvalidArgument);
    must(side.ranks->prepare(side.other, {&side.in, 1}), "prepare");
    must(side.ranks->prepare(side.other, {&side.in, 1}, 0ns), "prepared before: nothing to wait");
    line.meet();
  }));
}

// --- Graphs ---

TEST_P(StreamProtocols, GraphsNeedPreparedMemory) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    constexpr size_t kLarge = 200000;
    constexpr int kReplays = 40;
    const auto capture = [&](bool mustWork) {
      mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal), "begin");
      Status status;
      Transfer captured;
      for (size_t message = 0; message < 3 && status.isOk(); ++message) {
        auto group = side.ranks->group();
        group.recv(side.other, side.in, message * kLarge, kLarge);
        group.send(side.other, side.out, message * kLarge, kLarge);
        auto posted = group.post(side.on());
        status = posted.status();
      }
      cudaGraph_t graph = nullptr;
      mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
      EXPECT_EQ(status.code(), mustWork ? Code::kOk : Code::kNotPrepared) << status.toString();
      return graph;
    };
    mustCuda(cudaGraphDestroy(capture(false)), "destroy");
    const Region both[] = {side.out, side.in};
    must(side.ranks->prepare(side.other, both), "prepare");
    cudaGraph_t graph = capture(true);
    cudaGraphExec_t executable = nullptr;
    mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    mustCuda(cudaGraphDestroy(graph), "destroy");
    for (int i = 0; i < kReplays; ++i) {
      mustCuda(cudaMemsetAsync(side.out.data(), (i * 2 + index) % 251, 3 * kLarge, side.stream),
               "memset");
      mustCuda(cudaGraphLaunch(executable, side.stream), "launch");
      if (i % 8 != 7) continue;
      mustSync(side.stream);
      EXPECT_TRUE(isFilledWith(side.in.data(), 3 * kLarge, (i * 2 + 1 - index) % 251)) << i;
    }
    mustSync(side.stream);
    line.meet();
    mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
    line.meet();
  }));
}

// --- Lost peers ---

TEST_P(StreamProtocols, APeerThatDies) {
  PEERLANE_NEEDS_GPUS(1);
  const Protocol protocol = GetParam();
  EXPECT_TRUE(runWithVictims(
      [protocol](const Victims& victims) {
        const Victim victim = victims.next();
        const Talker side(0, victim.line(), Memory::kVmm, kBytes, {.protocol = protocol});
        auto received = must(side.ranks->recv(1, side.in, 0, 64000, side.on()), "recv");
        auto sent = must(side.ranks->send(1, side.out, 0, kBytes, side.on(makeStream())), "send");
        victim.kill();
        for (const Transfer& each : {received, sent}) {
          const Status status = each.wait(kPatience);
          EXPECT_EQ(status.code(), Code::kPeerLost) << status.toString();
        }
        mustSync(side.stream);
        clear(side.in.data(), kBytes, 1);  // the device works
      },
      [protocol](const Line& line) {
        const Talker side(1, line, Memory::kVmm, kBytes, {.protocol = protocol});
        for (;;) pause();
      }));
}

}  // namespace
}  // namespace peerlane::gputest
