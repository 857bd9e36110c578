// SPDX-License-Identifier: Apache-2.0
//
// Send and receive on streams where no link reaches from GPU to GPU: staged through pinned host
// memory of both sides, in every size, both ways at once, on many streams, and to every end.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/talker.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

// Rings of 128 KiB for each direction: most messages go round them many times.
constexpr size_t kStaging = size_t{256} << 10;
constexpr unsigned char kUntouched = 0xee;

void configure(const std::string& links, size_t staging = kStaging) {
  setenv("PEERLANE_STAGING_BYTES", std::to_string(staging).c_str(), 1);
  setenv("PEERLANE_LINKS", links.c_str(), 1);
}

bool runStaged(const std::string& links, const Both& both, int seconds = 60,
               Memory memory = Memory::kVmm, size_t staging = kStaging) {
  const auto sideOf = [&](int index) {
    return [&both, &links, index, memory, staging](const Line& line) {
      configure(links, staging);
      Talker side(index, line, memory);
      both(side, index, line);
    };
  };
  return runTwo(sideOf(0), sideOf(1), seconds);
}

std::vector<unsigned char> bytesOf(const Region& region, size_t bytes = kBytes) {
  std::vector<unsigned char> seen(bytes);
  mustCuda(cudaMemcpy(seen.data(), region.data(), bytes, cudaMemcpyDefault), "copy");
  return seen;
}

bool isUntouched(const std::vector<unsigned char>& seen, size_t from = 0) {
  return std::all_of(seen.begin() + static_cast<ptrdiff_t>(from), seen.end(),
                     [](unsigned char byte) { return byte == kUntouched; });
}

// The stream waits until a CPU stores something to a word of pinned memory.
void holdUntil(cudaStream_t stream, uint64_t* word) {
  ASSERT_EQ(cuda::api().cuStreamWaitValue64(stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                            CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
}

// The first `bytes` are those of `sent`, and nothing else was written.
void expectExactly(const Region& region, const Region& sent, size_t bytes) {
  const auto seen = bytesOf(region);
  const auto wanted = bytesOf(sent);
  EXPECT_TRUE(
      std::equal(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(bytes), wanted.begin()))
      << bytes << " bytes";
  EXPECT_TRUE(isUntouched(seen, bytes)) << bytes << " bytes";
}

class StagedMessages : public ::testing::TestWithParam<const char*> {
 protected:
  bool run(const Both& both, int seconds = 60, Memory memory = Memory::kVmm) {
    return runStaged(GetParam(), both, seconds, memory);
  }
};

// "shm": on one host, where cuda_ipc may not be used.
INSTANTIATE_TEST_SUITE_P(Links, StagedMessages, ::testing::Values("tcp", "shm"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(StagedMessages, SizesThereAndBack) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    uint32_t seed = 1;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{8}, size_t{777}, size_t{1024}, size_t{1025}, size_t{32769},
          size_t{73} << 10, size_t{1} << 20, (size_t{3} << 20) + 5, kBytes}) {
      clear(side.in.data(), kBytes, kUntouched);
      fill(side.out.data(), kBytes, ++seed);
      line.meet();
      if (index == 0) {
        const Transfer there = must(side.ranks->send(1, side.out, 0, bytes, side.on()), "send");
        const Transfer back = must(side.ranks->recv(1, side.in, 0, bytes, side.on()), "recv");
        must(there.wait(kPatience), "wait");
        must(back.wait(kPatience), "wait");
        expectExactly(side.in, side.out, bytes);
      } else {
        must(side.ranks->recv(0, side.in, 0, bytes, side.on()), "recv");
        // What came is what goes: in the order of the stream.
        must(must(side.ranks->send(0, side.in, 0, bytes, side.on()), "send").wait(kPatience),
             "wait");
        expectExactly(side.in, side.out, bytes);
      }
      line.meet();
    }
  }));
}

