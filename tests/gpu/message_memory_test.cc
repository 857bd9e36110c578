// SPDX-License-Identifier: Apache-2.0
//
// Messages on streams from and to memory of every kind: what arrives, and what is refused by name.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <future>

#include "peerlane/memory/region_table.h"
#include "tests/gpu/talker.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kRoom = size_t{1} << 20;

constexpr Memory kKinds[] = {Memory::kVmm,   Memory::kPrivate, Memory::kShared,
                             Memory::kMemfd, Memory::kHeap,    Memory::kPinned};

// Whether another process can map it.
bool canBeReached(Memory memory) {
  return memory == Memory::kVmm || memory == Memory::kShared || memory == Memory::kMemfd;
}

// The other side's GPU reaches what is received into by put, and what is sent from by get.
struct Refusal {
  bool ofSend = false, ofReceive = false;
};
Refusal refusalOf(Protocol protocol, Memory from, Memory to, size_t bytes) {
  if (bytes <= 1024) return {};
  if (protocol == Protocol::kGet) return {.ofSend = !canBeReached(from)};
  return {.ofReceive = !canBeReached(to)};
}

void expectRefused(const Status& status, const Region& region) {
  EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
  const std::string text(status.message());
  EXPECT_NE(text.find("region " + std::to_string(region.record()->allocation)), std::string::npos)
      << text;
  const std::string& why = region.record()->memory.whyNot;
  EXPECT_NE(text.find(why.empty() ? "private memory of this process" : why), std::string::npos)
      << text;
  EXPECT_NE(text.find("Context::allocate"), std::string::npos) << text;
}

// A region of each kind to send from, and one to receive into.
struct Holdings {
  Holdings(Context& context, Device device) {
    for (const Memory kind : kKinds) {
      out.push_back(makeRegion(context, device, kind, kRoom));
      in.push_back(makeRegion(context, device, kind, kRoom));
    }
  }
  std::vector<Region> out, in;
};

// One message; whoever cannot post it is told so, and the other side does not.
struct Attempt {
  Protocol protocol;
  Memory from, to;
  size_t bytes;
  uint32_t seed;

  static constexpr size_t kFrom = 4096, kTo = 64;

  void send(const Talker& side, const Region& out) const {
    const Refusal refusal = refusalOf(protocol, from, to, bytes);
    if (refusal.ofReceive) return;
    fill(out.data(), kRoom, seed);
    const auto sent = side.ranks->send(side.other, out, kFrom, bytes, options(side));
    if (refusal.ofSend) return expectRefused(sent.status(), out);
    must(must(sent, "send").wait(kPatience), "wait for a send");
  }
  void receive(const Talker& side, const Region& in) const {
    const Refusal refusal = refusalOf(protocol, from, to, bytes);
    if (refusal.ofSend) return;
    fill(in.data(), kRoom, ~seed);
    const auto received = side.ranks->recv(side.other, in, kTo, bytes, options(side));
    if (refusal.ofReceive) return expectRefused(received.status(), in);
    must(must(received, "recv").wait(kPatience), "wait for a receive");
    EXPECT_EQ(wrongWords(in.data() + kTo, bytes, seed, kFrom), 0u);
    EXPECT_EQ(wrongWords(in.data() + kTo + bytes, 256, ~seed, kTo + bytes), 0u) << "behind it";
  }
  MessageOptions options(const Talker& side) const {
    MessageOptions chosen = side.on();
    chosen.protocol = protocol;
    return chosen;
  }
};

class MessageMemory : public ::testing::TestWithParam<Protocol> {};

