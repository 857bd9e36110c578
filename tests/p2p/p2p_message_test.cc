// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: messages of host memory: sizes, batches, streams, errors that come later.
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "tests/p2p/p2p_pair.h"

namespace peerlane::p2p_test {
namespace {

class P2pMessages : public testing::TestWithParam<P2pLink> {
 protected:
  Side side(P2pKind kind) const { return {.kind = kind, .link = GetParam()}; }
};

std::string nameOf(const testing::TestParamInfo<P2pLink>& each) {
  const char* const links[] = {"Mapped", "Network", "Auto"};
  return links[each.param];
}
INSTANTIATE_TEST_SUITE_P(Links, P2pMessages,
                         testing::Values(P2P_LINK_HCCS, P2P_LINK_ROCE, P2P_LINK_AUTO), nameOf);

TEST_P(P2pMessages, OfAnySizeAndAlignment) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  for (const size_t bytes : {size_t{1}, size_t{3}, size_t{4095}, size_t{4097}, size_t{72} << 10,
                             (size_t{73} << 10) + 1, (size_t{2} << 20) + 13, size_t{33} << 20}) {
    const auto sent = pattern(bytes + 1, static_cast<uint8_t>(bytes));
    std::vector<uint8_t> got(bytes + 2, 0xee);
    P2P_OK(P2PRecv(got.data() + 1, bytes, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
    P2P_OK(P2PSend(const_cast<uint8_t*>(sent.data()) + 1, bytes, HCCL_DATA_TYPE_UINT8,
                   pair.client(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
    P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
    EXPECT_EQ(std::memcmp(got.data() + 1, sent.data() + 1, bytes), 0) << bytes;
    EXPECT_EQ(got.front(), 0xee);
    EXPECT_EQ(got.back(), 0xee);
  }
}

// A device that keeps the pages of before must not send them.
TEST_P(P2pMessages, OfMemoryThatWasMappedAnew) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  constexpr size_t kBytes = 4 << 20;
  void* place = nullptr;
  for (uint8_t round = 1; round <= 4; ++round) {
    void* const at =
        ::mmap(place, kBytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    place = at;  // the next round replaces the pages
    const auto sent = pattern(kBytes, round);
    std::memcpy(place, sent.data(), kBytes);
    std::vector<uint8_t> got(kBytes);
    P2P_OK(P2PRecv(got.data(), kBytes, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
    P2P_OK(P2PSend(place, kBytes, HCCL_DATA_TYPE_UINT8, pair.client(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
    P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
    EXPECT_TRUE(got == sent) << int{round};
  }
  EXPECT_EQ(::munmap(place, kBytes), 0);
}

TEST_P(P2pMessages, InBatches) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  constexpr uint32_t kBlocks = 129;
  std::vector<std::vector<uint8_t>> sent, got;
  std::vector<void*> from, to;
  std::vector<uint64_t> counts;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    sent.push_back(pattern(1 + i * 571, static_cast<uint8_t>(i)));
    got.emplace_back(sent.back().size());
    counts.push_back(sent.back().size());
  }
  for (uint32_t i = 0; i < kBlocks; ++i) {
    from.push_back(sent[i].data());
    to.push_back(got[i].data());
  }
  P2P_OK(P2PSendBatch(from.data(), counts.data(), HCCL_DATA_TYPE_UINT8, kBlocks, pair.client(),
                      nullptr));
  P2P_OK(
      P2PRecvBatch(to.data(), counts.data(), HCCL_DATA_TYPE_UINT8, kBlocks, pair.root(), nullptr));
  // A batch of one is a message like any other.
  P2P_OK(P2PSend(from[5], counts[5], HCCL_DATA_TYPE_UINT8, pair.client(), nullptr));
  std::vector<uint8_t> last(counts[5]);
  void* const lastBuffer = last.data();
  P2P_OK(P2PRecvBatch(const_cast<void**>(&lastBuffer), &counts[5], HCCL_DATA_TYPE_UINT8, 1,
                      pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(got, sent);
  EXPECT_EQ(last, sent[5]);
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs)) << "its memory is in use until then";
}

TEST_P(P2pMessages, OnEightStreamsOfOneCommunicator) {
  const Pair pair(side(P2P_BIDIRECTIONAL), side(P2P_BIDIRECTIONAL));
  constexpr int kStreams = 8, kMessages = 40;
  std::vector<aclrtStream> send(kStreams), receive(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    P2P_OK(P2PHostStreamCreate(&send[i]));
    P2P_OK(P2PHostStreamCreate(&receive[i]));
  }
  std::vector<uint64_t> sent(kMessages), got(kMessages);
  for (int i = 0; i < kMessages; ++i) {
    sent[i] = 1000 + static_cast<uint64_t>(i);
    P2P_OK(P2PSend(&sent[i], 1, HCCL_DATA_TYPE_UINT64, pair.root(), send[i % kStreams]));
    P2P_OK(P2PRecv(&got[i], 1, HCCL_DATA_TYPE_UINT64, pair.client(), receive[i % kStreams]));
  }
  for (int i = 0; i < kStreams; ++i) {
    P2P_OK(P2PHostStreamSynchronize(receive[i], kSoonMs));
    P2P_OK(P2PHostStreamSynchronize(send[i], kSoonMs));
    P2P_OK(P2PHostStreamDestroy(send[i]));
    P2P_OK(P2PHostStreamDestroy(receive[i]));
  }
  // Streams begin in any order, and messages meet in the order in which they begin.
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, sent);
}

TEST_P(P2pMessages, OfDifferentLengthsAreReportedAndTheNextIsFine) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  std::vector<uint8_t> memory(8192), got(8192);
  P2P_OK(P2PSend(memory.data(), 100, HCCL_DATA_TYPE_UINT8, pair.client(), nullptr));
  P2P_OK(P2PRecv(got.data(), 200, HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  EXPECT_EQ(P2PCommSynchronize(pair.root(), kSoonMs), HCCL_E_PARA);
  HcclResult error = HCCL_SUCCESS;
  P2P_OK(P2PGetCommAsyncError(pair.root(), &error));
  EXPECT_EQ(error, HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()), "") << "the sentence of the asynchronous error";
  P2P_OK(P2PGetCommAsyncError(pair.root(), &error));
  EXPECT_EQ(error, HCCL_E_PARA) << "it stays";
  P2P_OK(P2PSend(memory.data(), 8192, HCCL_DATA_TYPE_UINT8, pair.client(), nullptr));
  aclrtStream stream = nullptr;
  P2P_OK(P2PHostStreamCreate(&stream));
  P2P_OK(P2PRecv(got.data(), 8192, HCCL_DATA_TYPE_UINT8, pair.root(), stream));
  P2P_OK(P2PHostStreamSynchronize(stream, kSoonMs)) << "a stream has its own errors";
  P2P_OK(P2PHostStreamDestroy(stream));
  EXPECT_EQ(got, memory);
  EXPECT_EQ(P2PCommSynchronize(pair.client(), kSoonMs), HCCL_E_PARA) << "of the first send";
}

// Whatever takes numbers inside: the caller has posted three.
TEST_P(P2pMessages, ThatFailIsNamedByItsCallAsTheCallerCountsThem) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  std::vector<uint8_t> memory(4096), got(4096);
  std::vector<void*> from, to;
  const std::vector<uint64_t> counts(50, 40);
  for (size_t i = 0; i < counts.size(); ++i) {
    from.push_back(memory.data() + 40 * i);
    to.push_back(got.data() + 40 * i);
  }
  for (int i = 0; i < 2; ++i) {
    P2P_OK(P2PSendBatch(from.data(), const_cast<uint64_t*>(counts.data()), HCCL_DATA_TYPE_INT8, 50,
                        pair.client(), nullptr));
    P2P_OK(P2PRecvBatch(to.data(), const_cast<uint64_t*>(counts.data()), HCCL_DATA_TYPE_INT8, 50,
                        pair.root(), nullptr));
  }
  P2P_OK(P2PSend(memory.data(), 100, HCCL_DATA_TYPE_INT8, pair.client(), nullptr));
  P2P_OK(P2PRecv(got.data(), 200, HCCL_DATA_TYPE_INT8, pair.root(), nullptr));
  EXPECT_EQ(P2PCommSynchronize(pair.root(), kSoonMs), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find(": receive 3 of the communicator"),
            std::string::npos)
      << P2PGetLastError();
  EXPECT_EQ(P2PCommSynchronize(pair.client(), kSoonMs), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find(": send 3 of the communicator"), std::string::npos)
      << P2PGetLastError();
}

// A batch meets a batch of as many pieces.
TEST_P(P2pMessages, BatchesOfOtherNumbersAreReportedAndTheNextIsFine) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  aclrtStream out = nullptr, in = nullptr;
  P2P_OK(P2PHostStreamCreate(&out));
  P2P_OK(P2PHostStreamCreate(&in));
  for (const size_t bytes : {size_t{100}, size_t{300'000}}) {
    std::vector<uint8_t> sent = pattern(20 * bytes, 1), got(20 * bytes);
    std::vector<void*> from, to;
    for (size_t i = 0; i < 20; ++i) {
      from.push_back(sent.data() + i * bytes);
      to.push_back(got.data() + i * bytes);
    }
    std::vector<uint64_t> counts(20, bytes);
    for (const auto& [here, there] :
         {std::pair<uint32_t, uint32_t>{3, 2}, {2, 3}, {1, 4}, {20, 1}}) {
      P2P_OK(
          P2PSendBatch(from.data(), counts.data(), HCCL_DATA_TYPE_INT8, here, pair.client(), out));
      P2P_OK(P2PRecvBatch(to.data(), counts.data(), HCCL_DATA_TYPE_INT8, there, pair.root(), in));
      P2P_OK(P2PSend(from[7], bytes, HCCL_DATA_TYPE_INT8, pair.client(), out));
      P2P_OK(P2PRecv(to[9], bytes, HCCL_DATA_TYPE_INT8, pair.root(), in));
      for (const aclrtStream stream : {out, in}) {
        EXPECT_EQ(P2PHostStreamSynchronize(stream, kSoonMs), HCCL_E_PARA) << here << ", " << there;
        EXPECT_NE(std::string(P2PGetLastError()).find("pieces"), std::string::npos)
            << P2PGetLastError();
        P2P_OK(P2PHostStreamSynchronize(stream, kSoonMs));
      }
      EXPECT_EQ(std::memcmp(to[9], from[7], bytes), 0);
      std::memset(to[9], 0, bytes);
      EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t byte) { return byte == 0; }));
    }
  }
  P2P_OK(P2PHostStreamDestroy(out));
  P2P_OK(P2PHostStreamDestroy(in));
}

// Where the original would end by a signal.
TEST_P(P2pMessages, WrongAddressesAreToldAndTheNextIsFine) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  static const uint8_t kConstant[100'000] = {1};
  uint8_t good[10] = {1, 2, 3};
  void* const low = reinterpret_cast<void*>(8);
  for (const uint64_t bytes : {1, 100'000}) {
    EXPECT_EQ(P2PSend(low, bytes, HCCL_DATA_TYPE_INT8, pair.client(), nullptr), HCCL_E_PARA);
    EXPECT_NE(std::string(P2PGetLastError()).find("0x8 is not mapped"), std::string::npos)
        << P2PGetLastError();
    EXPECT_EQ(P2PRecv(low, bytes, HCCL_DATA_TYPE_INT8, pair.root(), nullptr), HCCL_E_PARA);
    EXPECT_EQ(
        P2PRecv(const_cast<uint8_t*>(kConstant), bytes, HCCL_DATA_TYPE_INT8, pair.root(), nullptr),
        HCCL_E_PARA);
    EXPECT_NE(std::string(P2PGetLastError()).find("cannot be written"), std::string::npos)
        << P2PGetLastError();
  }
  // Get and scatter write here as well.
  std::vector<uint8_t> owned(100'000, 4);
  P2pSegmentInfo segment;
  P2P_OK(P2PRegisterHostMem(owned.data(), owned.size(), &segment, P2P_SEGMENT_READ_WRITE));
  P2P_OK(P2PImportHostSegment(segment));
  EXPECT_EQ(P2PGet(owned.data(), const_cast<uint8_t*>(kConstant), 5, HCCL_DATA_TYPE_INT8,
                   pair.root(), nullptr),
            HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("cannot be written"), std::string::npos)
      << P2PGetLastError();
  const P2pCopyEntry pieces[] = {{good, owned.data(), 2},
                                 {const_cast<uint8_t*>(kConstant) + 8, owned.data(), 2}};
  EXPECT_EQ(P2PGetBatch(pieces, 2, pair.root(), nullptr), HCCL_E_PARA);
  void* parts[] = {const_cast<uint8_t*>(kConstant) + 8};
  uint64_t lengths[] = {4};
  EXPECT_EQ(P2PScatterFromRemoteHostMem(owned.data(), parts, lengths, HCCL_DATA_TYPE_INT8, 1,
                                        pair.root(), nullptr),
            HCCL_E_PARA);
  P2P_OK(P2PPut(const_cast<uint8_t*>(kConstant), owned.data() + 50, 1, HCCL_DATA_TYPE_INT8,
                pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(owned[50], 1);
  EXPECT_EQ(owned[0], 4);
  P2P_OK(P2PUnimportSegment(segment));
  P2P_OK(P2PUnregisterMem(&segment, kSoonMs));
  void* blocks[3] = {good, low, good + 5};
  uint64_t counts[3] = {3, 3, 3};
  EXPECT_EQ(P2PSendBatch(blocks, counts, HCCL_DATA_TYPE_INT8, 3, pair.client(), nullptr),
            HCCL_E_PARA);
  EXPECT_EQ(P2PRecvBatch(blocks, counts, HCCL_DATA_TYPE_INT8, 3, pair.root(), nullptr),
            HCCL_E_PARA);
  EXPECT_EQ(P2PSend(good, uint64_t{1} << 45, HCCL_DATA_TYPE_INT8, pair.client(), nullptr),
            HCCL_E_PARA);
  // Nothing of all that was posted. What is constant may be sent.
  uint8_t got[8] = {};
  P2P_OK(P2PSend(const_cast<uint8_t*>(kConstant), 8, HCCL_DATA_TYPE_INT8, pair.client(), nullptr));
  P2P_OK(P2PRecv(got, 8, HCCL_DATA_TYPE_INT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
  EXPECT_EQ(got[0], 1);
}

TEST_P(P2pMessages, AreReportedWhenTheOtherSideIsGone) {
  Pair pair(side(P2P_SENDER), side(P2P_RECEIVER));
  HcclResult error = HCCL_E_RESERVED;
  P2P_OK(P2PGetCommAsyncError(pair.client(), &error));
  EXPECT_EQ(error, HCCL_SUCCESS);
  EXPECT_STREQ(P2PGetLastError(), "");
  std::vector<uint8_t> got(1 << 20);
  P2P_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair.client(), nullptr));
  EXPECT_EQ(P2PCommSynchronize(pair.client(), 10), HCCL_E_TIMEOUT) << "nobody has sent";
  P2P_OK(P2PCommDestroy(pair.releaseRoot()));
  const HcclResult ended = P2PCommSynchronize(pair.client(), kSoonMs);
  EXPECT_TRUE(ended == HCCL_E_REMOTE || ended == HCCL_E_UNAVAIL) << P2PGetLastError();
  P2P_OK(P2PGetCommAsyncError(pair.client(), &error));
  EXPECT_EQ(error, ended);
  EXPECT_EQ(P2PGetCommAsyncError(pair.client(), nullptr), HCCL_E_PTR);
}

TEST_P(P2pMessages, ThatHaveNotBegunAreCancelledWithTheirStream) {
  const Pair pair(side(P2P_RECEIVER), side(P2P_SENDER));
  aclrtStream stream = nullptr;
  P2P_OK(P2PHostStreamCreate(&stream));
  uint64_t word = 0;
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_INT64, pair.root(), stream));
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_INT64, pair.root(), stream));
  P2P_OK(P2PHostStreamDestroy(stream)) << "and this does not wait for a sender";
  EXPECT_EQ(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, pair.client(), stream), HCCL_E_NOT_FOUND);
}

}  // namespace
}  // namespace peerlane::p2p_test