// What was on the stream before is sent, and what follows comes after the bytes.
TEST_P(StagedMessages, AreInTheOrderOfTheStream) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    void* source = nullptr;
    void* copy = nullptr;
    mustCuda(cudaMalloc(&source, kBytes), "cudaMalloc");
    mustCuda(cudaMalloc(&copy, kBytes), "cudaMalloc");
    for (uint32_t round = 0; round < 5; ++round) {
      fill(source, kBytes, round);
      clear(side.out.data(), kBytes, kUntouched);
      clear(copy, kBytes, 0);
      line.meet();
      if (index == 0) {
        mustCuda(cudaMemcpyAsync(side.out.data(), source, kBytes, cudaMemcpyDefault, side.stream),
                 "copy");
        must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
        mustCuda(cudaMemsetAsync(side.out.data(), 0, kBytes, side.stream), "memset");
      } else {
        must(side.ranks->recv(0, side.in, 0, kBytes, side.on()), "recv");
        mustCuda(cudaMemcpyAsync(copy, side.in.data(), kBytes, cudaMemcpyDefault, side.stream),
                 "copy");
        mustCuda(cudaMemsetAsync(side.in.data(), 0, kBytes, side.stream), "memset");
      }
      mustSync(side.stream);
      if (index == 1) {
        EXPECT_EQ(wrongWords(copy, kBytes, round), 0u);
      }
      line.meet();
    }
  }));
}

// Of the host, pinned as it comes or pinned for it, at one side and at both.
TEST_P(StagedMessages, MemoryOfTheHost) {
  PEERLANE_NEEDS_GPUS(1);
  for (const Memory memory : {Memory::kShared, Memory::kHeap})
    EXPECT_TRUE(run(
        [](Talker& side, int index, const Line& line) {
          must(side.ranks->prepare(side.other, {&side.in, 1}), "prepare");
          fill(side.out.data(), kBytes, 5 + static_cast<uint32_t>(index));
          auto group = side.ranks->group();
          group.send(side.other, side.out, 4, 700001).recv(side.other, side.in, 8, 700001);
          must(must(group.post(side.on()), "group").wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(side.in.data() + 8, 700000, 6 - static_cast<uint32_t>(index), 4),
                    0u);
          line.meet();
        },
        60, memory));
}

// One side posts them together, the other one by one.
TEST_P(StagedMessages, BatchesMeetSingleOnes) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    constexpr size_t kCount = 60;
    std::vector<MessageBlock> blocks;
    size_t at = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t bytes = i % 7 == 0 ? 0 : i * 1201 / 4 * 4;
      blocks.push_back({index == 0 ? &side.out : &side.in, at, bytes});
      at += bytes;
    }
    for (const bool together : {true, false}) {
      fill(side.out.data(), kBytes, 3);
      clear(side.in.data(), kBytes, kUntouched);
      line.meet();
      std::vector<Transfer> posted;
      const bool inOne = together == (index == 0);
      if (inOne)
        posted.push_back(must(index == 0 ? side.ranks->sendBatch(1, blocks, side.on())
                                         : side.ranks->recvBatch(0, blocks, side.on()),
                              "batch"));
      for (size_t i = 0; !inOne && i < kCount; ++i)
        posted.push_back(must(
            index == 0 ? side.ranks->send(1, side.out, blocks[i].offset, blocks[i].bytes, side.on())
                       : side.ranks->recv(0, side.in, blocks[i].offset, blocks[i].bytes, side.on()),
            "post"));
      for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
      if (index == 1) expectExactly(side.in, side.out, at);
      line.meet();
    }
  }));
}

// Far more both ways than the rings hold, in one group: neither stream waits behind its own wait.
TEST_P(StagedMessages, GroupsExchange) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    for (uint32_t round = 0; round < 6; ++round) {
      const size_t messages = round % 2 == 0 ? 1 : 25;
      const size_t each = kBytes / messages / 4 * 4;
      fill(side.out.data(), kBytes, round + 100 * static_cast<uint32_t>(index));
      line.meet();
      exchangeInGroup(side, index, messages, each, round);
      line.meet();
    }
  }));
}

// On a stream for each, too.
TEST_P(StagedMessages, BothWaysOnTwoStreams) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_TWO_QUEUES();
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    const cudaStream_t other = makeStream();
    fill(side.out.data(), kBytes, 100 * static_cast<uint32_t>(index));
    line.meet();
    const Transfer sent =
        must(side.ranks->send(side.other, side.out, 0, kBytes, side.on()), "send");
    const Transfer received =
        must(side.ranks->recv(side.other, side.in, 0, kBytes, side.on(other)), "recv");
    must(sent.wait(kPatience), "send");
    must(received.wait(kPatience), "recv");
    EXPECT_EQ(wrongWords(side.in.data(), kBytes, 100 * static_cast<uint32_t>(1 - index)), 0u);
    line.meet();
  }));
}