// All pairs of kinds, both ways, small and long, fresh and known.
TEST_P(MessageMemory, EveryPair) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth(
      [](Talker& side, int index, const Line& line) {
        const Holdings mine(*side.context, side.device);
        uint32_t seed = 0;
        for (size_t from = 0; from < std::size(kKinds); ++from)
          for (size_t to = 0; to < std::size(kKinds); ++to)
            for (const size_t bytes : {size_t{8}, size_t{1024}, size_t{1028}, size_t{300004}})
              for (const int sender : {0, 1}) {
                SCOPED_TRACE(nameOf(kKinds[from]) + " to " + nameOf(kKinds[to]) + ", " +
                             std::to_string(bytes) + " bytes from rank " + std::to_string(sender));
                const Attempt attempt{GetParam(), kKinds[from], kKinds[to], bytes, ++seed};
                if (index == sender)
                  attempt.send(side, mine.out[from]);
                else
                  attempt.receive(side, mine.in[to]);
              }
        line.meet();
      },
      120));
}

INSTANTIATE_TEST_SUITE_P(Protocols, MessageMemory,
                         ::testing::Values(Protocol::kPut, Protocol::kGet), [](const auto& tested) {
                           return std::string(tested.param == Protocol::kGet ? "Get" : "Put");
                         });

// What is pinned for messages under way stays until they have ended, and not longer.
TEST(MessageMemoryPins, UnregisterWaitsForMessages) {
  PEERLANE_NEEDS_GPUS(1);
  for (const Memory kind : {Memory::kHeap, Memory::kMemfd})
    EXPECT_TRUE(runBoth([kind](Talker& side, int index, const Line& line) {
      const Attempt small{Protocol::kGet, Memory::kVmm, kind, 1000, 0};
      constexpr size_t kLong = 300004;
      if (index == 1) {
        fill(side.out.data(), kRoom, 5);
        ASSERT_EQ(line.receive(), "now");
        must(side.ranks->send(0, side.out, 0, 1000, small.options(side)), "send");
        must(side.ranks->send(0, side.out, 4096, kLong, small.options(side)), "send");
        mustSync(side.stream);
        line.meet();
        return;
      }
      const Region region = makeRegion(*side.context, side.device, kind, kRoom);
      const Transfer first =
          must(side.ranks->recv(1, region, 0, 1000, small.options(side)), "recv");
      const Transfer second =
          must(side.ranks->recv(1, region, 4096, kLong, small.options(side)), "recv");
      const Status early = side.context->unregister(region, std::chrono::milliseconds(50));
      EXPECT_EQ(early.code(), Code::kTimeout) << early.toString();
      EXPECT_EQ(cudaHostRegister(region.data(), kRoom, cudaHostRegisterDefault),
                cudaErrorHostMemoryAlreadyRegistered);
      (void)cudaGetLastError();
      EXPECT_EQ(side.ranks->recv(1, region, 0, 8, side.on()).status().code(), Code::kClosed);
      line.send("now");
      must(first.wait(kPatience), "wait");
      must(second.wait(kPatience), "wait");
      EXPECT_EQ(wrongWords(region.data(), 1000, 5), 0u);
      EXPECT_EQ(wrongWords(region.data() + 4096, kLong, 5, 4096), 0u);
      must(side.context->unregister(region, kPatience), "unregister");
      mustCuda(cudaHostRegister(region.data(), kRoom, cudaHostRegisterDefault), "pinned anew");
      mustCuda(cudaHostUnregister(region.data()), "cudaHostUnregister");
      line.meet();
    }));
}

// The same memory, registered again and again: each time the other side pins it and lets it go.
TEST(MessageMemoryPins, TakenBackAndGivenAgain) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    std::byte* const memory = mapMemfd(kRoom);
    for (uint32_t round = 1; round < 10; ++round) {
      const Region region =
          must(side.context->registerRegion(memory, kRoom, Access::kRemoteReadWrite), "register");
      for (const Protocol protocol : {Protocol::kPut, Protocol::kGet}) {
        const uint32_t seed = 2 * round + (protocol == Protocol::kGet ? 1 : 0);
        const Attempt attempt{protocol, Memory::kMemfd, Memory::kMemfd, 300004, seed};
        if (index == 0)
          attempt.send(side, region);
        else
          attempt.receive(side, region);
      }
      must(side.context->unregister(region, kPatience), "unregister");
      line.meet();
    }
  }));
}

