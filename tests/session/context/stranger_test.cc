// SPDX-License-Identifier: Apache-2.0
//
// Those who connect and have no business here: how much of this process they can take, and how much
// of its log. And a system that gives this process less than others.
#include <fcntl.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "peerlane/core/log.h"
#include "peerlane/os/process.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/wire/handshake.h"
#include "tests/os/child_process.h"
#include "tests/os/refused_calls.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

SocketAddress doorOf(const Context& context) {
  return MUST(SocketAddress::parse(context.addresses().front()));
}

// What the other side says before it hangs up, or nothing for now.
std::vector<std::byte> heardBy(const Fd& socket) {
  std::vector<std::byte> heard(64);
  const auto got = recvSome(socket.get(), heard);
  heard.resize(got.isOk() ? *got : 0);
  return heard;
}

TEST(Strangers, HaveSoMuchRoomAndNoMore) {
  Config config;
  config.connectTimeout = 60s;
  auto host = makeContext(config);
  constexpr size_t kAll = 200;
  constexpr size_t kRoom = 128;  // of one user
  std::vector<Fd> strangers;
  for (size_t i = 0; i < kAll; ++i) strangers.push_back(MUST(connectStart(doorOf(*host))));
  const auto noRoom = Handshake::rejectionFor(Handshake::Reason::kNoRoom);
  std::vector<bool> told(kAll, false);
  const auto countTold = [&] {
    for (size_t i = 0; i < kAll; ++i)
      if (!told[i] && heardBy(strangers[i]) == noRoom) told[i] = true;
    return static_cast<size_t>(std::count(told.begin(), told.end(), true));
  };
  EXPECT_TRUE(soon([&] { return countTold() >= kAll - kRoom; })) << countTold();
  // Their room is free again when they leave.
  strangers.clear();
  auto guest = makeContext();
  EXPECT_OK(guest->connect(host->ticket(), kSoon).status());
}

TEST(Strangers, WhoSaysNothingIsShownOutSoon) {
  Config config;
  config.connectTimeout = 60s;
  auto host = makeContext(config);
  const Fd stranger = MUST(connectStart(doorOf(*host)));
  pollfd gone{stranger.get(), POLLIN, 0};
  EXPECT_EQ(poll(&gone, 1, 30'000), 1) << "half of the time that a guest has";
}

TEST(Strangers, FillNoLog) {
  static std::atomic<size_t> lines;  // a sink may be called a last time after it was replaced
  lines = 0;
  auto host = makeContext();
  setLogSink([](LogLevel, std::string_view, std::string_view) { ++lines; });
  constexpr size_t kAll = 300;
  for (size_t i = 0; i < kAll; ++i) {
    const Fd stranger = MUST(connectStart(doorOf(*host)));
    (void)sendSome(stranger.get(), std::as_bytes(std::span("GET / HTTP/1.1", 14)));
    pollfd gone{stranger.get(), POLLIN, 0};
    EXPECT_EQ(poll(&gone, 1, 20'000), 1);
  }
  setLogSink({});
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, kAll / 2);
}

TEST(Strangers, LeaveNoFilesBehindForEver) {
  // The files of a process that was killed, as a later one finds them.
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("peerlane-" + std::to_string(getpid()))).string();
  std::filesystem::create_directory(folder);
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"/peerlane-0123.sock", "/peerlane-inspect-7-0123"})
      if (!listenOn(MUST(SocketAddress::parse("unix:" + folder + name))).isOk()) _exit(1);
    _exit(0);
  }
  ASSERT_EQ(child::collect(child, child::Clock::now() + 60s), 0);
  size_t files = 0;
  const std::array<timespec, 2> old{};  // 1970
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ASSERT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), old.data(), 0), 0);
    ++files;
  }
  ASSERT_EQ(files, 2u);
  {
    Config config;
    config.socketDirectory = folder;
    auto context = makeContext(config);
    for (const char* name : {"/peerlane-0123.sock", "/peerlane-inspect-7-0123"})
      EXPECT_FALSE(std::filesystem::exists(folder + name)) << name;
  }
  std::filesystem::remove_all(folder);
}

// --- Doors that nobody needs ---

size_t ipListeners() {
  std::set<ino_t> sockets;  // one may be open twice
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int listens = 0;
    int domain = 0;
    socklen_t bytes = sizeof listens;
    struct stat file {};
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0 &&
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_UNIX &&
        fstat(fd, &file) == 0)
      sockets.insert(file.st_ino);
  }
  return sockets.size();
}

TEST(Strangers, FindNoTcpPortWhereTheProgramListensNowhere) {
  auto a = makeContext(withLinks({"shm", "tcp"}));
  auto b = makeContext(withLinks({"shm", "tcp"}));
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  EXPECT_EQ(toB.route().link, "shm");
  EXPECT_EQ(ipListeners(), 0u);
  // Who can use nothing else is offered it.
  auto c = makeContext(withLinks({"tcp"}));
  const Peer onlyTcp = MUST(c->connect(b->ticket(), kSoon));
  EXPECT_EQ(onlyTcp.route().link, "tcp");
  EXPECT_EQ(ipListeners(), 1u);
}

// --- A system that gives less ---

void connectAndUnregister() {
  auto a = makeContext();
  auto b = makeContext();
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Region region = MUST(b->allocate(4096));
  EXPECT_OK(MUST(toB.importRegion(region.share())).prepare(kSoon));
  EXPECT_OK(b->unregister(region, kSoon));
}

// The child runs this very test again, as a new program: the kernel's registration and what is
// known of it belong to a process.
TEST(Strangers, AKernelWithoutMembarrierIsNoObstacle) {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) == -1) {
    connectAndUnregister();
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    refuseCalls(SYS_membarrier, EPERM);
    execl("/proc/self/exe", "session_tests",
          "--gtest_filter=Strangers.AKernelWithoutMembarrierIsNoObstacle",
          "--gtest_output=", nullptr);
    _exit(91);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + 120s), 0);
}

}  // namespace
}  // namespace peerlane