// Messages meet in the order of posting, whatever streams they are on.
TEST_P(StagedMessages, ManyStreams) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    sendOnManyStreams(side, index, line, 15, 90000, 1000);
  }));
}

// Messages without a stream are counted by themselves, and pass those of streams that wait.
TEST_P(StagedMessages, AreNotInTheWayOfTheHosts) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    std::vector<std::byte> letter(5000, std::byte(index + 1));
    fill(side.out.data(), kBytes, 9);
    if (index == 0) {
      const Transfer onStream = must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
      must(must(side.ranks->send(1, std::span<const std::byte>(letter)), "send").wait(kPatience),
           "a message of the host");
      line.send("sent");
      must(onStream.wait(kPatience), "wait");
    } else {
      must(must(side.ranks->recv(0, std::span<std::byte>(letter)), "recv").wait(kPatience),
           "a message of the host");
      EXPECT_EQ(letter.back(), std::byte(1));
      (void)line.receive();
      must(must(side.ranks->recv(0, side.in, 0, kBytes, side.on()), "recv").wait(kPatience),
           "wait");
      EXPECT_EQ(wrongWords(side.in.data(), kBytes, 9), 0u);
    }
    line.meet();
  }));
}

// What fills the rings of one communicator is not in the way of another.
TEST_P(StagedMessages, EachCommunicatorHasItsOwnMemory) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_TWO_QUEUES();
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    std::vector<Peer> peers(2);
    peers[side.other] = side.peer;
    const auto second =
        must(Communicator::create(*side.context, peers, static_cast<Rank>(index)), "communicator");
    const cudaStream_t other = makeStream();
    fill(side.out.data(), kBytes, 4);
    line.meet();
    if (index == 0) {
      const Transfer stuck = must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
      must(must(second->send(1, side.out, 0, kBytes, side.on(other)), "send").wait(kPatience),
           "the second communicator");
      EXPECT_FALSE(stuck.done());
      line.send("go on");
      must(stuck.wait(kPatience), "wait");
    } else {
      must(must(second->recv(0, side.in, 0, kBytes, side.on(other)), "recv").wait(kPatience),
           "the second communicator");
      (void)line.receive();
      must(must(side.ranks->recv(0, side.in, 0, kBytes, side.on()), "recv").wait(kPatience),
           "wait");
    }
    line.meet();
  }));
}

// --- Ends ---

// Longer, shorter, nothing at all: told at both sides, nothing is written, and the next ones are
// not disturbed; also in the middle of a batch.
TEST_P(StagedMessages, LengthsThatDifferAreTold) {
  PEERLANE_NEEDS_GPUS(1);
  struct Pair {
    size_t sent, wanted;
  };
  static constexpr Pair kPairs[] = {{64, 65},        {0, 100},        {100, 0},    {100000, 100004},
                                    {kBytes, 70000}, {70000, kBytes}, {kBytes, 0}, {0, kBytes}};
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    for (const Pair& pair : kPairs) {
      clear(side.in.data(), kBytes, kUntouched);
      fill(side.out.data(), kBytes, 7);
      line.meet();
      const auto posted = index == 0 ? side.ranks->send(1, side.out, 0, pair.sent, side.on())
                                     : side.ranks->recv(0, side.in, 0, pair.wanted, side.on());
      const auto next = index == 0 ? side.ranks->send(1, side.out, 0, 300000, side.on())
                                   : side.ranks->recv(0, side.in, 0, 300000, side.on());
      const Status status = must(posted, "post").wait(kPatience);
      EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
      must(must(next, "next").wait(kPatience), "next");
      if (index == 1) expectExactly(side.in, side.out, 300000);
      line.meet();
    }
    clear(side.in.data(), kBytes, kUntouched);
    line.meet();
    const Region& memory = index == 0 ? side.out : side.in;
    const std::vector<MessageBlock> blocks = {
        {&memory, 0, 100000},
        {&memory, index == 0 ? 100000u : 500000u, index == 0 ? 100000u : 100001u},
        {&memory, 100000, 100000}};
    const Status status = must(index == 0 ? side.ranks->sendBatch(1, blocks, side.on())
                                          : side.ranks->recvBatch(0, blocks, side.on()),
                               "batch")
                              .wait(kPatience);
    EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
    if (index == 1) expectExactly(side.in, side.out, 200000);
    line.meet();
  }));
}