// In a graph, both ways in one group: replayed with other bytes each time. `own`: of the end whose
// GPU copies, which alone may be private.
struct Captured {
  Protocol protocol;
  Memory own, other;
};
class MessageMemoryInGraphs : public ::testing::TestWithParam<Captured> {};

TEST_P(MessageMemoryInGraphs, Replayed) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth(
      [](Talker& side, int index, const Line& line) {
        constexpr size_t kSmall = 256, kLarge = 50000;
        const Captured& tested = GetParam();
        const bool byGet = tested.protocol == Protocol::kGet;
        const auto make = [&](Memory memory) {
          return makeRegion(*side.context, side.device, memory, kRoom);
        };
        const Region out = make(byGet ? tested.other : tested.own);
        const Region in = make(byGet ? tested.own : tested.other);
        must(side.ranks->prepare(side.other, {byGet ? &out : &in, 1}), "prepare");
        mustCuda(cudaStreamBeginCapture(side.stream, cudaStreamCaptureModeThreadLocal), "begin");
        auto group = side.ranks->group();
        group.send(side.other, out, 0, kSmall).send(side.other, out, kSmall, kLarge);
        group.recv(side.other, in, 0, kSmall).recv(side.other, in, kSmall, kLarge);
        const Transfer captured = must(group.post(side.on()), "captured group");
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        mustCuda(cudaStreamEndCapture(side.stream, &graph), "end");
        mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        mustCuda(cudaGraphDestroy(graph), "destroy");
        for (uint32_t replay = 0; replay < 40; ++replay) {
          fill(out.data(), kSmall + kLarge, 2 * replay + static_cast<uint32_t>(index));
          mustCuda(cudaGraphLaunch(executable, side.stream), "launch");
          mustSync(side.stream);
          EXPECT_EQ(wrongWords(in.data(), kSmall + kLarge, 2 * replay + side.other), 0u) << replay;
          line.meet();
        }
        mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
        line.meet();
      },
      60, Memory::kVmm, kBytes, {.protocol = GetParam().protocol}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, MessageMemoryInGraphs,
                         ::testing::Values(Captured{Protocol::kPut, Memory::kHeap, Memory::kShared},
                                           Captured{Protocol::kGet, Memory::kHeap, Memory::kShared},
                                           Captured{Protocol::kPut, Memory::kPrivate, Memory::kVmm},
                                           Captured{Protocol::kGet, Memory::kPrivate,
                                                    Memory::kShared}),
                         [](const auto& tested) {
                           return nameOf(tested.param.own) + nameOf(tested.param.other) +
                                  (tested.param.protocol == Protocol::kGet ? "Get" : "Put");
                         });

// In one process nothing has to be exported.
TEST(MessageMemoryInOneProcess, ReachesEverything) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    const Device device = gpu(0);
    const auto here = makeContext({device}), there = makeContext({device});
    const Holdings mine(*here, device), theirs(*there, device);
    const Peer toThere = must(here->connect(there->ticket(), kPatience), "connect");
    const Peer toHere = must(there->accept(kPatience), "accept");
    const auto meet = [](Context& context, const Peer& peer, Rank own) {
      std::vector<Peer> peers(2);
      peers[1 - own] = peer;
      return must(Communicator::create(context, peers, own), "communicator");
    };
    auto other = std::async(std::launch::async, [&] { return meet(*there, toHere, 1); });
    const auto ranks = meet(*here, toThere, 0), others = other.get();
    MessageOptions sending, receiving;
    sending.deviceStream = DeviceStream::cuda(makeStream());
    receiving.deviceStream = DeviceStream::cuda(makeStream());
    uint32_t seed = 0;
    for (size_t from = 0; from < std::size(kKinds); ++from)
      for (size_t to = 0; to < std::size(kKinds); ++to) {
        SCOPED_TRACE(nameOf(kKinds[from]) + " to " + nameOf(kKinds[to]));
        const Region& out = mine.out[from];
        const Region& in = theirs.in[to];
        fill(out.data(), kRoom, ++seed);
        for (const Protocol protocol : {Protocol::kPut, Protocol::kGet}) {
          fill(in.data(), kRoom, ~seed);
          sending.protocol = receiving.protocol = protocol;
          const auto sent = must(ranks->send(1, out, 0, kRoom, sending), "send");
          must(must(others->recv(0, in, 0, kRoom, receiving), "recv").wait(kPatience), "wait");
          must(sent.wait(kPatience), "wait for a send");
          EXPECT_EQ(wrongWords(in.data(), kRoom, seed), 0u);
        }
      }
  }));
}

