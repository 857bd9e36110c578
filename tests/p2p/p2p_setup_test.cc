// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: roots and communicators: who meets whom, who is refused and why, and what ends them.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>

#include "tests/p2p/p2p_pair.h"

namespace peerlane::p2p_test {
namespace {

TEST(P2pSetup, ASenderMeetsAReceiver) {
  const Pair pair(receiver(), sender());
  const auto sent = pattern(73 << 10, 1);
  std::vector<uint8_t> got(sent.size());
  P2P_OK(P2PSend(const_cast<uint8_t*>(sent.data()), sent.size(), HCCL_DATA_TYPE_UINT8,
                 pair.client(), nullptr));
  P2P_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair.root(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
  EXPECT_EQ(got, sent);
}

TEST(P2pSetup, ABidirectionalOneGoesBothWays) {
  const Pair pair;
  auto a = pattern(1 << 20, 1), b = pattern(1 << 20, 2);
  const auto wasA = a, wasB = b;
  std::vector<uint8_t> toA(a.size()), toB(b.size());
  P2P_OK(P2PSend(a.data(), a.size(), HCCL_DATA_TYPE_INT8, pair.root(), nullptr));
  P2P_OK(P2PSend(b.data(), b.size() / 4, HCCL_DATA_TYPE_FP32, pair.client(), nullptr));
  aclrtStream other = nullptr;
  P2P_OK(P2PHostStreamCreate(&other));
  P2P_OK(P2PRecv(toA.data(), toA.size(), HCCL_DATA_TYPE_INT8, pair.root(), other));
  P2P_OK(P2PRecv(toB.data(), toB.size(), HCCL_DATA_TYPE_INT8, pair.client(), other));
  P2P_OK(P2PHostStreamSynchronize(other, kSoonMs));
  P2P_OK(P2PHostStreamDestroy(other));
  for (P2PComm comm : {pair.root(), pair.client()}) P2P_OK(P2PCommSynchronize(comm, kSoonMs));
  EXPECT_EQ(toA, wasB);
  EXPECT_EQ(toB, wasA);
}

TEST(P2pSetup, KindsHaveToGoTogether) {
  for (const P2pKind kind : {P2P_SENDER, P2P_RECEIVER, P2P_BIDIRECTIONAL}) {
    const Met met = meet({.kind = kind}, {.kind = kind});
    if (kind == P2P_BIDIRECTIONAL) {
      EXPECT_EQ(met.root, HCCL_SUCCESS) << met.rootError;
      P2P_OK(P2PCommDestroy(met.rootComm));
      P2P_OK(P2PCommDestroy(met.clientComm));
      continue;
    }
    EXPECT_EQ(met.root, HCCL_E_PARA);
    EXPECT_EQ(met.client, HCCL_E_PARA);
    EXPECT_NE(met.rootError.find("P2P_SENDER meets a P2P_RECEIVER"), std::string::npos)
        << met.rootError;
    EXPECT_NE(met.clientError.find("P2P_SENDER meets"), std::string::npos) << met.clientError;
  }
  const Met mixed = meet({.kind = P2P_BIDIRECTIONAL}, {.kind = P2P_SENDER});
  EXPECT_EQ(mixed.root, HCCL_E_PARA);
  EXPECT_EQ(mixed.client, HCCL_E_PARA);
}

TEST(P2pSetup, OnlyTheRightSideSendsAndReceives) {
  const Pair pair(receiver(), sender());
  uint64_t word = 0;
  EXPECT_EQ(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, pair.root(), nullptr), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("P2P_RECEIVER"), std::string::npos);
  EXPECT_EQ(P2PRecv(&word, 1, HCCL_DATA_TYPE_INT64, pair.client(), nullptr), HCCL_E_PARA);
}

TEST(P2pSetup, SixteenThreadsMakeSixtyFour) {
  constexpr int kThreads = 16, kEach = 4;
  std::vector<HcclRootInfo> roots(kThreads * kEach);
  for (HcclRootInfo& root : roots) P2P_OK(P2PGetRootInfo(&root));
  std::vector<P2PComm> comms(2 * roots.size());
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  // Half of them accept, half connect; each in an order of its own.
  for (int t = 0; t < 2 * kThreads; ++t)
    threads.emplace_back([&, t] {
      const bool isRoot = t < kThreads;
      for (int i = 0; i < kEach; ++i) {
        const size_t at = static_cast<size_t>(t % kThreads) * kEach + static_cast<size_t>(i);
        P2PCommInitOptions options;
        options.timeoutMs = kSoonMs;
        const HcclResult result =
            P2PCommInitRootInfo(&roots[at], isRoot ? P2P_RECEIVER : P2P_SENDER, P2P_LINK_AUTO,
                                &comms[2 * at + (isRoot ? 0 : 1)], &options);
        if (result != HCCL_SUCCESS) ++failed;
        EXPECT_EQ(result, HCCL_SUCCESS) << P2PGetLastError();
      }
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(failed, 0);
  for (size_t i = 0; i < roots.size(); ++i) {
    uint64_t sent = 1000 + i, got = 0;
    // Which of the two became the root does not matter; their kinds do.
    P2P_OK(P2PSend(&sent, 1, HCCL_DATA_TYPE_UINT64, comms[2 * i + 1], nullptr));
    P2P_OK(P2PRecv(&got, 1, HCCL_DATA_TYPE_UINT64, comms[2 * i], nullptr));
    P2P_OK(P2PCommSynchronize(comms[2 * i], kSoonMs));
    P2P_OK(P2PCommSynchronize(comms[2 * i + 1], kSoonMs));
    EXPECT_EQ(got, sent) << "communicator " << i;
  }
  for (P2PComm comm : comms) P2P_OK(P2PCommDestroy(comm));
}

TEST(P2pSetup, AWrongRootIsRefused) {
  HcclRootInfo info;
  P2PComm comm = nullptr;
  std::memset(&info, 0, sizeof info);
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, nullptr), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("P2PGetRootInfo"), std::string::npos);
  P2P_OK(P2PGetRootInfo(&info));
  HcclRootInfo damaged = info;
  damaged.internal[100] ^= 1;
  EXPECT_EQ(P2PCommInitRootInfo(&damaged, P2P_SENDER, P2P_LINK_AUTO, &comm, nullptr), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("checksum"), std::string::npos);
  EXPECT_EQ(P2PCancelRootInfo(&damaged), HCCL_E_PARA);
  EXPECT_EQ(P2PCommInitRootInfo(nullptr, P2P_SENDER, P2P_LINK_AUTO, &comm, nullptr), HCCL_E_PTR);
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, nullptr, nullptr), HCCL_E_PTR);
  EXPECT_EQ(P2PCommInitRootInfo(&info, static_cast<P2pKind>(7), P2P_LINK_AUTO, &comm, nullptr),
            HCCL_E_PARA);
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, static_cast<P2pLink>(7), &comm, nullptr),
            HCCL_E_PARA);
  P2P_OK(P2PCancelRootInfo(&info));
}