// Not met in time: both sides are told, and the streams go on.
TEST_P(StagedMessages, NotMetInTime) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool sends : {true, false})
    EXPECT_TRUE(run([sends](Talker& side, int index, const Line& line) {
      clear(side.in.data(), kBytes, kUntouched);
      if (index == 0) {
        MessageOptions options = side.on();
        options.timeout = 200ms;
        const auto posted = sends ? side.ranks->send(1, side.out, 0, kBytes, options)
                                  : side.ranks->recv(1, side.in, 0, kBytes, options);
        // Behind it, with patience: it ends with its lane.
        const auto behind = side.ranks->send(1, side.out, 0, 8, side.on());
        const Status status = endOf(posted);
        EXPECT_EQ(status.code(), Code::kTimeout) << status.toString();
        EXPECT_EQ(endOf(behind).code(), Code::kTimeout);
        mustSync(side.stream);
        EXPECT_TRUE(isUntouched(bytesOf(side.in)));
        line.send("over");
      } else {
        (void)line.receive();
        const auto giveUp = std::chrono::steady_clock::now() + kPatience;
        Status status;
        while (status.isOk()) {
          status = side.ranks->recv(0, side.in, 0, 0, side.on()).status();
          ASSERT_LT(std::chrono::steady_clock::now(), giveUp);
        }
        EXPECT_EQ(status.code(), Code::kTimeout) << status.toString();
        mustSync(side.stream);
      }
      // Messages of the host are not concerned.
      std::byte letter{7};
      must(must(index == 0 ? side.ranks->send(1, std::span<const std::byte>(&letter, 1))
                           : side.ranks->recv(0, std::span(&letter, 1)),
                "letter")
               .wait(kPatience),
           "letter");
      line.meet();
    }));
}

// A stream that was let go goes on; what it would have sent behind that is not sent.
TEST_P(StagedMessages, NothingIsSentBehindAMessageThatWasLetGo) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    clear(side.in.data(), kBytes, kUntouched);
    fill(side.out.data(), kBytes, 5);
    line.meet();
    if (index == 1) {
      const Transfer waiting = must(side.ranks->recv(0, side.in, 0, 100000, side.on()), "recv");
      line.send("waiting");
      EXPECT_EQ(waiting.wait(kPatience).code(), Code::kTimeout);
      mustSync(side.stream);
      EXPECT_TRUE(isUntouched(bytesOf(side.in)));
    } else {
      (void)line.receive();
      MessageOptions options = side.on();
      options.timeout = 500ms;
      const auto never = side.ranks->recv(1, side.in, 0, 8, options);
      const auto behind = side.ranks->send(1, side.out, 0, 100000, side.on());
      EXPECT_EQ(endOf(never).code(), Code::kTimeout);
      // It is refused if a busy machine held up this side between the posts.
      EXPECT_EQ(endOf(behind).code(), Code::kTimeout);
    }
    line.meet();
  }));
}

// The stream's order is given, so the messages behind would meet others than those they are for.
TEST_P(StagedMessages, AListOfAnotherNumberOfPiecesEndsThemAtBothSides) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    const Region& memory = index == 0 ? side.out : side.in;
    const std::vector<MessageBlock> pieces = {
        {&memory, 0, 100000}, {&memory, 100000, 100000}, {&memory, 200000, 100000}};
    line.meet();
    const auto list = [&](size_t count) {
      const auto some = std::span(pieces).first(count);
      return index == 0 ? side.ranks->sendList(1, some, side.on())
                        : side.ranks->recvList(0, some, side.on());
    };
    must(must(list(2), "two").wait(kPatience), "two and two");
    const Status status = must(list(index == 0 ? 3 : 2), "list").wait(kPatience);
    EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
    EXPECT_EQ(endOf(list(1)).code(), Code::kSizeMismatch);
    line.meet();
  }));
}