// What can never be reached is said by prepare(), and costs nothing.
TEST(MessageMemoryPrepared, OutOfReach) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    for (const Memory kind : {Memory::kHeap, Memory::kPrivate}) {
      const Region fixed = makeRegion(*side.context, side.device, kind, kRoom);
      const Region both[] = {side.in, fixed};
      expectRefused(side.ranks->prepare(side.other, both), fixed);
    }
    const Attempt after{Protocol::kPut, Memory::kVmm, Memory::kVmm, 300004, 3};
    if (index == 0)
      after.send(side, side.out);
    else
      after.receive(side, side.in);
    line.meet();
  }));
}

// In the environment of side 0, or of both, before they have threads.
struct Setting {
  const char* name = nullptr;
  const char* value = "1";
  bool isForBoth = false;
  void apply(int index) const {
    if (name != nullptr && (index == 0 || isForBoth)) setenv(name, value, 1);
  }
};

// A send by rank 0 into `region` of rank 1, which rank 0 finds out that it cannot reach: both sides
// are told, the owner by name. Whichever was first: a later post is told as well.
void expectUnreachable(const Talker& side, const Region& region, Code code,
                       const std::string& why) {
  const auto posted = side.other == 1 ? side.ranks->send(1, side.out, 0, kRoom, side.on())
                                      : side.ranks->recv(0, region, 0, kRoom, side.on());
  const Status status = posted.isOk() ? posted->wait(kPatience) : posted.status();
  const std::string text = status.toString();
  EXPECT_EQ(status.code(), code) << text;
  const std::string expected =
      side.other == 1 ? why : "region " + std::to_string(region.record()->allocation);
  EXPECT_NE(text.find(expected), std::string::npos) << text;
}

bool runRefused(const Setting& setting, Memory memory, Code code, const std::string& why) {
  const auto sideOf = [&](int index) {
    return [&, index](const Line& line) {
      setting.apply(index);
      const Talker side(index, line);
      const Region region = makeRegion(*side.context, side.device, memory, kRoom);
      line.meet();
      expectUnreachable(side, region, code, why);
      line.meet();
    };
  };
  return runTwo(sideOf(0), sideOf(1));
}

TEST(MessageMemoryRefused, HandlesThatCannotBeOpened) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs IPC handles that are refused";
  EXPECT_TRUE(runRefused({"SOFTWARE_GPU_IPC", "refused"}, Memory::kMalloc, Code::kSystem,
                         "cudaIpcOpenMemHandle"));
}

// Its user has told the other side to map no memory.
TEST(MessageMemoryRefused, HostMemoryThatIsNotMapped) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runRefused({"PEERLANE_SHM_ENGINE", "ring"}, Memory::kShared, Code::kNotSupported,
                         "is not mapped"));
}

// --- Contexts of two GPUs ---

