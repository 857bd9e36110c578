// SPDX-License-Identifier: Apache-2.0
//
// p2p.h with GPUs: messages and copies of every kind of memory, in two processes, in one, on one
// GPU.
#include <cuda_runtime_api.h>

#include <thread>

#include "tests/gpu/p2p_speaker.h"

namespace peerlane::gputest {
namespace {

using Both = std::function<void(const P2pSpeaker& side)>;
bool speak(const Both& both, P2pKind first = P2P_BIDIRECTIONAL, P2pKind second = P2P_BIDIRECTIONAL,
           int seconds = 60) {
  const auto sideOf = [&both](int index, P2pKind kind) {
    return [&both, index, kind](const Line& line) {
      const P2pSpeaker side(index, line, gpu(index).index, kind);
      both(side);
      line.meet();
    };
  };
  return runTwo(sideOf(0, first), sideOf(1, second), seconds);
}

TEST(P2pDevice, SendsAnySize) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak(
      [](const P2pSpeaker& side) {
        constexpr size_t kMost = (size_t{4} << 20) + 13;
        std::byte* const memory = deviceMemory(kMost + 64);
        uint32_t seed = 1;
        for (const size_t bytes : {size_t{1}, size_t{4}, size_t{1024}, size_t{1025}, size_t{4097},
                                   size_t{72} << 10, (size_t{73} << 10) + 1, kMost}) {
          ++seed;
          // Misaligned at the receiver alone.
          std::byte* const at = memory + (side.index == 0 ? 3 : 0);
          if (side.index == 1) {
            fill(memory, kMost, seed);
            mustP2p(P2PSend(at, bytes, HCCL_DATA_TYPE_UINT8, side.comm, side.stream), "send");
            side.sync();
          } else {
            clear(memory, kMost + 64, 0x5a);
            mustP2p(P2PRecv(at, bytes, HCCL_DATA_TYPE_UINT8, side.comm, side.stream), "recv");
            side.sync();
            std::vector<std::byte> got(kMost + 64), want(kMost);
            mustCuda(cudaMemcpy(got.data(), memory, got.size(), cudaMemcpyDeviceToHost), "copy");
            fill(want.data(), kMost, seed);
            EXPECT_EQ(std::memcmp(got.data() + 3, want.data(), bytes), 0) << bytes;
            EXPECT_EQ(got[2], std::byte{0x5a});
            EXPECT_EQ(got[3 + bytes], std::byte{0x5a}) << bytes;
          }
        }
      },
      P2P_RECEIVER, P2P_SENDER));
}

TEST(P2pDevice, SendsBatches) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    constexpr uint32_t kBlocks = 256;
    constexpr size_t kEach = size_t{71} << 10;
    std::byte* const memory = deviceMemory(kBlocks * kEach);
    std::vector<void*> blocks(kBlocks);
    std::vector<uint64_t> counts(kBlocks, kEach / 4);
    // The receiver's lie the other way round.
    for (uint32_t i = 0; i < kBlocks; ++i)
      blocks[side.index == 0 ? i : kBlocks - 1 - i] = memory + i * kEach;
    for (uint32_t round = 0; round < 3; ++round) {
      if (side.index == 0) {
        for (uint32_t i = 0; i < kBlocks; ++i) fill(memory + i * kEach, kEach, 1000 * round + i);
        mustP2p(P2PSendBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_FP32, kBlocks, side.comm,
                             side.stream),
                "send batch");
        side.sync();
      } else {
        clear(memory, kBlocks * kEach, 0);
        mustP2p(P2PRecvBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_FP32, kBlocks, side.comm,
                             side.stream),
                "recv batch");
        side.sync();
        for (uint32_t i = 0; i < kBlocks; ++i)
          EXPECT_EQ(wrongWords(blocks[i], kEach, 1000 * round + i), 0u) << i;
      }
    }
  }));
}