// Before anything has come, and in the middle.
TEST_P(StagedMessages, Cancelled) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool isMet : {false, true})
    EXPECT_TRUE(run([isMet](Talker& side, int index, const Line& line) {
      line.meet();
      const cudaStream_t other = makeStream();
      if (index == 0) {
        const Transfer posted = must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
        if (isMet) {
          must(side.ranks->send(1, side.out, 0, kBytes, side.on()), "send");
          must(posted.wait(kPatience), "the first");
        }
        const Transfer last = must(side.ranks->recv(1, side.in, 0, 8, side.on(other)), "recv");
        last.cancel();
        EXPECT_EQ(last.wait(kPatience).code(), Code::kCancelled);
        const Code ended = posted.wait(kPatience).code();
        EXPECT_TRUE(isMet || ended == Code::kCancelled || ended == Code::kSizeMismatch)
            << codeName(ended);
      } else if (isMet) {
        must(must(side.ranks->recv(0, side.in, 0, kBytes, side.on()), "recv").wait(kPatience),
             "the first");
      } else {
        const Status status = endOf(side.ranks->recv(0, side.in, 0, 8, side.on()));
        // Of another length than what is sent, if they met before the cancel came.
        EXPECT_TRUE(status.code() == Code::kCancelled || status.code() == Code::kSizeMismatch)
            << status.toString();
      }
      mustSync(side.stream);
      mustSync(other);
      line.meet();
    }));
}

// On a stream that has not come to it: it ends when the stream has passed it.
TEST_P(StagedMessages, CancelledOnAStreamThatWaits) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    clear(side.in.data(), kBytes, kUntouched);
    line.meet();
    if (index == 0) {
      uint64_t* word = nullptr;
      mustCuda(cudaMallocHost(reinterpret_cast<void**>(&word), 64), "cudaMallocHost");
      std::atomic_ref<uint64_t> gate(*word);
      gate = 0;
      holdUntil(side.stream, word);
      const Transfer posted = must(side.ranks->recv(1, side.in, 0, kBytes, side.on()), "recv");
      posted.cancel();
      line.send("cancelled");
      EXPECT_EQ(posted.wait(100ms).code(), Code::kTimeout);
      gate = 1;
      EXPECT_EQ(posted.wait(kPatience).code(), Code::kCancelled);
      mustSync(side.stream);
      EXPECT_TRUE(isUntouched(bytesOf(side.in)));
      EXPECT_EQ(poisonings(*side.context), 1u);
    } else {
      (void)line.receive();
      mustSync(side.stream);
    }
    line.meet();
  }));
}

