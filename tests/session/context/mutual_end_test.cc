// SPDX-License-Identifier: Apache-2.0
//
// Two sides that end at once, each in the proper way, with many imports between them: neither has
// anything to complain about.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "peerlane/session/peer/peer_core.h"
#include "tests/core/kept_log.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kReferences = 1;  // a channel
constexpr uint32_t kImported = 2;    // another
// Thousands of them, under a sanitizer, on a busy machine.
constexpr std::chrono::minutes kImportsTake{5};

// A forked child, and a line of bytes in each direction. Made before this process has a context.
class OtherSide {
 public:
  explicit OtherSide(const std::function<void(OtherSide&)>& act) {
    EXPECT_EQ(pipe(toChild_), 0);
    EXPECT_EQ(pipe(toParent_), 0);
    child_ = fork();
    if (child_ != 0) return;
    alarm(300);
    std::swap(toChild_, toParent_);  // what is written goes to the other, on both sides
    act(*this);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~OtherSide() {
    for (const int fd : {toChild_[0], toChild_[1], toParent_[0], toParent_[1]}) close(fd);
  }
  OtherSide(const OtherSide&) = delete;
  OtherSide& operator=(const OtherSide&) = delete;

  void say(const std::string& line) const {
    const std::string text = line + "\n";
    ASSERT_EQ(write(toChild_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string hear() const {
    std::string line;
    for (char c = 0; read(toParent_[0], &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void expectEnd() const {
    int status = -1;
    ASSERT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }

 private:
  int toChild_[2] = {-1, -1};
  int toParent_[2] = {-1, -1};
  pid_t child_ = 0;
};

struct Way {
  const char* name;
  const char* link;
  ShmEngine engine;
  bool isShared;  // the memory can be mapped by the peer
  bool isSealed;
};
constexpr Way kMapped{"mapped", "shm", ShmEngine::kAuto, true, false};
constexpr Way kWays[] = {kMapped,
                         {"cma", "shm", ShmEngine::kCma, false, false},
                         {"ring", "shm", ShmEngine::kRing, false, false},
                         {"tcp", "tcp", ShmEngine::kAuto, false, false},
                         {"sealed", "tcp", ShmEngine::kAuto, false, true},
                         {"verbs", "verbs", ShmEngine::kAuto, false, false}};

Config configOf(const Way& way) {
  Config config = withLinks({way.link});
  config.shmEngine = way.engine;
  config.tcpEncrypt = way.isSealed;
  if (const char* library = std::getenv("PEERLANE_IBV_SO")) config.ibvLibrary = library;
  return config;
}

class Memory {
 public:
  Memory(const Way& way, size_t pages) : bytes_(pages * kPage) {
    int fd = -1;
    if (way.isShared) {
      fd = memfd_create("regions", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes_)), 0);
      EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    }
    at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
               way.isShared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    EXPECT_NE(at_, MAP_FAILED);
    if (fd >= 0) close(fd);
  }
  ~Memory() { munmap(at_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A region for each page, and the peer's knowledge of them.
  std::vector<Region> share(Context& context, const Peer& peer) const {
    std::vector<Region> regions;
    for (size_t at = 0; at < bytes_; at += kPage) {
      regions.push_back(MUST(context.registerRegion(static_cast<std::byte*>(at_) + at, kPage,
                                                    Access::kRemoteReadWrite)));
      EXPECT_OK(peer.sendMessage(kReferences, regions.back().share(), kSoon));
    }
    return regions;
  }

 private:
  const size_t bytes_;
  void* at_ = nullptr;
};

std::vector<RemoteRegion> importAll(const Peer& peer, size_t count) {
  std::vector<RemoteRegion> imports;
  for (size_t i = 0; i < count; ++i)
    imports.push_back(MUST(peer.importRegion(MUST(peer.receiveMessage(kReferences, kSoon)))));
  for (const RemoteRegion& import : imports) EXPECT_OK(import.prepare(kSoon));
  return imports;
}

class MutualEnd : public testing::TestWithParam<std::tuple<Way, size_t>> {};

INSTANTIATE_TEST_SUITE_P(Ways, MutualEnd,
                         testing::Combine(testing::ValuesIn(kWays),
                                          testing::Values(size_t{1}, size_t{1000}, size_t{4000})),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "_" +
                                  std::to_string(std::get<1>(each.param));
                         });

TEST_P(MutualEnd, IsNotWorthALine) {
  const auto& [way, count] = GetParam();
  const OtherSide owner([way = way, count = count](const OtherSide& other) {
    const KeptLog log;
    const Memory memory(way, count);
    auto context = makeContext(configOf(way));
    Peer peer = MUST(context->connect(other.hear(), kSoon));
    memory.share(*context, peer);
    ASSERT_EQ(other.hear(), "end");
    peer = Peer();
    context.reset();
    EXPECT_EQ(log.text(), "");
  });
  const KeptLog log;
  auto context = makeContext(configOf(way), {"127.0.0.1:0"});
  owner.say(context->ticket());
  Peer peer = MUST(context->accept(kSoon));
  auto imports = importAll(peer, count);
  owner.say("end");
  imports.clear();
  peer = Peer();
  context.reset();
  owner.expectEnd();
  EXPECT_EQ(log.text(), "");
}

// Connected Unix sockets of this process whose sending end holds as much as the kernel allows, so
// that it takes no byte more.
int fullSockets() {
  int full = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0, room = 0, held = 0;
    socklen_t bytes = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX &&
        getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &bytes) == 0 &&
        ioctl(fd, SIOCOUTQ, &held) == 0 && held >= room)
      ++full;
  }
  return full;
}

// The releases of the imports fill the socket, because their owner does not read; then its goodbye
// comes, and the answer to that stands behind them. Releases are written together, so it takes
// many.
TEST(MutualEndOrder, AGoodbyeBehindManyReleasesArrives) {
  constexpr size_t kCount = 8000;
  const OtherSide importer([](const OtherSide& other) {
    const KeptLog log;
    auto context = makeContext(configOf(kMapped));
    const Peer peer = MUST(context->connect(other.hear(), kSoon));
    auto imports = importAll(peer, kCount);
    ASSERT_OK(peer.sendMessage(kImported, {}, kSoon));
    ASSERT_EQ(other.hear(), "drop");
    imports.clear();
    (void)peer.core()->progress().call([] {});  // they are released
    EXPECT_EQ(fullSockets(), 1);
    other.say("dropped");
    ASSERT_EQ(other.hear(), "end");
    context.reset();
    EXPECT_EQ(log.text(), "");
  });
  const KeptLog log;
  const Memory memory(kMapped, kCount);
  auto context = makeContext(configOf(kMapped));
  importer.say(context->ticket());
  const Peer peer = MUST(context->accept(kSoon));
  memory.share(*context, peer);
  ASSERT_OK(peer.receiveMessage(kImported, kImportsTake).status());
  {
    const StandingCallback stands(peer.core()->progress());
    importer.say("drop");
    ASSERT_EQ(importer.hear(), "dropped");
    peer.core()->progress().post([&] { peer.close(); });  // before it reads anything
  }
  context.reset();
  EXPECT_EQ(log.text(), "");
  importer.say("end");
  importer.expectEnd();
}

// Nor is one that is silent a line for each region that the program takes back.
TEST(MutualEndOrder, ASilentPeerIsNotALineForEachRegion) {
  constexpr size_t kCount = 1000;
  const OtherSide importer([](const OtherSide& other) {
    auto context = makeContext(configOf(kMapped));
    const Peer peer = MUST(context->connect(other.hear(), kSoon));
    const auto imports = importAll(peer, kCount);
    ASSERT_OK(peer.sendMessage(kImported, {}, kSoon));
    const StandingCallback stands(peer.core()->progress());
    ASSERT_EQ(other.hear(), "end");
  });
  Config impatient = configOf(kMapped);
  impatient.peerTimeout = std::chrono::seconds(1);
  const KeptLog log;
  const Memory memory(kMapped, kCount);
  auto context = makeContext(impatient);
  importer.say(context->ticket());
  const Peer peer = MUST(context->accept(kSoon));
  const auto regions = memory.share(*context, peer);
  ASSERT_OK(peer.receiveMessage(kImported, kImportsTake).status());
  ASSERT_TRUE(soon([&] { return peer.state() == "silent"; }));
  for (const Region& region : regions)
    EXPECT_EQ(context->unregister(region, {}).code(), Code::kPeerSilent);
  EXPECT_GE(log.countOf("is quarantined: peer 1 is silent"), 1) << log.text();
  EXPECT_LT(log.lines().size(), kCount / 10) << log.text();
  importer.say("end");
  importer.expectEnd();
  for (const Region& region : regions) EXPECT_OK(context->unregister(region, kSoon));
}

// A peer that says no goodbye is one line, however much it may write to.
TEST(MutualEndOrder, APeerWithoutAGoodbyeIsOneLine) {
  constexpr size_t kCount = 1000;
  const OtherSide importer([](const OtherSide& other) {
    auto context = makeContext(configOf(kMapped));
    const Peer peer = MUST(context->connect(other.hear(), kSoon));
    const auto imports = importAll(peer, kCount);
    ASSERT_OK(peer.sendMessage(kImported, {}, kSoon));
    const StandingCallback stands(peer.core()->progress());
    other.say("stands");
    ASSERT_EQ(other.hear(), "end");
  });
  Config hasty = configOf(kMapped);
  hasty.peerTimeout = std::chrono::milliseconds(1);  // for the goodbye that does not come
  hasty.heartbeat = std::chrono::hours(1);
  const KeptLog log;
  const Memory memory(kMapped, kCount);
  auto context = makeContext(hasty);
  importer.say(context->ticket());
  {
    const Peer peer = MUST(context->accept(kSoon));
    memory.share(*context, peer);
    ASSERT_OK(peer.receiveMessage(kImported, kImportsTake).status());
    ASSERT_EQ(importer.hear(), "stands");
  }
  context.reset();
  importer.say("end");
  importer.expectEnd();
  EXPECT_EQ(log.lines().size(), 1) << log.text();
  EXPECT_EQ(log.countOf("did not say goodbye, and may still write to 100"), 1) << log.text();
}

}  // namespace
}  // namespace peerlane
