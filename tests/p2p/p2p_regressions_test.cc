// SPDX-License-Identifier: Apache-2.0
//
// What was wrong with p2p-transfer, each as a test of its own: the numbers are those of
// docs/p2p.md.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/p2p/p2p_pair.h"

namespace peerlane::p2p_test {
namespace {

constexpr uint32_t kMuchMs = 120000;  // for very many operations: seconds under a sanitizer

size_t entriesOf(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                           std::filesystem::directory_iterator()));
}

size_t residentBytes() {
  std::ifstream numbers("/proc/self/statm");
  size_t all = 0, resident = 0;
  numbers >> all >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(P2pRegressions, Defect01TheAsynchronousErrorIsWritten) {
  Pair pair;
  HcclResult error = HCCL_E_RESERVED;
  P2P_OK(P2PGetCommAsyncError(pair.client(), &error));
  EXPECT_EQ(error, HCCL_SUCCESS);
  P2P_OK(P2PCommDestroy(pair.releaseRoot()));
  // The other side is told by the connection, whether anything was posted or not.
  uint64_t word = 0;
  while (P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, pair.client(), nullptr) == HCCL_SUCCESS)
    std::this_thread::yield();
  // Its communicator says goodbye first, then the connection ends.
  do {
    P2P_OK(P2PGetCommAsyncError(pair.client(), &error));
  } while (error == HCCL_SUCCESS);
  EXPECT_NE(std::string(P2PGetLastError()), "");
}

// 3 (access that is never taken back) and 5 (each set-up starts a service).
TEST(P2pRegressions, Defect03And05CommunicatorsLeaveNothingBehind) {
  const Pair first;
  const size_t threads = entriesOf("/proc/self/task"), files = entriesOf("/proc/self/fd");
  for (int i = 0; i < 100; ++i) const Pair pair;
  // A thread that was joined may be listed a little longer, also in the first count.
  EXPECT_TRUE(soon([&] { return entriesOf("/proc/self/task") <= threads; }))
      << entriesOf("/proc/self/task") << " threads after " << threads;
  // The last ones may still be saying goodbye.
  EXPECT_TRUE(soon([&] { return entriesOf("/proc/self/fd") <= files + 24; }))
      << entriesOf("/proc/self/fd") << " descriptors after " << files;
}

TEST(P2pRegressions, Defect06AFailedRootIsNoRefusalForEver) {
  HcclRootInfo root;
  P2P_OK(P2PGetRootInfo(&root));
  P2PComm comm = nullptr;
  P2PCommInitOptions quick;
  quick.timeoutMs = 1;
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &quick),
              HCCL_E_TIMEOUT);
  P2PComm other = nullptr;
  std::thread client([&] {
    EXPECT_EQ(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &other, nullptr), HCCL_SUCCESS)
        << P2PGetLastError();
  });
  P2P_OK(P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, nullptr));
  client.join();
  P2P_OK(P2PCommDestroy(comm));
  P2P_OK(P2PCommDestroy(other));
}

TEST(P2pRegressions, Defect06RootsThatNobodyClaimsCostNoPorts) {
  std::vector<HcclRootInfo> roots(300);  // more than the range has ports
  for (HcclRootInfo& root : roots) P2P_OK(P2PGetRootInfo(&root));
  for (const HcclRootInfo& root : roots) P2P_OK(P2PCancelRootInfo(&root));
}

// 7 (a cursor of the pool that all share) and 8 (whoever forgets Done() starves all).
TEST(P2pRegressions, Defect07And08NobodyStarvesAnother) {
  std::vector<uint8_t> far = pattern(1 << 20, 1);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(far.data(), far.size(), &info, P2P_SEGMENT_READ_ONLY));
  P2P_OK(P2PImportHostSegment(info));
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    for (int i = 0; i < 8; ++i) pairs.push_back(std::make_unique<Pair>());
    std::vector<std::thread> threads;
    for (const auto& pair : pairs)
      threads.emplace_back([&far, comm = pair->root()] {
        std::vector<uint8_t> got(far.size());
        void* const pieces[] = {got.data() + got.size() / 2, got.data()};
        uint64_t counts[] = {got.size() / 2, got.size() / 2};
        for (int i = 0; i < 20; ++i) {
          P2pScatterEntry entry{far.data(), const_cast<void**>(pieces), counts,
                                HCCL_DATA_TYPE_UINT8, 2};
          ASSERT_EQ(P2PScatterBatchFromRemoteHostMem(&entry, 1, comm, nullptr), HCCL_SUCCESS);
        }
        ASSERT_EQ(P2PCommSynchronize(comm, kSoonMs), HCCL_SUCCESS) << P2PGetLastError();
        EXPECT_EQ(std::memcmp(got.data() + got.size() / 2, far.data(), got.size() / 2), 0);
      });
    for (std::thread& thread : threads) thread.join();
  }
  P2P_OK(P2PUnimportSegment(info));
  P2P_OK(P2PUnregisterMem(&info, kSoonMs));
}