// Everything has come, and the sender has gone, before the receiver's stream comes to it.
TEST_P(StagedMessages, WhatWasSentBeforeTheEndIsReceived) {
  PEERLANE_NEEDS_GPUS(1);
  for (const size_t bytes : {size_t{8}, size_t{100000}})
    EXPECT_TRUE(run([bytes](Talker& side, int index, const Line& line) {
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
      holdUntil(side.stream, word);
      const Transfer received = must(side.ranks->recv(1, side.in, 0, bytes, side.on()), "recv");
      line.send("posted");
      (void)line.receive();
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

// In the middle of messages both ways: told within a second or two, and the streams go on.
TEST_P(StagedMessages, APeerThatDies) {
  PEERLANE_NEEDS_GPUS(1);
  const std::string links = GetParam();
  EXPECT_TRUE(runWithVictims(
      [&](const Victims& victims) {
        configure(links);
        for (int round = 0; round < 4; ++round) {
          const Victim victim = victims.next();
          const Talker side(0, victim.line());
          const cudaStream_t other = makeStream();
          const Transfer met = must(side.ranks->recv(1, side.in, 0, kBytes, side.on()), "recv");
          if (round % 2 == 0) must(met.wait(kPatience), "met");
          const Transfer never = must(side.ranks->recv(1, side.in, 0, 64, side.on()), "recv");
          const Transfer large =
              must(side.ranks->send(1, side.out, 0, kBytes, side.on(other)), "send");
          victim.kill();
          EXPECT_EQ(never.wait(kPatience).code(), Code::kPeerLost);
          EXPECT_EQ(large.wait(kPatience).code(), Code::kPeerLost);
          const Status status = met.wait(kPatience);
          EXPECT_TRUE(status.isOk() || status.code() == Code::kPeerLost) << status.toString();
          mustSync(side.stream);
          mustSync(other);
          EXPECT_EQ(side.ranks->send(1, side.out, 0, 8, side.on()).status().code(),
                    Code::kPeerLost);
        }
      },
      [&](const Line& line) {
        configure(links);
        const Talker side(1, line);
        (void)side.ranks->send(0, side.out, 0, kBytes, side.on());
        for (;;) pause();
      }));
}

// One that waits for room in the ring, behind one whose stream has not come to it: told at once,
// and what was received stays received.
TEST_P(StagedMessages, APeerThatDiesWhileAMessageWaitsForRoom) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_TWO_QUEUES();
  const std::string links = GetParam();
  constexpr size_t kMost = 120000;
  EXPECT_TRUE(runWithVictims(
      [&](const Victims& victims) {
        configure(links);
        const Victim victim = victims.next();
        const Line line = victim.line();
        const Talker side(0, line);
        const cudaStream_t other = makeStream();
        uint64_t* word = nullptr;
        mustCuda(cudaMallocHost(reinterpret_cast<void**>(&word), 64), "cudaMallocHost");
        std::atomic_ref<uint64_t> gate(*word);
        gate = 0;
        holdUntil(side.stream, word);
        const Transfer first = must(side.ranks->recv(1, side.in, 0, kMost, side.on()), "recv");
        const Transfer second =
            must(side.ranks->recv(1, side.in, kMost, kMost, side.on(other)), "recv");
        (void)line.receive();
        // Behind the header of the second one, on the same wire.
        std::byte letter{};
        must(must(side.ranks->recv(1, std::span(&letter, 1)), "letter").wait(kPatience), "letter");
        victim.kill();
        EXPECT_EQ(second.wait(kPatience).code(), Code::kPeerLost);
        EXPECT_FALSE(first.done());
        mustSync(other);
        gate = 1;
        must(first.wait(kPatience), "the first");
        EXPECT_EQ(wrongWords(side.in.data(), kMost, 8), 0u);
        mustSync(side.stream);
      },
      [&](const Line& line) {
        configure(links);
        const Talker side(1, line);
        fill(side.out.data(), kBytes, 8);
        const Transfer first = must(side.ranks->send(0, side.out, 0, kMost, side.on()), "send");
        (void)side.ranks->send(0, side.out, 0, kMost, side.on());
        must(first.wait(kPatience), "the first");
        line.send("sent");
        const std::byte letter{1};
        (void)side.ranks->send(0, std::span(&letter, 1));
        for (;;) pause();
      }));
}

// The end of a communicator whose streams wait.
TEST_P(StagedMessages, TheEndOfTheCommunicator) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int index, const Line& line) {
    const Transfer never =
        must(side.ranks->recv(side.other, side.in, 0, kBytes, side.on()), "recv");
    line.meet();
    if (index == 0) side.ranks.reset();
    EXPECT_EQ(never.wait(kPatience).code(), Code::kClosed);
    mustSync(side.stream);
    line.meet();
  }));
}

// --- Said, and refused ---

TEST_P(StagedMessages, ItIsSaid) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(run([](Talker& side, int, const Line& line) {
    const std::string text = side.ranks->explain(side.other);
    for (const char* part :
         {"on streams of GPUs: staged through 262144 bytes of pinned host memory",
          "32768 at a time", "no link between the two reaches GPUs"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    line.meet();
  }));
}

// GPUs of one host without a path to each other; also where one side alone knows of that, because
// the other's GPUs are hidden from it.
TEST(StagedMessagePaths, GpusWithoutAPath) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "GPUs here have a path to each other";
  for (const bool bothKnow : {true, false})
    for (const int knows : {0, 1}) {
      const auto sideOf = [=](int index) {
        return [=](const Line& line) {
          setenv("PEERLANE_STAGING_BYTES", "262144", 1);
          if (bothKnow || index == knows) setenv("SOFTWARE_GPU_NO_PEERS", "1", 1);
          Talker side(index, line);
          const std::string text = side.ranks->explain(side.other);
          EXPECT_NE(text.find("staged through 262144 bytes"), std::string::npos) << text;
          EXPECT_NE(text.find("path"), std::string::npos) << text;
          fill(side.out.data(), kBytes, 5 + static_cast<uint32_t>(index));
          auto group = side.ranks->group();
          group.send(side.other, side.out, 0, kBytes / 2).recv(side.other, side.in, 0, kBytes / 2);
          must(must(group.post(side.on()), "group").wait(kPatience), "wait");
          EXPECT_EQ(wrongWords(side.in.data(), kBytes / 2, 6 - static_cast<uint32_t>(index)), 0u);
          line.meet();
        };
      };
      EXPECT_TRUE(runTwo(sideOf(0), sideOf(1)));
    }
}

