// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: registered host memory, put and get, in every form of list.
#include <algorithm>
#include <thread>

#include "tests/p2p/p2p_pair.h"

namespace peerlane::p2p_test {
namespace {

// Memory of the far side, registered there and imported here.
struct FarMemory {
  explicit FarMemory(size_t size, P2pSegmentPermissions permissions = P2P_SEGMENT_READ_WRITE)
      : bytes(pattern(size, 77)) {
    EXPECT_EQ(P2PRegisterHostMem(bytes.data(), size, &info, permissions), HCCL_SUCCESS)
        << P2PGetLastError();
    EXPECT_EQ(P2PImportHostSegment(info), HCCL_SUCCESS) << P2PGetLastError();
  }
  ~FarMemory() {
    (void)P2PUnimportSegment(info);
    EXPECT_EQ(P2PUnregisterMem(&info, kSoonMs), HCCL_SUCCESS) << P2PGetLastError();
  }
  uint8_t* at(size_t offset) { return bytes.data() + offset; }

  std::vector<uint8_t> bytes;
  P2pSegmentInfo info{};
};

TEST(P2pMemory, IsReadByTheOtherSide) {
  FarMemory far(1 << 20);
  const Pair pair(sender(), receiver());
  std::vector<uint8_t> got(72 << 10);
  P2P_OK(P2PGetRemoteHostMem(far.at(4097), got.data(), got.size(), HCCL_DATA_TYPE_UINT8,
                             pair.client(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), far.at(4097)));
}

TEST(P2pMemory, IsFoundWhenItIsRegisteredBehindTheMeeting) {
  const Pair pair;
  FarMemory far(1 << 16);
  std::vector<uint8_t> got(far.bytes.size());
  P2P_OK(P2PGet(far.at(0), got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(got, far.bytes);
}

TEST(P2pMemory, IsScattered) {
  FarMemory far(256 * 1024);
  const Pair pair;
  std::vector<std::vector<uint8_t>> pieces;
  std::vector<void*> pointers;
  std::vector<uint64_t> counts;
  size_t sum = 0;
  for (size_t i = 0; i < 31; ++i) {
    counts.push_back(1 + i * 97);
    sum += counts.back();
    pieces.emplace_back(counts.back());
  }
  for (auto& piece : pieces) pointers.push_back(piece.data());
  P2P_OK(P2PScatterFromRemoteHostMem(far.at(11), pointers.data(), counts.data(),
                                     HCCL_DATA_TYPE_UINT8, 31, pair.client(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
  size_t offset = 11;
  for (const auto& piece : pieces) {
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), far.at(offset)));
    offset += piece.size();
  }
  EXPECT_EQ(offset, sum + 11);
}

TEST(P2pMemory, IsScatteredByTheBatchAndNobodyHasToSayDone) {
  FarMemory far(1 << 20);
  const Pair pair;
  std::vector<uint8_t> got(far.bytes.size());
  constexpr uint32_t kEntries = 20, kEach = 8;
  const size_t block = far.bytes.size() / kEntries / kEach;
  std::vector<std::vector<void*>> pointers(kEntries);
  std::vector<std::vector<uint64_t>> counts(kEntries);
  std::vector<P2pScatterEntry> entries(kEntries);
  for (uint32_t e = 0; e < kEntries; ++e) {
    for (uint32_t i = 0; i < kEach; ++i) {
      pointers[e].push_back(got.data() + (e * kEach + (kEach - 1 - i)) * block);
      counts[e].push_back(block);
    }
    entries[e] = {far.at(e * kEach * block), pointers[e].data(), counts[e].data(),
                  HCCL_DATA_TYPE_INT8, kEach};
  }
  for (int again = 0; again < 8; ++again) {  // the original is out of buffers at the second
    std::fill(got.begin(), got.end(), uint8_t{0});
    P2P_OK(P2PScatterBatchFromRemoteHostMem(entries.data(), kEntries, pair.root(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
    for (uint32_t e = 0; e < kEntries; ++e)
      for (uint32_t i = 0; i < kEach; ++i)
        ASSERT_EQ(std::memcmp(pointers[e][i], far.at((e * kEach + i) * block), block), 0);
  }
  P2P_OK(P2PScatterBatchFromRemoteHostMemDone(pair.root()));
}

TEST(P2pMemory, EveryOtherListGoesToo) {
  FarMemory far(64 * 1024);
  const Pair pair;
  const auto original = far.bytes;
  auto here = pattern(64 * 1024, 5);
  // Pieces here into a contiguous range there.
  std::vector<void*> pointers{here.data() + 1000, here.data(), here.data() + 5000};
  std::vector<uint64_t> counts{100, 200, 300};
  P2pScatterEntry entry{far.at(10), pointers.data(), counts.data(), HCCL_DATA_TYPE_UINT8, 3};
  P2P_OK(P2PGatherBatchToRemoteMem(&entry, 1, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(std::memcmp(far.at(10), here.data() + 1000, 100), 0);
  EXPECT_EQ(std::memcmp(far.at(110), here.data(), 200), 0);
  EXPECT_EQ(std::memcmp(far.at(310), here.data() + 5000, 300), 0);
  EXPECT_EQ(*far.at(610), original[610]);
  // A contiguous range here into pieces there.
  pointers = {far.at(20000), far.at(30000)};
  counts = {1000, 7};
  entry = {here.data() + 3, pointers.data(), counts.data(), HCCL_DATA_TYPE_UINT8, 2};
  P2P_OK(P2PScatterBatchToRemoteMem(&entry, 1, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(std::memcmp(far.at(20000), here.data() + 3, 1000), 0);
  EXPECT_EQ(std::memcmp(far.at(30000), here.data() + 1003, 7), 0);
  // Pieces there into a contiguous range here.
  P2P_OK(P2PGatherBatchFromRemoteMem(&entry, 1, pair.root(), nullptr));
  // And lists of pairs.
  std::vector<uint8_t> got(512);
  const P2pCopyEntry gets[] = {{got.data(), far.at(40000), 256},
                               {got.data() + 256, far.at(1), 256}};
  P2P_OK(P2PGetBatch(gets, 2, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(std::memcmp(here.data() + 3, far.at(20000), 1000), 0);
  EXPECT_EQ(std::memcmp(got.data(), far.at(40000), 256), 0);
  EXPECT_EQ(std::memcmp(got.data() + 256, far.at(1), 256), 0);
  const P2pCopyEntry puts[] = {{got.data(), far.at(50000), 256}, {here.data(), far.at(51000), 1}};
  P2P_OK(P2PPutBatch(puts, 2, pair.root(), nullptr));
  P2P_OK(P2PPut(here.data(), far.at(60000), 10, HCCL_DATA_TYPE_INT128, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(std::memcmp(far.at(50000), got.data(), 256), 0);
  EXPECT_EQ(*far.at(51000), here[0]);
  EXPECT_EQ(std::memcmp(far.at(60000), here.data(), 160), 0);
}

TEST(P2pMemory, RightsHold) {
  FarMemory readable(4096, P2P_SEGMENT_READ_ONLY), writable(4096, P2P_SEGMENT_WRITE_ONLY);
  const Pair pair;
  uint8_t byte = 1;
  EXPECT_EQ(P2PPut(&byte, readable.at(0), 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr),
            HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("P2P_SEGMENT_READ_ONLY, so it cannot be written"),
            std::string::npos);
  EXPECT_EQ(P2PGet(writable.at(0), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr),
            HCCL_E_PARA);
  P2P_OK(P2PGet(readable.at(0), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PPut(&byte, writable.at(9), 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
}

TEST(P2pMemory, WhatIsNotImportedIsRefused) {
  FarMemory far(4096);
  const Pair pair;
  uint8_t byte = 0;
  EXPECT_EQ(P2PGet(far.at(4096), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr),
            HCCL_E_NOT_FOUND);
  EXPECT_NE(std::string(P2PGetLastError()).find("imported"), std::string::npos);
  std::vector<uint8_t> got(4096);
  EXPECT_EQ(P2PGet(far.at(1), got.data(), 4096, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr),
            HCCL_E_PARA);
  P2P_OK(P2PUnimportSegment(far.info));
  EXPECT_EQ(P2PGet(far.at(0), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr),
            HCCL_E_NOT_FOUND);
  EXPECT_EQ(P2PUnimportSegment(far.info), HCCL_E_NOT_FOUND);
  P2P_OK(P2PImportHostSegment(far.info));
  P2P_OK(P2PImportHostSegment(far.info)) << "the original calls the second time an error";
  P2P_OK(P2PGet(far.at(0), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  P2pSegmentInfo damaged = far.info;
  damaged.internal[0] ^= 1;
  EXPECT_EQ(P2PImportHostSegment(damaged), HCCL_E_PARA);
  EXPECT_EQ(P2PUnregisterMem(&damaged, 1), HCCL_E_PARA);
}

TEST(P2pMemory, UnregisteredIsNotReachedAnyMore) {
  auto memory = pattern(1 << 16, 3);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(memory.data(), memory.size(), &info, P2P_SEGMENT_READ_WRITE));
  P2P_OK(P2PImportHostSegment(info));
  const Pair pair;
  uint8_t byte = 0;
  P2P_OK(P2PGet(memory.data(), &byte, 1, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  P2P_OK(P2PUnregisterMem(&info, kSoonMs));
  EXPECT_EQ(P2PUnregisterMem(&info, kSoonMs), HCCL_E_NOT_FOUND);
  const auto get = [&](P2PComm comm) {
    return P2PGet(memory.data(), &byte, 1, HCCL_DATA_TYPE_UINT8, comm, nullptr);
  };
  EXPECT_EQ(get(pair.root()), HCCL_E_NOT_FOUND);
  EXPECT_NE(std::string(P2PGetLastError()).find("was unregistered by the process that it is of"),
            std::string::npos)
      << P2PGetLastError();
  EXPECT_EQ(get(pair.root()), HCCL_E_NOT_FOUND) << "also when the other side is asked anew";
  EXPECT_NE(std::string(P2PGetLastError()).find("is not registered there (any more)"),
            std::string::npos)
      << P2PGetLastError();
  // Through the end that had not reached it yet.
  HcclResult later = get(pair.client());
  if (later == HCCL_SUCCESS) later = P2PCommSynchronize(pair.client(), kSoonMs);
  EXPECT_NE(later, HCCL_SUCCESS);
  // The name is not worth more through another communicator.
  const Pair other;
  EXPECT_EQ(get(other.root()), HCCL_E_NOT_FOUND) << P2PGetLastError();
  P2P_OK(P2PUnimportSegment(info));
}

TEST(P2pMemory, TwoPiecesThatAreWrittenToOnePlaceAreNamed) {
  FarMemory far(4096);
  const Pair pair;
  std::vector<uint8_t> got(1000, 7);
  const auto says = [](const std::string& what) {
    return std::string(P2PGetLastError()).find(what) != std::string::npos;
  };
  const auto place = [](const uint8_t* at, size_t bytes) {
    char text[64];
    (void)std::snprintf(text, sizeof text, " [%p, +%zu)", static_cast<const void*>(at), bytes);
    return std::string(text);
  };
  const P2pCopyEntry gets[] = {{got.data() + 500, far.at(0), 100},
                               {got.data(), far.at(0), 100},
                               {got.data() + 599, far.at(300), 9}};
  EXPECT_EQ(P2PGetBatch(gets, 3, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("entries[0]" + place(got.data() + 500, 100) + " and entries[2]" +
                   place(got.data() + 599, 9) + " overlap"))
      << P2PGetLastError();
  const P2pCopyEntry puts[] = {{got.data(), far.at(0), 100}, {got.data() + 100, far.at(99), 2}};
  EXPECT_EQ(P2PPutBatch(puts, 2, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("entries[1]" + place(far.at(99), 2) + " overlap")) << P2PGetLastError();
  // To read the same twice is well.
  const P2pCopyEntry again[] = {{got.data(), far.at(0), 100}, {got.data() + 100, far.at(0), 100}};
  P2P_OK(P2PGetBatch(again, 2, pair.root(), nullptr));
  void* pieces[] = {got.data() + 300, got.data() + 400, got.data() + 350};
  uint64_t counts[] = {50, 50, 51};
  const P2pScatterEntry one{far.at(0), pieces, counts, HCCL_DATA_TYPE_UINT8, 1};
  P2pScatterEntry entries[] = {one, {far.at(0), pieces + 1, counts + 1, HCCL_DATA_TYPE_UINT8, 2}};
  EXPECT_EQ(P2PScatterBatchFromRemoteHostMem(entries, 2, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("entries[1], dstBufs[0] ") && says(" and entries[1], dstBufs[1] "))
      << P2PGetLastError();
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
}

TEST(P2pMemory, OfTheLibraryIsMapped) {
  void* memory = nullptr;
  P2P_OK(P2PAllocHostMem(&memory, 1 << 20, P2P_NUMA_ANY));
  std::memset(memory, 9, 1 << 20);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(memory, 1 << 20, &info, P2P_SEGMENT_READ_ONLY));
  P2P_OK(P2PImportHostSegment(info));
  {
    const Pair pair;
    std::vector<uint8_t> got(1 << 20);
    P2P_OK(P2PGet(memory, got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t byte) { return byte == 9; }));
  }
  P2P_OK(P2PUnregisterMem(&info, kSoonMs));
  P2P_OK(P2PFreeHostMem(memory));
  EXPECT_EQ(P2PFreeHostMem(memory), HCCL_E_NOT_FOUND);
  EXPECT_EQ(P2PAllocHostMem(&memory, 0, P2P_NUMA_ANY), HCCL_E_PARA);
  EXPECT_EQ(P2PAllocHostMem(nullptr, 1, P2P_NUMA_ANY), HCCL_E_PTR);
  EXPECT_EQ(P2PAllocHostMem(&memory, 1, -9), HCCL_E_PARA);
}

TEST(P2pMemory, BadArgumentsAreNamed) {
  const Pair pair;
  uint8_t byte = 0;
  P2pSegmentInfo info;
  const auto says = [](const char* what) {
    return std::string(P2PGetLastError()).find(what) != std::string::npos;
  };
  EXPECT_EQ(P2PRegisterHostMem(nullptr, 1, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR);
  EXPECT_EQ(P2PRegisterHostMem(&byte, 0, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PARA);
  EXPECT_EQ(P2PRegisterHostMem(&byte, 1, nullptr, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR);
  EXPECT_EQ(P2PRegisterHostMem(&byte, 1, &info, static_cast<P2pSegmentPermissions>(9)),
            HCCL_E_PARA);
  EXPECT_TRUE(says("permissions is 9"));
  const HcclResult notOfAGpu = P2PRegisterDeviceMem(&byte, 1, &info, P2P_SEGMENT_READ_ONLY);
  if (notOfAGpu == HCCL_E_PARA)
    EXPECT_TRUE(says("devBuf is not memory of a GPU")) << P2PGetLastError();
  else
    EXPECT_EQ(notOfAGpu, HCCL_E_NOT_SUPPORT) << "without a GPU";
  EXPECT_EQ(P2PSend(nullptr, 1, HCCL_DATA_TYPE_INT8, pair.root(), nullptr), HCCL_E_PTR);
  EXPECT_TRUE(says("sendBuf is NULL"));
  EXPECT_EQ(P2PSend(&byte, 0, HCCL_DATA_TYPE_INT8, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("count is 0"));
  EXPECT_EQ(P2PSend(&byte, UINT64_MAX, HCCL_DATA_TYPE_INT16, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_EQ(P2PSend(&byte, 1, HCCL_DATA_TYPE_RESERVED, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("dataType is 18"));
  EXPECT_EQ(P2PSend(&byte, 1, static_cast<HcclDataType>(13), pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_EQ(P2PSend(&byte, 1, HCCL_DATA_TYPE_INT8, pair.root(), &byte), HCCL_E_NOT_FOUND);
  EXPECT_TRUE(says("P2PHostStreamCreate"));
  void* buffers[2] = {&byte, nullptr};
  uint64_t counts[2] = {1, 1};
  EXPECT_EQ(P2PSendBatch(buffers, counts, HCCL_DATA_TYPE_INT8, 2, pair.root(), nullptr),
            HCCL_E_PTR);
  EXPECT_TRUE(says("sendBufs[1] is NULL"));
  EXPECT_EQ(P2PRecvBatch(buffers, counts, HCCL_DATA_TYPE_INT8, 0, pair.root(), nullptr),
            HCCL_E_PARA);
  EXPECT_EQ(P2PRecvBatch(nullptr, counts, HCCL_DATA_TYPE_INT8, 1, pair.root(), nullptr),
            HCCL_E_PTR);
  EXPECT_EQ(P2PRecvBatch(buffers, nullptr, HCCL_DATA_TYPE_INT8, 1, pair.root(), nullptr),
            HCCL_E_PTR);
  EXPECT_EQ(P2PGetBatch(nullptr, 1, pair.root(), nullptr), HCCL_E_PTR);
  const P2pCopyEntry entry{&byte, &byte, 0};
  EXPECT_EQ(P2PGetBatch(&entry, 1, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_TRUE(says("entries[0] has 0 bytes"));
  P2pScatterEntry scatter{nullptr, buffers, counts, HCCL_DATA_TYPE_INT8, 1};
  EXPECT_EQ(P2PScatterBatchFromRemoteHostMem(&scatter, 1, pair.root(), nullptr), HCCL_E_PTR);
  EXPECT_TRUE(says("ddrBuf is NULL"));
  EXPECT_EQ(P2PHostStreamSynchronize(nullptr, 1), HCCL_E_NOT_FOUND);
  EXPECT_EQ(P2PHostStreamDestroy(&byte), HCCL_E_NOT_FOUND);
  EXPECT_EQ(P2PHostStreamCreate(nullptr), HCCL_E_PTR);
}

}  // namespace
}  // namespace peerlane::p2p_test