// One side, with two GPUs; the sides have them in opposite orders.
struct TwoGpus {
  TwoGpus(int index, const Line& line)
      : devices{gpu(index), gpu(1 - index)},
        context(makeContext({devices[0], devices[1]})),
        peer(meetPeer(*context, line, index == 1)),
        other(static_cast<Rank>(1 - index)) {
    std::vector<Peer> peers(2);
    peers[other] = peer;
    ranks = must(Communicator::create(*context, peers, static_cast<Rank>(index)), "communicator");
    for (size_t i = 0; i < 2; ++i) {
      use(i);
      streams[i] = makeStream();
    }
  }
  void use(size_t which) const { mustCuda(cudaSetDevice(devices[which].index), "cudaSetDevice"); }
  Region make(size_t which, Memory memory) const {
    use(which);
    return makeRegion(*context, devices[which], memory, kRoom);
  }
  MessageOptions on(size_t which, Protocol protocol) const {
    MessageOptions options;
    options.deviceStream = DeviceStream::cuda(streams[which]);
    options.protocol = protocol;
    return options;
  }

  const Device devices[2];
  const std::unique_ptr<Context> context;
  const Peer peer;
  const Rank other;
  std::unique_ptr<Communicator> ranks;
  cudaStream_t streams[2];
};

using BothOfTwo = std::function<void(const TwoGpus& side, int index, const Line& line)>;
bool runTwoGpus(const BothOfTwo& both, const Setting& setting = {}) {
  const auto sideOf = [&](int index) {
    return [&both, &setting, index](const Line& line) {
      setting.apply(index);
      const TwoGpus side(index, line);
      both(side, index, line);
    };
  };
  return runTwo(sideOf(0), sideOf(1), 120);
}

class MessageMemoryOfTwoGpus : public ::testing::TestWithParam<Memory> {};

// From either GPU's memory on either GPU's stream to either, in one order of posting.
TEST_P(MessageMemoryOfTwoGpus, EveryWay) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwoGpus([](const TwoGpus& side, int index, const Line& line) {
    const Region out[] = {side.make(0, GetParam()), side.make(1, GetParam())};
    const Region in[] = {side.make(0, GetParam()), side.make(1, GetParam())};
    uint32_t seed = 0;
    for (const Protocol protocol : {Protocol::kPut, Protocol::kGet})
      for (const size_t bytes : {size_t{300004}, size_t{8}, size_t{1000}})
        for (size_t way = 0; way < 32; ++way) {
          const size_t from = way & 1, fromOn = way >> 1 & 1, to = way >> 2 & 1,
                       toOn = way >> 3 & 1;
          SCOPED_TRACE(std::to_string(bytes) + " bytes, way " + std::to_string(way));
          ++seed;
          if (index == static_cast<int>(way >> 4)) {
            side.use(from);  // some memory is open to its own GPU alone
            fill(out[from].data(), kRoom, seed);
            const auto sent =
                side.ranks->send(side.other, out[from], 4096, bytes, side.on(fromOn, protocol));
            must(must(sent, "send").wait(kPatience), "wait for a send");
          } else {
            side.use(to);
            fill(in[to].data(), kRoom, ~seed);
            const auto received =
                side.ranks->recv(side.other, in[to], 64, bytes, side.on(toOn, protocol));
            must(must(received, "recv").wait(kPatience), "wait for a receive");
            EXPECT_EQ(wrongWords(in[to].data() + 64, bytes, seed, 4096), 0u);
          }
        }
    line.meet();
  }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, MessageMemoryOfTwoGpus,
                         ::testing::Values(Memory::kVmm, Memory::kMalloc, Memory::kPool,
                                           Memory::kChunks, Memory::kShared),
                         [](const auto& tested) { return nameOf(tested.param); });

// On both GPUs' streams at once, without waiting for each: numbers are in the order of posting.
TEST(MessageMemoryOnTwoGpus, StreamsAtOnce) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwoGpus([](const TwoGpus& side, int index, const Line& line) {
    const Region memory = side.make(1, Memory::kVmm);
    constexpr size_t kMessages = 60, kLong = 5000, kShort = 500;
    fill(memory.data(), kRoom, index == 0 ? 7 : 0);
    for (size_t i = 0; i < kMessages; ++i) {
      const size_t bytes = i % 3 == 0 ? kLong : kShort;
      const MessageOptions options = side.on(i % 2, Protocol::kPut);
      if (index == 0)
        must(side.ranks->send(1, memory, i * kLong, bytes, options), "send");
      else
        must(side.ranks->recv(0, memory, i * kLong, bytes, options), "recv");
    }
    for (size_t i = 0; i < 2; ++i) {
      side.use(i);
      mustSync(side.streams[i]);
    }
    for (size_t i = 0; i < kMessages; ++i)
      EXPECT_EQ(wrongWords(memory.data() + i * kLong, i % 3 == 0 ? kLong : kShort, 7, i * kLong),
                0u)
          << i;
    line.meet();
  }));
}