TEST_P(StagedMessages, OneSideHasLess) {
  PEERLANE_NEEDS_GPUS(1);
  const std::string links = GetParam();
  const auto sideOf = [&](int index) {
    return [links, index](const Line& line) {
      configure(links, index == 0 ? kStaging : kStaging / 4);
      Talker side(index, line);
      EXPECT_NE(side.ranks->explain(side.other).find("through 65536 bytes"), std::string::npos);
      fill(side.out.data(), kBytes, static_cast<uint32_t>(index));
      auto group = side.ranks->group();
      group.send(side.other, side.out, 0, kBytes).recv(side.other, side.in, 0, kBytes);
      // Of the smaller rings more chunks than a stream takes.
      EXPECT_EQ(group.post(side.on()).status().code(), Code::kNotSupported);
      group.send(side.other, side.out, 0, 1000000).recv(side.other, side.in, 0, 1000000);
      must(must(group.post(side.on()), "group").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(side.in.data(), 1000000, static_cast<uint32_t>(1 - index)), 0u);
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1)));
}

TEST(StagedMessageRefusals, UnderStrict) {
  PEERLANE_NEEDS_GPUS(1);
  const auto sideOf = [](int index) {
    return [index](const Line& line) {
      configure("tcp");
      if (index == 0) setenv("PEERLANE_STRICT", "1", 1);
      Talker side(index, line);
      const Status status = side.ranks->send(side.other, side.out, 0, 8, side.on()).status();
      EXPECT_EQ(status.code(), Code::kNotSupported);
      for (const char* part : {"PEERLANE_STRICT", index == 0 ? "reaches GPUs" : "the other side"})
        EXPECT_NE(status.message().find(part), std::string_view::npos) << status.toString();
      EXPECT_NE(side.ranks->explain(side.other).find("PEERLANE_STRICT"), std::string::npos);
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1)));
}

TEST(StagedMessageRefusals, InAGraph) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runStaged("tcp", [](Talker& side, int, const Line& line) {
    mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeRelaxed), "begin");
    const Status status = side.ranks->send(side.other, side.out, 0, 8, side.on()).status();
    EXPECT_EQ(status.code(), Code::kNotSupported);
    EXPECT_NE(status.message().find("staged through host memory"), std::string_view::npos)
        << status.toString();
    cudaGraph_t graph = nullptr;
    mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
    mustCuda(cudaGraphDestroy(graph), "destroy");
    line.meet();
  }));
}

// What is refused has cost no number.
TEST(StagedMessageRefusals, MoreThanAStreamTakesAndBadInput) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runStaged("tcp", [](Talker& side, int index, const Line& line) {
    const std::vector<MessageBlock> many(400, {&side.out, 0, 4});
    const Status tooMany = side.ranks->sendBatch(side.other, many, side.on()).status();
    EXPECT_EQ(tooMany.code(), Code::kNotSupported);
    for (const char* part :
         {"400 messages", "a stream takes 1000 at once", "PEERLANE_STAGING_BYTES"})
      EXPECT_NE(tooMany.message().find(part), std::string_view::npos) << tooMany.toString();
    std::byte loose[64];
    EXPECT_EQ(
        side.ranks->send(side.other, std::span<const std::byte>(loose), side.on()).status().code(),
        Code::kInvalidArgument);
    EXPECT_EQ(side.ranks->send(side.other, side.out, kBytes, 1, side.on()).status().code(),
              Code::kInvalidArgument);
    MessageOptions ring = side.on();
    ring.protocol = Protocol::kRing;
    EXPECT_EQ(side.ranks->send(side.other, side.out, 0, 8, ring).status().code(),
              Code::kNotSupported);
    fill(side.out.data(), kBytes, 3);
    if (index == 0) {
      must(must(side.ranks->send(1, side.out, 0, 4000, side.on()), "send").wait(kPatience), "wait");
    } else {
      must(must(side.ranks->recv(0, side.in, 0, 4000, side.on()), "recv").wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(side.in.data(), 4000, 3), 0u);
    }
    line.meet();
  }));
}