TEST(P2pDevice, SendsOnEightStreamsOfOneCommunicator) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    constexpr size_t kStreams = 8, kEach = size_t{1} << 18, kRounds = 6;
    std::byte* const memory = deviceMemory(kStreams * kRounds * kEach);
    std::vector<cudaStream_t> streams(kStreams);
    for (cudaStream_t& stream : streams) stream = makeStream();
    clear(memory, kStreams * kRounds * kEach, 0);
    if (side.index == 0)
      for (uint32_t i = 0; i < kStreams * kRounds; ++i) fill(memory + i * kEach, kEach, i);
    mustCuda(cudaDeviceSynchronize(), "sync");
    for (size_t i = 0; i < kStreams * kRounds; ++i) {
      void* const at = memory + i * kEach;
      cudaStream_t const stream = streams[i % kStreams];
      mustP2p(side.index == 0 ? P2PSend(at, kEach, HCCL_DATA_TYPE_INT8, side.comm, stream)
                              : P2PRecv(at, kEach, HCCL_DATA_TYPE_INT8, side.comm, stream),
              "message");
    }
    for (cudaStream_t stream : streams) mustSync(stream);
    mustP2p(P2PCommSynchronize(side.comm, kPatienceMs), "synchronize");
    if (side.index == 1) {
      for (uint32_t i = 0; i < kStreams * kRounds; ++i)
        EXPECT_EQ(wrongWords(memory + i * kEach, kEach, i), 0u) << i;
    }
  }));
}

// Host or device at this side, host or device at the other, read or written: eight directions.
TEST(P2pDevice, CopiesInEightDirections) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak(
      [](const P2pSpeaker& side) {
        constexpr size_t kBytes = (size_t{1} << 20) + 72;
        aclrtStream hostStream = nullptr;
        mustP2p(P2PHostStreamCreate(&hostStream), "host stream");
        void* host = nullptr;
        mustP2p(P2PAllocHostMem(&host, 2 * kBytes, P2P_NUMA_ANY), "host memory");
        std::vector<std::byte> heap(2 * kBytes);
        struct Kind {
          const char* name;
          std::byte* memory;
          bool isDevice;
        };
        const Kind kinds[] = {{"device", deviceMemory(2 * kBytes), true},
                              {"shared host", static_cast<std::byte*>(host), false},
                              {"heap", heap.data(), false}};
        std::vector<P2pSegmentInfo> own(3);
        std::vector<FarSegment> far;
        for (size_t i = 0; i < 3; ++i) {
          const auto enter = kinds[i].isDevice ? P2PRegisterDeviceMem : P2PRegisterHostMem;
          mustP2p(enter(kinds[i].memory, 2 * kBytes, &own[i], P2P_SEGMENT_READ_WRITE), "register");
          far.push_back(exchangeSegments(side.line, own[i], kinds[i].memory));
        }
        uint32_t seed = 10;
        for (size_t near = 0; near < 3; ++near)
          for (size_t there = 0; there < 3; ++there)
            for (const bool isPut : {true, false}) {
              seed += 2;
              const Kind& mine = kinds[near];
              // Side 0 acts; side 1's memory of the other kind is read or written.
              const Kind& touched = side.index == 0 ? mine : kinds[there];
              const bool isSource = (side.index == 0) == isPut;
              if (touched.isDevice)
                clear(touched.memory, 2 * kBytes, 0);
              else
                std::memset(touched.memory, 0, 2 * kBytes);
              if (isSource) fill(touched.memory + 4, kBytes, seed);
              side.line.meet();
              if (side.index == 0) {
                const bool onDevice = mine.isDevice || kinds[there].isDevice;
                const aclrtStream stream = onDevice ? side.stream : hostStream;
                std::byte* const remote = far[there].base + 4;
                mustP2p(isPut ? P2PPut(mine.memory + 4, remote, kBytes, HCCL_DATA_TYPE_UINT8,
                                       side.comm, stream)
                              : P2PGet(remote, mine.memory + 4, kBytes, HCCL_DATA_TYPE_UINT8,
                                       side.comm, stream),
                        "copy");
                side.sync();
              }
              side.line.meet();
              EXPECT_EQ(wrongWords(touched.memory + 4, kBytes, seed), 0u)
                  << (isPut ? "put " : "get ") << mine.name << ", there " << kinds[there].name;
              side.line.meet();
            }
        for (const FarSegment& segment : far) mustP2p(P2PUnimportSegment(segment.info), "unimport");
        for (const P2pSegmentInfo& info : own)
          mustP2p(P2PUnregisterMem(&info, kPatienceMs), "unregister");
        mustP2p(P2PFreeHostMem(host), "free");
        mustP2p(P2PHostStreamDestroy(hostStream), "destroy");
      },
      P2P_BIDIRECTIONAL, P2P_BIDIRECTIONAL, 120));
}