// Lists of pieces in the memory of both, on the streams of either.
TEST(MessageMemoryOnTwoGpus, Lists) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwoGpus([](const TwoGpus& side, int index, const Line& line) {
    const Region regions[] = {side.make(0, Memory::kVmm), side.make(1, Memory::kVmm),
                              side.make(0, Memory::kMalloc), side.make(1, Memory::kShared)};
    for (uint32_t way = 0; way < 16; ++way) {
      constexpr size_t kPieces = 40, kEach = 3000;
      std::vector<MessageBlock> blocks;
      for (size_t i = 0; i < kPieces; ++i) {
        const size_t region = index == 0 ? i % 4 : (i + way) % 4;
        blocks.push_back({&regions[region], i * kEach, kEach});
      }
      for (size_t i = 0; i < 4; ++i) {
        side.use(i % 2);
        fill(regions[i].data(), kRoom, index == 0 ? 100 * way : 7);
      }
      const MessageOptions options = side.on(way >> index & 1, Protocol::kPut);
      const auto posted = index == static_cast<int>(way >> 3)
                              ? side.ranks->sendList(side.other, blocks, options)
                              : side.ranks->recvList(side.other, blocks, options);
      must(must(posted, "post").wait(kPatience), "wait");
      for (const MessageBlock& block : blocks) {
        if (index == static_cast<int>(way >> 3)) break;
        side.use(block.region == &regions[1] || block.region == &regions[3] ? 1 : 0);
        const uint32_t seed = index == 1 ? 100 * way : 7;
        EXPECT_EQ(wrongWords(block.region->data() + block.offset, kEach, seed, block.offset), 0u)
            << way;
      }
      line.meet();
    }
  }));
}

// The second GPU's stream is captured, for memory of both.
TEST(MessageMemoryOnTwoGpus, InAGraphOfTheSecond) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwoGpus([](const TwoGpus& side, int index, const Line& line) {
    constexpr size_t kSmall = 256, kLarge = 50000;
    const Region out = side.make(0, Memory::kVmm), in = side.make(1, Memory::kVmm);
    must(side.ranks->prepare(side.other, {&in, 1}), "prepare");
    side.use(1);
    mustCuda(cudaStreamBeginCapture(side.streams[1], cudaStreamCaptureModeThreadLocal), "begin");
    auto group = side.ranks->group();
    group.send(side.other, out, 0, kSmall).send(side.other, out, kSmall, kLarge);
    group.recv(side.other, in, 0, kSmall).recv(side.other, in, kSmall, kLarge);
    must(group.post(side.on(1, Protocol::kPut)), "captured group");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    mustCuda(cudaStreamEndCapture(side.streams[1], &graph), "end");
    mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    mustCuda(cudaGraphDestroy(graph), "destroy");
    for (uint32_t replay = 0; replay < 40; ++replay) {
      fill(out.data(), kSmall + kLarge, 2 * replay + static_cast<uint32_t>(index));
      mustCuda(cudaGraphLaunch(executable, side.streams[1]), "launch");
      mustSync(side.streams[1]);
      EXPECT_EQ(wrongWords(in.data(), kSmall + kLarge, 2 * replay + side.other), 0u) << replay;
      line.meet();
    }
    mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
    line.meet();
  }));
}

