// SPDX-License-Identifier: Apache-2.0
//
// p2p.h between processes: in containers, with sides that die, with IPv6, before and after a fork.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "tests/os/leak_check.h"
#include "tests/os/refused_calls.h"
#include "tests/os/scratch_folder.h"
#include "tests/p2p/p2p_pair.h"
#include "tests/p2p/p2p_sides.h"

namespace peerlane::p2p_test {
namespace {

constexpr size_t kBytes = (size_t{3} << 20) + 5;

// Messages both ways, and memory of the other side read and written.
void useAll(const SideLine& line, bool isRoot) {
  const P2PComm comm = meetOver(line, isRoot);
  const auto sent = pattern(kBytes, isRoot ? 1 : 2);
  std::vector<uint8_t> got(kBytes);
  aclrtStream stream = nullptr;
  SIDE_OK(P2PHostStreamCreate(&stream));
  SIDE_OK(P2PRecv(got.data(), kBytes, HCCL_DATA_TYPE_UINT8, comm, stream));
  SIDE_OK(P2PSend(const_cast<uint8_t*>(sent.data()), kBytes, HCCL_DATA_TYPE_UINT8, comm, nullptr));
  SIDE_OK(P2PHostStreamSynchronize(stream, kSoonMs));
  SIDE_CHECK(got == pattern(kBytes, isRoot ? 2 : 1));
  void* shared = nullptr;
  SIDE_OK(P2PAllocHostMem(&shared, kBytes, P2P_NUMA_ANY));
  std::vector<uint8_t> heap = sent;
  std::memcpy(shared, sent.data(), kBytes);
  for (void* const memory : {shared, static_cast<void*>(heap.data())}) {
    P2pSegmentInfo own;
    SIDE_OK(P2PRegisterHostMem(memory, kBytes, &own, P2P_SEGMENT_READ_WRITE));
    line.send(own);
    line.send(memory);
    const auto far = line.receive<P2pSegmentInfo>();
    auto* const base = line.receive<uint8_t*>();
    SIDE_OK(P2PImportHostSegment(far));
    SIDE_OK(P2PGet(base, got.data(), kBytes, HCCL_DATA_TYPE_UINT8, comm, nullptr));
    SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
    SIDE_CHECK(got == pattern(kBytes, isRoot ? 2 : 1));
    line.meet();
    got[0] = 0xab;
    SIDE_OK(P2PPut(got.data(), base + 100, 1, HCCL_DATA_TYPE_UINT8, comm, nullptr));
    SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
    line.meet();
    SIDE_CHECK(static_cast<uint8_t*>(memory)[100] == 0xab);
    SIDE_OK(P2PUnimportSegment(far));
    SIDE_OK(P2PUnregisterMem(&own, kSoonMs));
  }
  SIDE_OK(P2PFreeHostMem(shared));
  SIDE_OK(P2PHostStreamDestroy(stream));
  line.meet();
  SIDE_OK(P2PCommDestroy(comm));
}
void useAllAsRoot(const SideLine& line) {
  useAll(line, true);
}
void useAllAsClient(const SideLine& line) {
  useAll(line, false);
}

TEST(P2pProcesses, SendAndCopy) {
  EXPECT_TRUE(runSides(useAllAsRoot, useAllAsClient));
}

// TODO item "containers": each side sees other processes and other IPC objects.
TEST(P2pProcesses, InContainersWithPidAndIpcNamespacesOfTheirOwn) {
  const int namespaces = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
  if (!mayUnshare(namespaces)) GTEST_SKIP() << "this system allows no namespaces";
  EXPECT_TRUE(runSides(useAllAsRoot, useAllAsClient, {.namespaces = namespaces}));
}

// And no network in common: a shared directory is the only way to each other.
TEST(P2pProcesses, InContainersThatShareADirectoryAlone) {
  const int namespaces = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET;
  if (!mayUnshare(namespaces)) GTEST_SKIP() << "this system allows no namespaces";
  const ScratchFolder folder;
  EXPECT_TRUE(runSides(useAllAsRoot, useAllAsClient,
                       {.namespaces = namespaces, .socketDirectory = folder.path()}));
}

// TODO item "IPv6".
TEST(P2pProcesses, OverIpv6) {
  const auto over = [](bool isRoot) {
    return [isRoot](const SideLine& line) {
      ::setenv("P2P_IF_IP", "::1", 1);
      const P2PComm comm = meetOver(line, isRoot, P2P_BIDIRECTIONAL, P2P_LINK_ROCE);
      uint64_t word = isRoot ? 5 : 0;
      SIDE_OK(isRoot ? P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, comm, nullptr)
                     : P2PRecv(&word, 1, HCCL_DATA_TYPE_INT64, comm, nullptr));
      SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
      SIDE_CHECK(word == 5);
      line.meet();
    };
  };
  EXPECT_TRUE(runSides(over(true), over(false)));
}

TEST(P2pProcesses, TheEnvironmentIsThatOfTheOriginal) {
  const auto check = [](const SideLine&) {
    HcclRootInfo root;
    // Nothing of it is free, so the range is what is looked at.
    ::setenv("P2P_PORT_RANGE", "70000", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(std::strstr(P2PGetLastError(), "P2P_PORT_RANGE") != nullptr);
    ::setenv("P2P_PORT_RANGE", "56850-56899", 1);
    ::setenv("P2P_IF_IP", "not an address", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(std::strstr(P2PGetLastError(), "P2P_IF_IP") != nullptr);
    ::unsetenv("P2P_IF_IP");
    ::setenv("IF_IP_DEFAULT", "127.0.0.1", 1);
    SIDE_OK(P2PGetRootInfo(&root));
    ::alarm(0);
  };
  EXPECT_TRUE(runSides(check, [](const SideLine&) {}));
}

int descriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

// Both sides destroy theirs at the same moment, which is when their goodbyes cross.
TEST(P2pProcesses, CommunicatorsThatComeAndGoLeaveNothing) {
  const auto comeAndGo = [](bool isRoot) {
    return [isRoot](const SideLine& line) {
      std::vector<uint8_t> memory(4096);
      int few = 0;
      for (int i = 0; i < 400; ++i) {
        const P2PComm comm = meetOver(line, isRoot, isRoot ? P2P_RECEIVER : P2P_SENDER);
        SIDE_OK(isRoot ? P2PRecv(memory.data(), 100, HCCL_DATA_TYPE_INT8, comm, nullptr)
                       : P2PSend(memory.data(), 100, HCCL_DATA_TYPE_INT8, comm, nullptr));
        SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
        P2pSegmentInfo segment;
        if (isRoot) {
          SIDE_OK(
              P2PRegisterHostMem(memory.data(), memory.size(), &segment, P2P_SEGMENT_READ_ONLY));
          line.send(segment);
          line.send(memory.data());
        } else {
          segment = line.receive<P2pSegmentInfo>();
          auto* const base = line.receive<uint8_t*>();
          SIDE_OK(P2PImportHostSegment(segment));
          SIDE_OK(P2PGet(base, memory.data(), 10, HCCL_DATA_TYPE_UINT8, comm, nullptr));
          SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
          SIDE_OK(P2PUnimportSegment(segment));
        }
        line.meet();
        SIDE_OK(P2PCommDestroy(comm));
        if (isRoot) SIDE_OK(P2PUnregisterMem(&segment, kSoonMs));
        if (i == 20) few = descriptors();
      }
      // The last ones may be on their way out; a peer has six and more.
      SIDE_CHECK(soon([&] { return descriptors() < few + 60; }));
      line.meet();  // a side that ends takes the other one's descriptors away
    };
  };
  EXPECT_TRUE(runSides(comeAndGo(true), comeAndGo(false), {.seconds = 240}));
}

// In one batch: what is mapped here, and what the kernel copies for this process.
TEST(P2pProcesses, OneBatchOfMemoryOfBothKinds) {
  constexpr size_t kSize = 100'000;
  struct Offer {
    P2pSegmentInfo info[2];
    uint8_t* base[2];
  };
  const auto owner = [](const SideLine& line) {
    const P2PComm comm = meetOver(line, true);
    std::vector<uint8_t> heap = pattern(kSize, 1);
    void* shared = nullptr;
    SIDE_OK(P2PAllocHostMem(&shared, kSize, P2P_NUMA_ANY));
    std::memcpy(shared, pattern(kSize, 2).data(), kSize);
    Offer offer{.info = {}, .base = {heap.data(), static_cast<uint8_t*>(shared)}};
    for (int i = 0; i < 2; ++i)
      SIDE_OK(P2PRegisterHostMem(offer.base[i], kSize, &offer.info[i], P2P_SEGMENT_READ_WRITE));
    line.send(offer);
    line.meet();
    SIDE_CHECK(heap[7] == 0xaa && offer.base[1][7] == 0xbb);
    SIDE_OK(P2PCommDestroy(comm));
  };
  const auto user = [](const SideLine& line) {
    const P2PComm comm = meetOver(line, false);
    const auto offer = line.receive<Offer>();
    for (const P2pSegmentInfo& info : offer.info) SIDE_OK(P2PImportHostSegment(info));
    std::vector<uint8_t> got(2 * kSize), wanted = pattern(kSize, 1);
    const auto second = pattern(kSize, 2);
    wanted.insert(wanted.end(), second.begin(), second.end());
    std::vector<P2pCopyEntry> pieces;
    for (size_t at = 0; at < 2 * kSize; at += 1000)
      pieces.push_back({got.data() + at, offer.base[at / kSize] + at % kSize, 1000});
    std::swap(pieces[3], pieces[180]);
    SIDE_OK(P2PGetBatch(pieces.data(), static_cast<uint32_t>(pieces.size()), comm, nullptr));
    SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
    SIDE_CHECK(got == wanted);
    uint8_t bytes[2] = {0xaa, 0xbb};
    const P2pCopyEntry back[] = {{bytes, offer.base[0] + 7, 1}, {bytes + 1, offer.base[1] + 7, 1}};
    SIDE_OK(P2PPutBatch(back, 2, comm, nullptr));
    SIDE_OK(P2PCommSynchronize(comm, kSoonMs));
    line.meet();
    SIDE_OK(P2PCommDestroy(comm));
  };
  EXPECT_TRUE(runSides(owner, user));
}

// The guest's patience ends before the owner comes: the root is as good as before.
TEST(P2pProcesses, ARootThatWasTriedTooEarly) {
  const auto owner = [](const SideLine& line) {
    HcclRootInfo root;
    SIDE_OK(P2PGetRootInfo(&root));
    line.send(root);
    line.meet();
    P2PComm comm = nullptr;
    SIDE_OK(P2PCommInitRootInfo(&root, P2P_BIDIRECTIONAL, P2P_LINK_AUTO, &comm));
    line.meet();
  };
  const auto guest = [](const SideLine& line) {
    const auto root = line.receive<HcclRootInfo>();
    P2PCommInitOptions options;
    P2PComm comm = nullptr;
    for (int i = 0; i < 3; ++i) {
      options.timeoutMs = 50;
      SIDE_CHECK(P2PCommInitRootInfo(&root, P2P_BIDIRECTIONAL, P2P_LINK_AUTO, &comm, &options) ==
                 HCCL_E_TIMEOUT);
    }
    line.meet();
    options.timeoutMs = kSoonMs;
    SIDE_OK(P2PCommInitRootInfo(&root, P2P_BIDIRECTIONAL, P2P_LINK_AUTO, &comm, &options));
    line.meet();
  };
  EXPECT_TRUE(runSides(owner, guest));
}

// Well written, and nothing that this host has.
TEST(P2pProcesses, AVariableThatCannotBeHadIsNamedWithItsValue) {
  const auto check = [](const SideLine&) {
    HcclRootInfo root;
    const auto says = [](const char* text) {
      return std::strstr(P2PGetLastError(), text) != nullptr;
    };
    ::setenv("P2P_IF_IP", "192.0.2.7", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(says("P2P_IF_IP is \"192.0.2.7\"") && says("lo 127.0.0.1"));
    ::unsetenv("P2P_IF_IP");
    ::setenv("HCCL_SOCKET_IFNAME", "nosuch", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(says("HCCL_SOCKET_IFNAME is \"nosuch\"") && says("there are lo"));
    ::unsetenv("HCCL_SOCKET_IFNAME");
    // A port that somebody has.
    ::setenv("P2P_IF_IP", "127.0.0.1", 1);
    const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    SIDE_CHECK(::bind(taken, raw, bytes) == 0 && ::listen(taken, 1) == 0);
    SIDE_CHECK(::getsockname(taken, raw, &bytes) == 0);
    const std::string port = std::to_string(ntohs(address.sin_port));
    ::setenv("P2P_PORT_RANGE", port.c_str(), 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_UNAVAIL);
    SIDE_CHECK(says(("P2P_PORT_RANGE is \"" + port + "\"").c_str()));
    // Who needs no network is not kept from it.
    ::setenv("PEERLANE_LINKS", "shm", 1);
    SIDE_OK(P2PGetRootInfo(&root));
    ::alarm(0);
  };
  EXPECT_TRUE(runSides(check, [](const SideLine&) {}));
}

// Listening sockets of this process of an address family.
int listening(int family) {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) {
    int domain = 0, listens = 0;
    socklen_t bytes = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != family) continue;
    (void)::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes);
    count += listens;
  }
  return count;
}

TEST(P2pProcesses, AnAddressFamilyIsKept) {
  const auto says = [](const char* text) {
    return std::strstr(P2PGetLastError(), text) != nullptr;
  };
  const auto refused = [&](const SideLine&) {
    HcclRootInfo root;
    ::setenv("P2P_ADDR_FAMILY", "ip5", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(says("P2P_ADDR_FAMILY is \"ip5\"; accepted: auto, ipv4, ipv6"));
    ::setenv("P2P_ADDR_FAMILY", "ipv6", 1);
    ::setenv("P2P_IF_IP", "127.0.0.1", 1);
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_PARA);
    SIDE_CHECK(says("no address to listen on: P2P_IF_IP is \"127.0.0.1\""));
    ::alarm(0);
  };
  const auto kept = [&](const SideLine&) {
    HcclRootInfo root;
    ::setenv("P2P_ADDR_FAMILY", "ipv4", 1);
    SIDE_OK(P2PGetRootInfo(&root));
    SIDE_CHECK(listening(AF_INET) > 0 && listening(AF_INET6) == 0);
    ::alarm(0);
  };
  EXPECT_TRUE(runSides(refused, kept));
  const auto ipv6 = [&](const SideLine&) {
    HcclRootInfo root;
    ::setenv("P2P_ADDR_FAMILY", "ipv6", 1);
    ::setenv("P2P_SOCKET_IFNAME", "lo", 1);
    const HcclResult result = P2PGetRootInfo(&root);  // not every host has IPv6
    SIDE_CHECK(result == HCCL_SUCCESS ? listening(AF_INET6) > 0
                                      : says("P2P_ADDR_FAMILY is \"ipv6\", which leaves no address "
                                             "to listen on: there are lo 127.0.0.1"));
    SIDE_CHECK(listening(AF_INET) == 0);
    ::alarm(0);
  };
  const auto either = [&](const SideLine&) {
    HcclRootInfo root;
    ::setenv("P2P_ADDR_FAMILY", "auto", 1);
    SIDE_OK(P2PGetRootInfo(&root));
    SIDE_CHECK(listening(AF_INET) > 0);
    ::alarm(0);
  };
  EXPECT_TRUE(runSides(ipv6, either));
}

TEST(P2pProcesses, AVariableWithoutAMeaningHereIsSaidOnce) {
  static std::atomic<int> lines{0};
  const auto check = [](const SideLine&) {
    P2PSetLogCallback([](P2pLogSeverity severity, int, const char*, int, const char* message) {
      if (severity == P2P_LOG_WARNING &&
          std::strstr(message, "P2P_ROCE_PORT_RANGE is \"1-2\", which is ignored") != nullptr)
        ++lines;
    });
    ::setenv("P2P_ROCE_PORT_RANGE", "1-2", 1);
    HcclRootInfo root;
    SIDE_OK(P2PGetRootInfo(&root));
    SIDE_CHECK(lines == 1);
    SIDE_OK(P2PCancelRootInfo(&root));
    SIDE_OK(UnwarmHccp());
    SIDE_OK(P2PGetRootInfo(&root));
    SIDE_CHECK(lines == 1);
    P2PSetLogCallback(nullptr);
    ::alarm(0);
  };
  EXPECT_TRUE(runSides(check, [](const SideLine&) {}));
}

// As a GPU would say it, which reads the file.
TEST(P2pProcesses, AFileOfThresholdsThatIsMissingIsReported) {
  const auto check = [](const SideLine&) {
    ::setenv("PEERLANE_TUNE", "/nonexistent/thresholds", 1);
    HcclRootInfo root;
    SIDE_CHECK(P2PGetRootInfo(&root) == HCCL_E_UNAVAIL);
    SIDE_CHECK(std::strstr(P2PGetLastError(), "PEERLANE_TUNE is \"/nonexistent") != nullptr);
  };
  EXPECT_TRUE(runSides(check, [](const SideLine&) {}));
}

// Sockets in a directory outlive whoever made them, unless they are removed.
TEST(P2pProcesses, NothingIsLeftInTheDirectoryOfSockets) {
  const ScratchFolder folder;
  const auto files = [&] {
    const std::filesystem::directory_iterator all(folder.path());
    return std::distance(begin(all), end(all));
  };
  // Both leave by exit(), and one of them after a child of its own, which has no part in it.
  const auto leave = [&](bool isRoot) {
    return [&, isRoot](const SideLine& line) {
      ::setenv("PEERLANE_SOCKET_DIR", folder.path().c_str(), 1);
      const P2PComm comm = meetOver(line, isRoot);
      SIDE_CHECK(files() > 0);
      line.meet();
      if (isRoot) {
        const auto before = files();
        const pid_t child = ::fork();
        if (child == 0) exitWithoutLeakCheck(0);
        SIDE_CHECK(child::collect(child, child::Clock::now() + std::chrono::seconds(20)) == 0);
        SIDE_CHECK(files() == before);
      }
      line.meet();
      SIDE_OK(P2PCommDestroy(comm));
      std::exit(0);
    };
  };
  EXPECT_TRUE(runSides(leave(true), leave(false)));
  EXPECT_EQ(files(), 0);
}

// The other side is there when it connects and gone when the root looks.
TEST(P2pProcesses, ASideThatIsGoneBeforeItIsAccepted) {
  const auto root = [](const SideLine& line) {
    HcclRootInfo info;
    SIDE_OK(P2PGetRootInfo(&info));
    line.send(info);
    line.awaitEnd();
    P2PCommInitOptions options;
    options.timeoutMs = 3000;
    P2PComm comm = nullptr;
    const HcclResult result =
        P2PCommInitRootInfo(&info, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &options);
    SIDE_CHECK(result == HCCL_E_REMOTE || result == HCCL_E_TIMEOUT);
    SIDE_OK(P2PGetRootInfo(&info));  // and the next one is not disturbed
    SIDE_OK(P2PCancelRootInfo(&info));
  };
  const auto client = [](const SideLine& line) {
    const auto info = line.receive<HcclRootInfo>();
    P2PCommInitOptions options;
    options.timeoutMs = 300;
    P2PComm comm = nullptr;
    // It connects; nobody accepts.
    SIDE_CHECK(P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options) !=
               HCCL_SUCCESS);
    ::_exit(0);
  };
  EXPECT_TRUE(runSides(root, client));
}

// The other side has reached this process, and waits for it to take part.
TEST(P2pProcesses, ARootThatIsTakenBackEndsWhoeverWaitsWithIt) {
  const auto root = [](const SideLine& line) {
    HcclRootInfo info;
    SIDE_OK(P2PGetRootInfo(&info));
    line.send(info);
    (void)line.receive<char>();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    SIDE_OK(P2PCancelRootInfo(&info));
    line.meet();
  };
  const auto client = [](const SideLine& line) {
    const auto info = line.receive<HcclRootInfo>();
    line.send('c');
    P2PCommInitOptions options;
    options.timeoutMs = kSoonMs;
    P2PComm comm = nullptr;
    const HcclResult result =
        P2PCommInitRootInfo(&info, P2P_SENDER, P2P_LINK_AUTO, &comm, &options);
    // Or it came too late to wait.
    SIDE_CHECK(result == HCCL_E_REMOTE || result == HCCL_E_TCP_CONNECT);
    SIDE_CHECK(std::strstr(P2PGetLastError(), "P2PCancelRootInfo") != nullptr);
    line.meet();
  };
  EXPECT_TRUE(runSides(root, client));
}

TEST(P2pProcesses, ASideThatIsKilledIsReported) {
  const auto survivor = [](const SideLine& line) {
    const P2PComm comm = meetOver(line, true);
    std::vector<uint8_t> got(1 << 20);
    SIDE_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, comm, nullptr));
    const auto victim = line.receive<pid_t>();
    ::kill(victim, SIGKILL);
    SIDE_CHECK(P2PCommSynchronize(comm, kSoonMs) == HCCL_E_REMOTE);
    HcclResult error = HCCL_SUCCESS;
    SIDE_OK(P2PGetCommAsyncError(comm, &error));
    SIDE_CHECK(error == HCCL_E_REMOTE);
    int seconds = 0;
    SIDE_OK(P2PGetCommHeartbeat(comm, &seconds));
    SIDE_CHECK(seconds == -1);
    SIDE_OK(P2PCommDestroy(comm));
  };
  const auto victim = [](const SideLine& line) {
    const P2PComm comm = meetOver(line, false);
    (void)comm;
    line.send(::getpid());
    for (;;) ::pause();
  };
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const pid_t one = startSide(survivor, fds[0], fds[1], {});
  const pid_t two = startSide(victim, fds[1], fds[0], {});
  const auto deadline = child::Clock::now() + std::chrono::seconds(60);
  EXPECT_EQ(child::collect(one, deadline), 0);
  EXPECT_EQ(child::collect(two, deadline), 128 + SIGKILL);
  ::close(fds[0]);
  ::close(fds[1]);
}