// Of a heap, which is staged, and of memory that is mapped, for reading alone.
void scatterRemoteHostMemory(const P2pSpeaker& side, std::byte* memory, size_t each,
                             uint32_t count) {
  fill(memory, count * each, 5);
  P2pSegmentInfo own;
  mustP2p(P2PRegisterHostMem(memory, count * each, &own, P2P_SEGMENT_READ_ONLY), "register");
  const FarSegment far = exchangeSegments(side.line, own, memory);
  if (side.index == 1) {
    std::byte* const here = deviceMemory(count * each);
    std::vector<void*> pieces(count);
    std::vector<uint64_t> counts(count, each);
    for (uint32_t i = 0; i < count; ++i) pieces[i] = here + (count - 1 - i) * each;
    for (int round = 0; round < 3; ++round) {
      clear(here, count * each, 0);
      mustP2p(P2PScatterFromRemoteHostMem(far.base, pieces.data(), counts.data(),
                                          HCCL_DATA_TYPE_INT8, count, side.comm, side.stream),
              "scatter");
      side.sync();
      for (uint32_t i = 0; i < count; ++i)
        EXPECT_EQ(wrongWords(pieces[i], each, 5, i * each), 0u) << i;
    }
    mustP2p(P2PUnimportSegment(far.info), "unimport");
  }
  side.line.meet();
  mustP2p(P2PUnregisterMem(&own, kPatienceMs), "unregister");
}

TEST(P2pDevice, ScattersRemoteHostMemory) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak(
      [](const P2pSpeaker& side) {
        constexpr uint32_t kPieces = 256;
        constexpr size_t kEach = size_t{71} << 10;
        std::vector<std::byte> heap(kPieces * kEach);
        scatterRemoteHostMemory(side, heap.data(), kEach, kPieces);
        void* shared = nullptr;
        mustP2p(P2PAllocHostMem(&shared, kPieces * kEach, P2P_NUMA_OF_DEVICE), "host memory");
        scatterRemoteHostMemory(side, static_cast<std::byte*>(shared), kEach, kPieces);
        mustP2p(P2PFreeHostMem(shared), "free");
      },
      P2P_SENDER, P2P_RECEIVER));
}

// What was registered behind the user's back is not taken for what is there now.
TEST(P2pDevice, MemoryThatWasFreedIsRegisteredAnew) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    constexpr size_t kBytes = size_t{3} << 20;
    std::byte* last = nullptr;
    for (uint32_t round = 0; round < 12; ++round) {
      std::byte* const memory = deviceMemory(kBytes);
      if (side.index == 0) {
        fill(memory, kBytes, round);
        mustP2p(P2PSend(memory, kBytes, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "send");
        side.sync();
      } else {
        clear(memory, kBytes, 0);
        mustP2p(P2PRecv(memory, kBytes, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "recv");
        side.sync();
        EXPECT_EQ(wrongWords(memory, kBytes, round), 0u)
            << "round " << round << (memory == last ? ", at the same address" : "");
      }
      last = memory;
      mustCuda(cudaFree(memory), "free");
    }
  }));
}

TEST(P2pDevice, HostMemoryOnAStreamOfCudaHasToBeRegistered) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    std::vector<std::byte> heap(size_t{1} << 20);
    const auto transfer = [&] {
      return side.index == 0
                 ? P2PSend(heap.data(), heap.size(), HCCL_DATA_TYPE_INT8, side.comm, side.stream)
                 : P2PRecv(heap.data(), heap.size(), HCCL_DATA_TYPE_INT8, side.comm, side.stream);
    };
    EXPECT_EQ(transfer(), HCCL_E_PARA);
    EXPECT_NE(std::string(P2PGetLastError()).find("P2PRegisterHostMem"), std::string::npos)
        << P2PGetLastError();
    void* pieces[] = {deviceMemory(64), heap.data()};
    uint64_t counts[] = {64, 64};
    EXPECT_EQ(P2PSendBatch(pieces, counts, HCCL_DATA_TYPE_INT8, 2, side.comm, side.stream),
              HCCL_E_PARA);
    EXPECT_NE(std::string(P2PGetLastError()).find("sendBufs[1]: "), std::string::npos)
        << P2PGetLastError();
    if (side.index == 0) fill(heap.data(), heap.size(), 8);
    P2pSegmentInfo info;
    mustP2p(P2PRegisterHostMem(heap.data(), heap.size(), &info, P2P_SEGMENT_READ_WRITE),
            "register");
    const HcclResult result = transfer();
    // The sender's GPU writes the receiver's heap only where it can be mapped; it cannot.
    if (side.index == 1) {
      EXPECT_EQ(result, HCCL_E_NOT_SUPPORT) << P2PGetLastError();
    }
    side.line.meet();
  }));
}