// GPUs without a path to each other: refused by name, and nothing is broken.
TEST(MessageMemoryOnTwoGpus, WithoutAPath) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs without a path to each other";
  EXPECT_TRUE(runTwoGpus(
      [](const TwoGpus& side, int index, const Line& line) {
        const Region near = side.make(0, Memory::kMalloc), far = side.make(1, Memory::kMalloc);
        const std::string second = side.devices[1].toString();
        const auto expect = [](const Status& status, const std::string& name) {
          EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
          EXPECT_NE(status.toString().find(name), std::string::npos) << status.toString();
        };
        expect(side.ranks->send(side.other, far, 0, 8, side.on(0, Protocol::kPut)).status(),
               "region " + std::to_string(far.record()->allocation));
        for (const Region* region : {&near, &far})
          expect(side.ranks->send(side.other, *region, 0, 8, side.on(1, Protocol::kPut)).status(),
                 "streams of " + second);
        if (index == 0) {
          must(must(side.ranks->send(1, near, 0, 8, side.on(0, Protocol::kPut)), "send")
                   .wait(kPatience),
               "wait");
        } else {
          must(must(side.ranks->recv(0, near, 0, 8, side.on(0, Protocol::kPut)), "recv")
                   .wait(kPatience),
               "wait");
        }
        line.meet();
      },
      Setting{"SOFTWARE_GPU_NO_PEERS", "1", /*isForBoth=*/true}));
}

// A region of the other side that one of two GPUs cannot open: known before that GPU is used, its
// posts are refused; else both sides are told.
TEST(MessageMemoryOnTwoGpus, OpenedForOneOnly) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "needs IPC handles that are refused";
  for (const bool isKnown : {true, false})
    EXPECT_TRUE(runTwoGpus(
        [isKnown](const TwoGpus& side, int index, const Line& line) {
          const Region region = side.make(0, Memory::kMalloc), plain = side.make(0, Memory::kVmm);
          const auto post = [&](const Region& memory, size_t stream, size_t bytes) {
            const auto options = side.on(stream, Protocol::kPut);
            const auto posted = index == 0 ? side.ranks->send(1, plain, 0, bytes, options)
                                           : side.ranks->recv(0, memory, 0, bytes, options);
            return posted.isOk() ? posted->wait(kPatience) : posted.status();
          };
          if (isKnown)
            must(post(region, 0, kRoom), "by the first");
          else
            must(post(plain, 1, 8), "by the second");
          line.meet();
          if (isKnown && index == 1) return line.meet();
          const Status status = post(region, 1 - static_cast<size_t>(index), kRoom);
          EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
          const std::string name = index == 0
                                       ? "could not be opened for cuda:1"
                                       : "region " + std::to_string(region.record()->allocation);
          EXPECT_NE(status.toString().find(name), std::string::npos) << status.toString();
          line.meet();
        },
        Setting{"SOFTWARE_GPU_IPC", "refused-on-1"}));
}

// More regions one after the other than the second GPU can know at a time.
TEST(MessageMemoryOnTwoGpus, ForgottenByTheSecond) {
  PEERLANE_NEEDS_GPUS(2);
  EXPECT_TRUE(runTwoGpus([](const TwoGpus& side, int index, const Line& line) {
    const Region source = side.make(1, Memory::kVmm);
    std::byte* const memory = mapMemfd(kRoom);
    for (uint32_t round = 0; round < 300; ++round) {
      const MessageOptions options = side.on(1, Protocol::kPut);
      if (index == 0) {
        must(must(side.ranks->send(1, source, 0, 2000, options), "send").wait(kPatience), "wait");
      } else {
        const Region region =
            must(side.context->registerRegion(memory, 4096, Access::kRemoteReadWrite), "register");
        must(must(side.ranks->recv(0, region, 0, 2000, options), "recv").wait(kPatience), "wait");
        must(side.context->unregister(region, kPatience), "unregister");
      }
      line.meet();  // a send that waits would keep the region
    }
  }));
}

}  // namespace
}  // namespace peerlane::gputest