// Static destructors of the program run while communicators are in use: what the library keeps for
// its threads has to be there.
TEST(P2pProcesses, AProcessThatExitsMayStillUseThem) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    static Pair* pair = nullptr;
    // Registered first, so it is called behind all destructors of what is made meanwhile. By
    // another thread: what this one had for itself is gone.
    const auto use = [] {
      for (int i = 0; i < 100; ++i) {
        auto sent = pattern(100000, 4);
        std::vector<uint8_t> got(sent.size());
        SIDE_OK(P2PRecv(got.data(), got.size(), HCCL_DATA_TYPE_UINT8, pair->client(), nullptr));
        SIDE_OK(P2PSend(sent.data(), sent.size(), HCCL_DATA_TYPE_UINT8, pair->root(), nullptr));
        SIDE_OK(P2PCommSynchronize(pair->client(), kSoonMs));
        SIDE_OK(P2PCommSynchronize(pair->root(), kSoonMs));  // it may still use `sent`
        SIDE_CHECK(got == sent);
      }
    };
    static const auto late = use;
    (void)std::atexit([] {
      std::thread(late).join();
      ::_exit(0);
    });
    pair = new Pair({.link = P2P_LINK_ROCE}, {.link = P2P_LINK_ROCE});
    uint64_t word = 9, got = 0;
    SIDE_OK(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, pair->root(), nullptr));
    SIDE_OK(P2PRecv(&got, 1, HCCL_DATA_TYPE_INT64, pair->client(), nullptr));
    SIDE_OK(P2PCommSynchronize(pair->client(), kSoonMs));
    SIDE_OK(P2PCommSynchronize(pair->root(), kSoonMs));
    std::exit(3);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
}