TEST(P2pDevice, TwoThreadsOfOneProcessUseTwoGpusOrOne) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    constexpr size_t kBytes = size_t{2} << 20;
    for (const int second : {gpu(0).index, gpu(1).index}) {
      HcclRootInfo root;
      mustCuda(cudaSetDevice(0), "set device");
      mustCuda(cudaFree(nullptr), "use it");
      mustP2p(P2PGetRootInfo(&root), "root");
      const auto side = [&root](int device, P2pKind kind, uint32_t seed) {
        mustCuda(cudaSetDevice(device), "set device");
        mustCuda(cudaFree(nullptr), "use it");
        // Both may share a GPU, so nothing may wait for all of it once a stream waits for the
        // other.
        std::byte* const memory = deviceMemory(kBytes);
        cudaStream_t stream = makeStream();
        if (kind == P2P_SENDER)
          fill(memory, kBytes, seed);
        else
          clear(memory, kBytes, 0);
        P2PComm comm = nullptr;
        // The first that calls is taken for the root's own side, whose GPU is 0: the other one
        // calls again until that side is there.
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        HcclResult made = HCCL_SUCCESS;
        do {
          made = P2PCommInitRootInfo(&root, kind, P2P_LINK_HCCS, &comm, nullptr);
        } while (made == HCCL_E_PARA && device != 0 && std::chrono::steady_clock::now() < deadline);
        mustP2p(made, "init");
        mustP2p(kind == P2P_SENDER ? P2PSend(memory, kBytes, HCCL_DATA_TYPE_INT8, comm, stream)
                                   : P2PRecv(memory, kBytes, HCCL_DATA_TYPE_INT8, comm, stream),
                "message");
        mustSync(stream);
        mustP2p(P2PCommSynchronize(comm, kPatienceMs), "synchronize");
        if (kind == P2P_RECEIVER) {
          EXPECT_EQ(wrongWords(memory, kBytes, seed), 0u) << "to GPU " << device;
        }
        return comm;
      };
      P2PComm sending = nullptr;
      std::thread sender([&] { sending = side(second, P2P_SENDER, 40); });
      P2PComm receiving = side(0, P2P_RECEIVER, 40);
      sender.join();
      mustP2p(P2PCommDestroy(sending), "destroy");
      mustP2p(P2PCommDestroy(receiving), "destroy");
    }
  }));
}