// Whoever speaks another protocol to the port of a root is turned away; the root is not disturbed,
// and no length of his is believed.
TEST(P2pRegressions, Defect09StrangersAtThePortAreTurnedAway) {
  ::setenv("P2P_PORT_RANGE", "56700-56749", 1);
  ::setenv("P2P_IF_IP", "127.0.0.1", 1);
  P2P_OK(UnwarmHccp());  // so that the next root listens there
  HcclRootInfo root;
  P2P_OK(P2PGetRootInfo(&root));
  const size_t before = residentBytes();
  int reached = 0;
  for (uint16_t port = 56700; port < 56750; ++port) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in own{};
    socklen_t bytes = sizeof own;
    const bool isConnected =
        ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &bytes) == 0;
    // Where nobody listens, the system may choose that very port for this end: then it is its own
    // peer.
    if (isConnected && own.sin_port != address.sin_port) {
      ++reached;
      const unsigned char length[] = {0xff, 0xff, 0xff, 0xfe, 1, 2, 3, 4, 5, 6, 7, 8};
      (void)::send(socket, length, sizeof length, MSG_NOSIGNAL);
      char byte;
      EXPECT_LE(::recv(socket, &byte, 1, 0), 0) << "the connection is closed";
    }
    ::close(socket);
  }
  EXPECT_GE(reached, 1);
  EXPECT_LT(residentBytes(), before + (size_t{64} << 20));
  P2PComm comm = nullptr, other = nullptr;
  std::thread client([&] {
    EXPECT_EQ(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_ROCE, &other, nullptr), HCCL_SUCCESS)
        << P2PGetLastError();
  });
  P2P_OK(P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_ROCE, &comm, nullptr));
  client.join();
  P2P_OK(P2PCommDestroy(comm));
  P2P_OK(P2PCommDestroy(other));
  ::unsetenv("P2P_PORT_RANGE");
  ::unsetenv("P2P_IF_IP");
}

// 10 (arrays of the caller's size on the stack) and 12 (graphs that overflow): any number of
// pieces.
TEST(P2pRegressions, Defect10And12BatchesOfAnySizeGoAtOnce) {
  constexpr uint32_t kPieces = 300000;
  std::vector<uint8_t> far = pattern(kPieces * 2, 1), got(kPieces * 2);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(far.data(), far.size(), &info, P2P_SEGMENT_READ_ONLY));
  P2P_OK(P2PImportHostSegment(info));
  {
    const Pair pair;
    std::vector<void*> pieces(kPieces);
    std::vector<uint64_t> counts(kPieces, 2);
    for (uint32_t i = 0; i < kPieces; ++i) pieces[i] = got.data() + 2 * i;
    P2P_OK(P2PScatterFromRemoteHostMem(far.data(), pieces.data(), counts.data(),
                                       HCCL_DATA_TYPE_UINT8, kPieces, pair.root(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kMuchMs));
    EXPECT_EQ(got, far);
    constexpr uint32_t kMessages = 20000;
    std::fill(got.begin(), got.end(), uint8_t{0});
    P2P_OK(P2PRecvBatch(pieces.data(), counts.data(), HCCL_DATA_TYPE_UINT8, kMessages, pair.root(),
                        nullptr));
    for (uint32_t i = 0; i < kMessages; ++i) pieces[i] = far.data() + 2 * i;
    P2P_OK(P2PSendBatch(pieces.data(), counts.data(), HCCL_DATA_TYPE_UINT8, kMessages,
                        pair.client(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.root(), kMuchMs));
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 2 * kMessages, far.begin()));
  }
  P2P_OK(P2PUnimportSegment(info));
  P2P_OK(P2PUnregisterMem(&info, kSoonMs));
}

TEST(P2pRegressions, Defect11ASendHasEndedWhenTheReceiverHasTheBytes) {
  const Pair pair(receiver(), sender());
  const auto sent = pattern(8 << 20, 3);
  for (int i = 0; i < 5; ++i) {
    std::vector<uint8_t> got(sent.size());
    P2P_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
    P2P_OK(P2PSend(const_cast<uint8_t*>(sent.data()), sent.size(), HCCL_DATA_TYPE_UINT8,
                   pair.client(), nullptr));
    P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));  // the sender alone
    EXPECT_EQ(std::memcmp(got.data(), sent.data(), sent.size()), 0);
    P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  }
}

TEST(P2pRegressions, Defect13ManyMoreRequestsThanAQueueHoldsAreQueued) {
  const Pair pair(receiver(), sender());
  constexpr int kMessages = 5000;
  std::vector<uint32_t> sent(kMessages), got(kMessages);
  for (int i = 0; i < kMessages; ++i) {
    sent[static_cast<size_t>(i)] = static_cast<uint32_t>(i) * 7;
    P2P_OK(
        P2PSend(&sent[static_cast<size_t>(i)], 1, HCCL_DATA_TYPE_UINT32, pair.client(), nullptr));
  }
  for (uint32_t& word : got) P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT32, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kMuchMs));
  P2P_OK(P2PCommSynchronize(pair.client(), kMuchMs));
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace peerlane::p2p_test