TEST(P2pSetup, ARootCanBeCancelled) {
  HcclRootInfo info;
  P2P_OK(P2PGetRootInfo(&info));
  P2PComm comm = nullptr;
  std::atomic<HcclResult> waited{HCCL_SUCCESS};
  std::thread waiter(
      [&] { waited = P2PCommInitRootInfo(&info, P2P_RECEIVER, P2P_LINK_AUTO, &comm, nullptr); });
  // Whether the waiter has begun to wait or not, it is told.
  P2P_OK(P2PCancelRootInfo(&info));
  waiter.join();
  EXPECT_NE(waited, HCCL_SUCCESS);
  EXPECT_EQ(P2PCancelRootInfo(&info), HCCL_E_NOT_FOUND);
  P2PCommInitOptions options;
  options.timeoutMs = 2000;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options),
            HCCL_E_TCP_CONNECT);
  EXPECT_NE(std::string(P2PGetLastError()).find("taken back (P2PCancelRootInfo)"),
            std::string::npos)
      << P2PGetLastError();
}

TEST(P2pSetup, ARootThatNobodyClaimedCanBeTriedAgain) {
  HcclRootInfo info;
  P2P_OK(P2PGetRootInfo(&info));
  P2PCommInitOptions options;
  options.timeoutMs = 20;
  P2PComm comm = nullptr;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &options),
            HCCL_E_TIMEOUT);
  const std::string text = P2PGetLastError();
  EXPECT_NE(text.find("the other side did not come with the root (P2PCommInitRootInfo) in 20 ms"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("waited "), std::string::npos) << text;
  EXPECT_EQ(text.find("waited "), text.rfind("waited ")) << text;
  options.timeoutMs = kSoonMs;
  P2PComm other = nullptr;
  std::thread client([&] {
    EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &other, &options), HCCL_SUCCESS)
        << P2PGetLastError();
  });
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &options), HCCL_SUCCESS)
      << P2PGetLastError();
  client.join();
  EXPECT_EQ(P2PCancelRootInfo(&info), HCCL_E_NOT_FOUND) << "it was used up";
  P2P_OK(P2PCommDestroy(comm));
  P2P_OK(P2PCommDestroy(other));
}