// Over the network everything of the GPU goes through host memory, and says so.
TEST(P2pDevice, SendsAndCopiesOverTheNetwork) {
  PEERLANE_NEEDS_GPUS(1);
  const auto sideOf = [](int index) {
    return [index](const Line& line) {
      const P2pSpeaker side(index, line, gpu(index).index, P2P_BIDIRECTIONAL, P2P_LINK_ROCE);
      EXPECT_NE(side.route().find("tcp"), std::string::npos);
      EXPECT_NE(side.route().find("staged"), std::string::npos) << side.route();
      constexpr size_t kBytes = (size_t{21} << 20) + 7;  // longer than one message, and the staging
      constexpr uint32_t kBlocks = 500;
      constexpr size_t kEach = size_t{9} << 10;
      std::byte* const memory = deviceMemory(kBytes);
      std::vector<void*> blocks(kBlocks);
      std::vector<uint64_t> counts(kBlocks, kEach);
      for (uint32_t i = 0; i < kBlocks; ++i) blocks[i] = memory + i * kEach;
      if (index == 0) {
        fill(memory, kBytes, 6);
        mustP2p(P2PSend(memory, kBytes, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "send");
        side.sync();
        mustP2p(P2PSendBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_INT8, kBlocks, side.comm,
                             side.stream),
                "send batch");
        side.sync();
      } else {
        clear(memory, kBytes, 0);
        mustP2p(P2PRecv(memory, kBytes, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "recv");
        side.sync();
        EXPECT_EQ(wrongWords(memory, kBytes, 6), 0u);
        clear(memory, kBytes, 0);
        mustP2p(P2PRecvBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_INT8, kBlocks, side.comm,
                             side.stream),
                "recv batch");
        side.sync();
        EXPECT_EQ(wrongWords(memory, kBlocks * kEach, 6), 0u);
      }
      // And memory of the other side.
      P2pSegmentInfo own;
      mustP2p(P2PRegisterDeviceMem(memory, kBytes, &own, P2P_SEGMENT_READ_WRITE), "register");
      const FarSegment far = exchangeSegments(line, own, memory);
      std::byte* const here = deviceMemory(size_t{1} << 20);
      if (index == 1) {
        mustP2p(
            P2PGet(far.base, here, size_t{1} << 20, HCCL_DATA_TYPE_INT8, side.comm, side.stream),
            "get");
        side.sync();
        EXPECT_EQ(wrongWords(here, size_t{1} << 20, 6), 0u);
      }
      line.meet();
      mustP2p(P2PUnimportSegment(far.info), "unimport");
      line.meet();
      mustP2p(P2PUnregisterMem(&own, kPatienceMs), "unregister");
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(sideOf(0), sideOf(1), 120));
}

// One side believes in a link between the GPUs, and has more for staging; the cuts are the same.
TEST(P2pDevice, CutsAlikeWhereOneSideAloneKnowsOfNoPath) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "GPUs here have a path to each other";
  for (const int knows : {0, 1}) {
    const auto sideOf = [knows](int index) {
      return [index, knows](const Line& line) {
        if (index == knows)
          setenv("SOFTWARE_GPU_NO_PEERS", "1", 1);
        else
          setenv("PEERLANE_STAGING_BYTES", "2097152", 1);
        const P2pSpeaker side(index, line, gpu(index).index, P2P_BIDIRECTIONAL, P2P_LINK_AUTO);
        EXPECT_NE(side.route().find("staged"), std::string::npos) << side.route();
        constexpr size_t kLong = (size_t{19} << 20) + 5, kEach = size_t{300} << 10;
        constexpr uint32_t kBlocks = 70;
        std::byte* const memory = deviceMemory(kBlocks * kEach);
        std::vector<void*> blocks(kBlocks);
        std::vector<uint64_t> counts(kBlocks, kEach);
        for (uint32_t i = 0; i < kBlocks; ++i) blocks[i] = memory + i * kEach;
        if (index == 0) {
          fill(memory, kBlocks * kEach, 9);
          mustP2p(P2PSend(memory, kLong, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "send");
          mustP2p(P2PSendBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_INT8, kBlocks,
                               side.comm, side.stream),
                  "send batch");
          side.sync();
        } else {
          clear(memory, kBlocks * kEach, 0);
          mustP2p(P2PRecv(memory, kLong, HCCL_DATA_TYPE_INT8, side.comm, side.stream), "recv");
          side.sync();
          EXPECT_EQ(wrongWords(memory, kLong, 9), 0u);
          mustP2p(P2PRecvBatch(blocks.data(), counts.data(), HCCL_DATA_TYPE_INT8, kBlocks,
                               side.comm, side.stream),
                  "recv batch");
          side.sync();
          EXPECT_EQ(wrongWords(memory, kBlocks * kEach, 9), 0u);
        }
        line.meet();
      };
    };
    EXPECT_TRUE(runTwo(sideOf(0), sideOf(1), 120));
  }
}

// 16384 and more pieces, where the original's graphs overflow.
TEST(P2pDevice, BatchesOfAnySizeGoAtOnce) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    constexpr uint32_t kPieces = 20000;
    constexpr size_t kEach = 1024;
    std::byte* const memory = deviceMemory(kPieces * kEach);
    std::vector<void*> pieces(kPieces);
    std::vector<uint64_t> counts(kPieces, kEach);
    for (uint32_t i = 0; i < kPieces; ++i) pieces[i] = memory + i * kEach;
    if (side.index == 0) {
      fill(memory, kPieces * kEach, 3);
      mustP2p(P2PSendBatch(pieces.data(), counts.data(), HCCL_DATA_TYPE_INT8, kPieces, side.comm,
                           side.stream),
              "send");
    } else {
      clear(memory, kPieces * kEach, 0);
      mustP2p(P2PRecvBatch(pieces.data(), counts.data(), HCCL_DATA_TYPE_INT8, kPieces, side.comm,
                           side.stream),
              "recv");
    }
    side.sync();
    if (side.index == 1) {
      EXPECT_EQ(wrongWords(memory, kPieces * kEach, 3), 0u);
    }
    P2pSegmentInfo own;
    mustP2p(P2PRegisterDeviceMem(memory, kPieces * kEach, &own, P2P_SEGMENT_READ_ONLY), "register");
    const FarSegment far = exchangeSegments(side.line, own, memory);
    if (side.index == 1) {
      std::byte* const here = deviceMemory(kPieces * kEach);
      for (uint32_t i = 0; i < kPieces; ++i) pieces[i] = here + (kPieces - 1 - i) * kEach;
      mustP2p(P2PScatterFromRemoteHostMem(far.base, pieces.data(), counts.data(),
                                          HCCL_DATA_TYPE_INT8, kPieces, side.comm, side.stream),
              "scatter");
      side.sync();
      for (uint32_t i = 0; i < kPieces; i += 997)
        EXPECT_EQ(wrongWords(pieces[i], kEach, 3, i * kEach), 0u) << i;
    }
    side.line.meet();
    mustP2p(P2PUnimportSegment(far.info), "unimport");
    side.line.meet();
    mustP2p(P2PUnregisterMem(&own, kPatienceMs), "unregister");
  }));
}