// Whoever used the library and forks has children that begin anew.
TEST(P2pProcesses, AChildBeginsAnew) {
  const Pair pair;
  aclrtStream stream = nullptr;
  P2P_OK(P2PHostStreamCreate(&stream));
  auto memory = pattern(64, 1);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(memory.data(), memory.size(), &info, P2P_SEGMENT_READ_WRITE));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    SIDE_CHECK(P2PCommDestroy(pair.root()) == HCCL_E_NOT_FOUND);
    {
      const Pair own;
      // And what the child makes is not what the parent had.
      aclrtStream fresh = nullptr;
      SIDE_OK(P2PHostStreamCreate(&fresh));
      SIDE_CHECK(P2PHostStreamDestroy(stream) == HCCL_E_NOT_FOUND);
      SIDE_OK(P2PHostStreamDestroy(fresh));
      auto far = pattern(64, 1);
      P2pSegmentInfo segment;
      SIDE_OK(P2PRegisterHostMem(far.data(), far.size(), &segment, P2P_SEGMENT_READ_WRITE));
      SIDE_CHECK(P2PUnregisterMem(&info, kSoonMs) == HCCL_E_NOT_FOUND);
      SIDE_OK(P2PUnregisterMem(&segment, kSoonMs));
      for (const P2PComm theirs : {pair.root(), pair.client()}) {
        SIDE_CHECK(theirs != own.root() && theirs != own.client());
        SIDE_CHECK(P2PScatterBatchFromRemoteHostMemDone(theirs) == HCCL_E_NOT_FOUND);
      }
      uint64_t word = 9, got = 0;
      SIDE_OK(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, own.root(), nullptr));
      SIDE_OK(P2PRecv(&got, 1, HCCL_DATA_TYPE_INT64, own.client(), nullptr));
      SIDE_OK(P2PCommSynchronize(own.client(), kSoonMs));
      SIDE_OK(P2PCommSynchronize(own.root(), kSoonMs));
      SIDE_CHECK(got == 9);
    }
    ::_exit(0);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
  uint64_t word = 9, got = 0;
  P2P_OK(P2PSend(&word, 1, HCCL_DATA_TYPE_INT64, pair.root(), nullptr));
  P2P_OK(P2PRecv(&got, 1, HCCL_DATA_TYPE_INT64, pair.client(), nullptr));
  P2P_OK(P2PCommSynchronize(pair.client(), kSoonMs));
  P2P_OK(P2PCommSynchronize(pair.root(), kSoonMs));
  EXPECT_EQ(got, 9u);
  P2P_OK(P2PUnregisterMem(&info, kSoonMs));
  P2P_OK(P2PHostStreamDestroy(stream));
}

// A process without random numbers has no name for its memory: it ends, and says by which call.
TEST(P2pProcesses, NamesTheCallThatTheSystemRefuses) {
  const auto use = [] {
    refuseCalls(SYS_getrandom, EPERM);
    aclrtStream stream = nullptr;
    (void)P2PHostStreamCreate(&stream);
  };
  EXPECT_DEATH(use(), "getrandom: Operation not permitted");
}

}  // namespace
}  // namespace peerlane::p2p_test