TEST(P2pSetup, DestroyedTwiceIsRefused) {
  Pair pair;
  const P2PComm comm = pair.releaseRoot();
  P2P_OK(P2PCommDestroy(comm));
  EXPECT_EQ(P2PCommDestroy(comm), HCCL_E_NOT_FOUND);
  EXPECT_EQ(P2PCommDestroy(nullptr), HCCL_E_PTR);
  uint64_t word = 0;
  EXPECT_EQ(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, comm, nullptr), HCCL_E_NOT_FOUND);
  HcclResult error = HCCL_SUCCESS;
  EXPECT_EQ(P2PGetCommAsyncError(comm, &error), HCCL_E_NOT_FOUND);
}

TEST(P2pSetup, LinksAreTakenAsAsked) {
  char route[4096];
  {
    const Pair mapped({.link = P2P_LINK_HCCS}, {.link = P2P_LINK_HCCS});
    P2P_OK(P2PGetCommRoute(mapped.root(), route, sizeof route));
    EXPECT_NE(std::string(route).find("mapped"), std::string::npos) << route;
  }
  {
    const Pair network({.link = P2P_LINK_ROCE}, {.link = P2P_LINK_ROCE});
    P2P_OK(P2PGetCommRoute(network.root(), route, sizeof route));
    EXPECT_NE(std::string(route).find("tcp"), std::string::npos) << route;
    const auto sent = pattern(3 << 20, 9);
    std::vector<uint8_t> got(sent.size());
    P2P_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, network.root(), nullptr));
    P2P_OK(P2PSend(const_cast<uint8_t*>(sent.data()), sent.size(), HCCL_DATA_TYPE_UINT8,
                   network.client(), nullptr));
    P2P_OK(P2PCommSynchronize(network.root(), kSoonMs));
    P2P_OK(P2PCommSynchronize(network.client(), kSoonMs));  // it may still use `sent`
    EXPECT_EQ(got, sent);
  }
  const Met differ = meet({.link = P2P_LINK_HCCS}, {.link = P2P_LINK_ROCE});
  EXPECT_EQ(differ.root, HCCL_E_PARA) << differ.rootError;
  EXPECT_EQ(differ.client, HCCL_E_PARA) << differ.clientError;
  char one[1];
  const Pair pair;
  P2P_OK(P2PGetCommRoute(pair.root(), one, sizeof one));
  EXPECT_EQ(one[0], '\0');
  EXPECT_EQ(P2PGetCommRoute(pair.root(), nullptr, 10), HCCL_E_PTR);
}

TEST(P2pSetup, WithoutMessagesNoneAreSent) {
  Side quiet;
  quiet.options.enableTwoSidedBuffer = false;
  const Pair pair(quiet, {});
  uint64_t word = 0;
  for (const P2PComm comm : {pair.root(), pair.client()}) {
    EXPECT_EQ(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, comm, nullptr), HCCL_E_NOT_SUPPORT);
    EXPECT_NE(std::string(P2PGetLastError()).find("enableTwoSidedBuffer"), std::string::npos);
  }
}

TEST(P2pSetup, OptionsOfAnotherSizeAreRefused) {
  P2PCommInitOptions options = P2P_COMM_INIT_OPTIONS_INIT;  // as in C
  EXPECT_TRUE(options.enableTwoSidedBuffer);
  EXPECT_EQ(options.device, P2P_DEVICE_CURRENT);
  options.structBytes = 8;
  HcclRootInfo info;
  P2P_OK(P2PGetRootInfo(&info));
  P2PComm comm = nullptr;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("P2P_COMM_INIT_OPTIONS_INIT"), std::string::npos);
  options = P2PCommInitOptions();
  options.blockBytes = 1 << 20;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("pingPongBuffers"), std::string::npos);
  options.pingPongBuffers = 9;  // 9 MiB, and half of the default is 8
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA);
  EXPECT_NE(std::string(P2PGetLastError()).find("PEERLANE_STAGING_BYTES"), std::string::npos);
  options = P2PCommInitOptions();
  options.device = -3;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA);
  options.device = 9999;
  const HcclResult noGpu = P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options);
  EXPECT_TRUE(noGpu == HCCL_E_PARA || noGpu == HCCL_E_NOT_SUPPORT) << noGpu;
  EXPECT_NE(std::string(P2PGetLastError()).find("device of the options is 9999"),
            std::string::npos);
  EXPECT_NE(std::string(P2PGetLastError()).find("P2P_DEVICE_NONE (-2)"), std::string::npos);
  options = P2PCommInitOptions();
  options.structBytes = 0;
  EXPECT_EQ(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA);
  P2P_OK(P2PCancelRootInfo(&info));
}