TEST(P2pDevice, AGpuThatNobodyUsesIsLeftAlone) {
  PEERLANE_NEEDS_GPUS(1);
  const auto side = [](int index) {
    return [index](const Line& line) {
      const P2pSpeaker speaker(index, line, -1);
      uint64_t word = index == 0 ? 17 : 0;
      if (index == 0)
        mustP2p(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, speaker.comm, nullptr), "send");
      else
        mustP2p(P2PRecv(&word, 1, HCCL_DATA_TYPE_INT64, speaker.comm, nullptr), "recv");
      mustP2p(P2PCommSynchronize(speaker.comm, kPatienceMs), "synchronize");
      EXPECT_EQ(word, 17u);
      EXPECT_FALSE(hasContext(0));
      line.meet();
      mustP2p(PrewarmHccp(), "prewarm");
      EXPECT_TRUE(hasContext(0)) << "this opens it";
    };
  };
  EXPECT_TRUE(runTwo(side(0), side(1)));
}

// A copy in a graph is there for every replay: only what runs outside of graphs is waited for.
TEST(P2pDevice, SynchronizeDoesNotWaitForGraphs) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(speak([](const P2pSpeaker& side) {
    constexpr size_t kBytes = size_t{1} << 20;
    std::byte* const memory = deviceMemory(2 * kBytes);
    fill(memory, kBytes, 40 + static_cast<uint32_t>(side.index));
    cudaStream_t stream = nullptr;
    mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    P2pSegmentInfo own;
    mustP2p(P2PRegisterDeviceMem(memory, kBytes, &own, P2P_SEGMENT_READ_ONLY), "register");
    sendBlob(side.line, own);
    sendBlob(side.line, memory);
    const auto far = receiveBlob<P2pSegmentInfo>(side.line);
    auto* const remote = receiveBlob<std::byte*>(side.line);
    mustP2p(P2PImportHostSegment(far), "import");
    const auto get = [&] {
      mustP2p(P2PGet(remote, memory + kBytes, kBytes, HCCL_DATA_TYPE_UINT8, side.comm, stream),
              "get");
    };
    get();  // in a graph all of it is to be known
    mustP2p(P2PCommSynchronize(side.comm, kPatienceMs), "synchronize");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    mustCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
    get();
    mustCuda(cudaStreamEndCapture(stream, &graph), "end");
    mustCuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    clear(memory + kBytes, kBytes, 0);
    mustCuda(cudaGraphLaunch(replay, stream), "launch");
    mustSync(stream);
    EXPECT_EQ(wrongWords(memory + kBytes, kBytes, 41 - static_cast<uint32_t>(side.index)), 0u);
    get();
    mustP2p(P2PCommSynchronize(side.comm, kPatienceMs), "synchronize with a graph");
    mustCuda(cudaGraphExecDestroy(replay), "destroy the executable");
    mustCuda(cudaGraphDestroy(graph), "destroy the graph");
    side.line.meet();
    mustP2p(P2PUnimportSegment(far), "unimport");
    mustP2p(P2PUnregisterMem(&own, kPatienceMs), "unregister");
  }));
}

TEST(P2pDevice, TheRootIsOfTheGpuThatWasChosen) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runOne([](const Line&) {
    HcclRootInfo root;
    mustP2p(P2PGetRootInfo(&root), "root");
    mustCuda(cudaSetDevice(0), "set device");
    mustCuda(cudaFree(nullptr), "use it");
    P2PComm comm = nullptr;
    EXPECT_EQ(P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, nullptr), HCCL_E_PARA);
    EXPECT_NE(std::string(P2PGetLastError()).find("cudaSetDevice"), std::string::npos)
        << P2PGetLastError();
    mustP2p(P2PCancelRootInfo(&root), "cancel");
  }));
}

}  // namespace
}  // namespace peerlane::gputest