// A side without a GPU: refused by name, and messages without streams work.
TEST(StagedMessageRefusals, ASideWithoutGpus) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        configure("tcp");
        Talker side(0, line);
        const Status status = side.ranks->send(1, side.out, 0, 8, side.on()).status();
        EXPECT_EQ(status.code(), Code::kNotSupported);
        EXPECT_NE(status.message().find("has no GPUs"), std::string_view::npos)
            << status.toString();
        std::byte letter{1};
        must(must(side.ranks->send(1, std::span<const std::byte>(&letter, 1)), "send")
                 .wait(kPatience),
             "wait");
        line.meet();
      },
      [](const Line& line) {
        configure("tcp");
        const auto context = makeContext({});
        const Peer peer = meetPeer(*context, line, true);
        std::vector<Peer> peers(2);
        peers[0] = peer;
        const auto ranks = must(Communicator::create(*context, peers, 1), "communicator");
        std::byte letter{};
        must(must(ranks->recv(0, std::span(&letter, 1)), "recv").wait(kPatience), "wait");
        EXPECT_EQ(letter, std::byte(1));
        line.meet();
      }));
}

// --- Full queues ---

class StagedMessageQueues : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Queues, StagedMessageQueues, ::testing::Values("ManyQueues", "OneQueue"),
                         [](const auto& tested) { return std::string(tested.param); });

// More receives than the queue in front of a GPU holds, which nobody meets: whoever posts them
// stops, and what ends them, a cancel here and its note there, does not.
TEST_P(StagedMessageQueues, ACancelSetsThemFree) {
  PEERLANE_NEEDS_GPUS(1);
  const bool oneQueue = std::string(GetParam()) == "OneQueue";
  constexpr size_t kMany = 1500;
  const auto sideOf = [oneQueue](int index) {
    return [oneQueue, index](const Line& line) {
      if (oneQueue) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
      configure("tcp");
      Talker side(index, line);
      clear(side.in.data(), kBytes, kUntouched);
      line.meet();
      const Transfer first = must(side.ranks->recv(side.other, side.in, 0, 64, side.on()), "recv");
      std::atomic<size_t> made{0};
      std::vector<Transfer> posted;
      Status refused;
      std::thread poster([&] {
        mustCuda(cudaSetDevice(side.device.index), "cudaSetDevice");
        for (; made < kMany && refused.isOk(); ++made) {
          auto one = side.ranks->recv(side.other, side.in, 0, 64, side.on());
          refused = one.status();
          if (one.isOk()) posted.push_back(std::move(*one));
        }
        made = kMany;
      });
      EXPECT_TRUE(stopsShort(made, kMany));
      line.meet();
      if (index == 0) first.cancel();
      EXPECT_EQ(first.wait(kPatience).code(), Code::kCancelled);
      poster.join();
      EXPECT_EQ(refused.code(), Code::kCancelled) << refused.toString();
      for (const Transfer& each : posted) EXPECT_EQ(each.wait(kPatience).code(), Code::kCancelled);
      mustSync(side.stream);
      EXPECT_TRUE(isUntouched(bytesOf(side.in)));
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1), 120));
}

// As many that are met: they arrive, in their order.
TEST_P(StagedMessageQueues, ManyArrive) {
  PEERLANE_NEEDS_GPUS(1);
  const bool oneQueue = std::string(GetParam()) == "OneQueue";
  constexpr size_t kMany = 1200, kEach = 64;
  const auto sideOf = [oneQueue](int index) {
    return [oneQueue, index](const Line& line) {
      if (oneQueue) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
      configure("tcp");
      Talker side(index, line);
      fill(side.out.data(), kBytes, 6);
      clear(side.in.data(), kBytes, kUntouched);
      line.meet();
      std::vector<Transfer> posted;
      for (size_t i = 0; i < kMany; ++i)
        posted.push_back(must(index == 0
                                  ? side.ranks->send(1, side.out, i * kEach, kEach, side.on())
                                  : side.ranks->recv(0, side.in, i * kEach, kEach, side.on()),
                              "post"));
      for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
      if (index == 1) expectExactly(side.in, side.out, kMany * kEach);
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1), 120));
}

}  // namespace
}  // namespace peerlane::gputest