TEST(P2pSetup, TheHeartbeatSaysWhoIsThere) {
  std::function<int()> heartbeat;
  Side watched;
  watched.options = P2PCommInitOptions(true, &heartbeat);
  int seconds = -7;
  {
    const Pair pair(watched, {});
    ASSERT_TRUE(heartbeat);
    EXPECT_GE(heartbeat(), 0);
    EXPECT_LT(heartbeat(), 30);
    P2P_OK(P2PGetCommHeartbeat(pair.client(), &seconds));
    EXPECT_GE(seconds, 0);
    EXPECT_EQ(P2PGetCommHeartbeat(pair.client(), nullptr), HCCL_E_PTR);
  }
  EXPECT_EQ(heartbeat(), -1);
}

// Destructors of a thread's own objects run in the opposite order of their making: this one behind
// those of all that was made for the thread's calls.
TEST(P2pSetup, AThreadThatEndsMayStillCall) {
  static std::atomic<int> ended{0};
  struct Last {
    ~Last() {
      EXPECT_EQ(P2PCommDestroy(&ended), HCCL_E_NOT_FOUND);
      EXPECT_NE(std::string(P2PGetLastError()).find("P2PCommInitRootInfo"), std::string::npos);
      EXPECT_EQ(P2PCommDestroy(nullptr), HCCL_E_PTR);
      EXPECT_NE(std::string(P2PGetLastError()).find("comm is NULL"), std::string::npos);
      ++ended;
    }
  };
  std::thread([] {
    thread_local Last last;
    (void)&last;
    EXPECT_EQ(P2PCommDestroy(&ended), HCCL_E_NOT_FOUND);
    EXPECT_NE(std::string(P2PGetLastError()).size(), 0u);
  }).join();
  EXPECT_EQ(ended, 1);
}

TEST(P2pSetup, VersionsAndWarmth) {
  uint32_t major = 99, minor = 99, patch = 99;
  P2P_OK(P2PGetVersion(&major, &minor, &patch));
  EXPECT_LT(major, 99u);
  P2P_OK(P2PGetVersion(nullptr, nullptr, nullptr));
  // In a process of its own, which may get a GPU by it.
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(PrewarmHccp() == HCCL_SUCCESS && UnwarmHccp() == HCCL_SUCCESS ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Somebody with a secret that is worth nothing any more comes: a line in the log of this process.
void knockInVain() {
  HcclRootInfo info;
  P2P_OK(P2PGetRootInfo(&info));
  P2P_OK(P2PCancelRootInfo(&info));
  P2PComm comm = nullptr;
  P2PCommInitOptions options;
  options.timeoutMs = 2000;
  EXPECT_NE(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_SUCCESS);
}

TEST(P2pSetup, TheLogGoesToTheCallback) {
  static std::atomic<int> lines{0};
  P2PSetLogCallback(
      [](P2pLogSeverity severity, int, const char* file, int line, const char* message) {
        EXPECT_GE(severity, P2P_LOG_INFO);
        EXPECT_NE(file[0], '\0');
        EXPECT_GT(line, 0);
        EXPECT_NE(message[0], '\0');
        ++lines;
        lines.notify_all();
      });
  knockInVain();
  lines.wait(0);
  P2PSetLogCallback(nullptr);
}

TEST(P2pSetup, ALogCallbackThatThrowsIsReportedOnce) {
  static std::atomic<int> lines{0};
  testing::internal::CaptureStderr();
  P2PSetLogCallback([](P2pLogSeverity, int, const char*, int, const char*) {
    ++lines;
    lines.notify_all();
    throw std::runtime_error("thrown by a callback");
  });
  // The same thread logs them all: at the third one, what the second one threw has come to its end.
  for (int line = 0; line < 3; ++line) {
    knockInVain();
    lines.wait(line);
  }
  P2PSetLogCallback(nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t first = said.find("P2PSetLogCallback threw");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("P2PSetLogCallback threw", first + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace peerlane::p2p_test
