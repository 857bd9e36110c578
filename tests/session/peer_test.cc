// SPDX-License-Identifier: Apache-2.0
//
// One connected peer: its state, its messages, its route, its end.
#include "peerlane/session/peer.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "tests/session/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string textOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class PeerTest : public testing::TestWithParam<const char*> {
 protected:
  PeerTest() : a_(makeContext(withLinks({GetParam()}))), b_(makeContext(withLinks({GetParam()}))) {
    toB_ = MUST(a_->connect(b_->ticket(), kSoon));
    toA_ = MUST(b_->accept(kSoon));
  }
  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  Peer toB_;
  Peer toA_;
};

INSTANTIATE_TEST_SUITE_P(Links, PeerTest, testing::Values("self", "shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(PeerTest, SaysWhoAndHow) {
  EXPECT_EQ(toB_.state(), "ready");
  EXPECT_OK(toB_.status());
  EXPECT_EQ(toB_.contextId(), b_->id());
  EXPECT_EQ(toB_.processId(), getpid());
  const Route route = toB_.route();
  EXPECT_EQ(route.link, GetParam());
  EXPECT_FALSE(route.sharedEngine.empty());
  EXPECT_FALSE(route.privateEngine.empty());
  EXPECT_TRUE(route.wordsBy == "mapped" || route.wordsBy == "agent") << route.wordsBy;
  EXPECT_TRUE(route.rightsEnforcedBy == "owner" || route.rightsEnforcedBy == "initiator");
  // Every link that was not taken is there with its reason.
  const std::string text = route.toString();
  for (const std::string link : {"self", "shm", "tcp"})
    if (link != GetParam()) {
      EXPECT_NE(text.find("link " + link + ": not among PEERLANE_LINKS"), std::string::npos)
          << text;
    }
  const std::string dump = a_->dump();
  EXPECT_NE(dump.find("context " + b_->id() + " ready"), std::string::npos) << dump;
  EXPECT_NE(dump.find("link " + std::string(GetParam())), std::string::npos) << dump;
}

TEST_P(PeerTest, MessagesKeepTheirOrderPerChannel) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_OK(toB_.sendMessage(1, bytesOf("one " + std::to_string(i))));
    EXPECT_OK(toB_.sendMessage(2, bytesOf("two " + std::to_string(i))));
    EXPECT_OK(toA_.sendMessage(1, bytesOf("back " + std::to_string(i))));
    EXPECT_EQ(textOf(MUST(toA_.receiveMessage(2, kSoon))), "two " + std::to_string(i));
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(textOf(MUST(toA_.receiveMessage(1, kSoon))), "one " + std::to_string(i));
    EXPECT_EQ(textOf(MUST(toB_.receiveMessage(1, kSoon))), "back " + std::to_string(i));
  }
  EXPECT_EQ(toA_.receiveMessage(1, 5ms).status().code(), Code::kTimeout);
}

TEST_P(PeerTest, MessagesHaveBounds) {
  const std::string largest(4096, 'x');
  EXPECT_OK(toB_.sendMessage(0x7fff'ffff, bytesOf(largest)));
  EXPECT_EQ(textOf(MUST(toA_.receiveMessage(0x7fff'ffff, kSoon))), largest);
  EXPECT_OK(toB_.sendMessage(3, {}));
  EXPECT_TRUE(MUST(toA_.receiveMessage(3, kSoon)).empty());
  const Status longer = toB_.sendMessage(1, bytesOf(largest + "x"));
  EXPECT_EQ(longer.code(), Code::kInvalidArgument);
  EXPECT_NE(longer.message().find("4097"), std::string_view::npos);
  const Status channel = toB_.sendMessage(0x8000'0000, {});
  EXPECT_EQ(channel.code(), Code::kInvalidArgument);
  EXPECT_NE(channel.message().find("2147483648"), std::string_view::npos);
  EXPECT_OK(toB_.status());
}

TEST_P(PeerTest, ClosingEndsBothSidesOnce) {
  toB_.close();
  EXPECT_EQ(toB_.state(), "closed");
  EXPECT_EQ(toB_.status().code(), Code::kClosed);
  EXPECT_TRUE(eventually([&] { return toA_.state() == "lost"; }));
  EXPECT_EQ(toA_.status().code(), Code::kPeerLost);
  toB_.close();
  toA_.close();
  EXPECT_EQ(toA_.status().code(), Code::kPeerLost) << "the first reason stays";
  EXPECT_EQ(toB_.sendMessage(1, {}).code(), Code::kClosed);
  EXPECT_EQ(toB_.receiveMessage(1, kSoon).status().code(), Code::kClosed);
  EXPECT_EQ(toA_.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
  EXPECT_TRUE(eventually([&] { return a_->peers().empty() && b_->peers().empty(); }));
}

TEST_P(PeerTest, BothMayCloseAtOnce) {
  for (int i = 0; i < 20; ++i) {
    const Peer toB = MUST(a_->connect(b_->ticket(), kSoon));
    const Peer toA = MUST(b_->accept(kSoon));
    std::thread other([&] { toA.close(); });
    toB.close();
    other.join();
    EXPECT_TRUE(eventually([&] { return a_->peers().size() == 1 && b_->peers().size() == 1; }));
  }
}

TEST_P(PeerTest, HandlesOutliveTheirContext) {
  b_.reset();
  EXPECT_EQ(toA_.state(), "closed");
  EXPECT_EQ(toA_.status().code(), Code::kClosed);
  EXPECT_EQ(toA_.sendMessage(1, {}).code(), Code::kClosed);
  EXPECT_EQ(toA_.contextId(), a_->id());
  EXPECT_EQ(toA_.route().link, GetParam());
  toA_.close();
  toA_ = Peer();
  EXPECT_TRUE(eventually([&] { return toB_.state() == "lost"; }));
  toB_ = Peer();
  EXPECT_TRUE(eventually([&] { return a_->peers().empty(); }));
}

TEST_P(PeerTest, ReceiversWakeWhenThePeerLeaves) {
  std::vector<std::thread> threads;
  std::atomic<int> told{0};
  for (uint32_t channel = 0; channel < 3; ++channel)
    threads.emplace_back([&, channel] {
      if (toA_.receiveMessage(channel, kSoon).status().code() == Code::kPeerLost) told.fetch_add(1);
    });
  toB_.close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told.load(), 3);
}

// --- The data connection of tcp, cut while the control connection lives ---

TEST(PeerTcp, LosingTheDataConnectionIsTheEndOfThePeer) {
  auto a = makeContext(withLinks({"tcp"}));
  auto b = makeContext(withLinks({"tcp"}));
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Peer toA = MUST(b->accept(kSoon));
  Region region = MUST(b->allocate(4096));
  Region source = MUST(a->allocate(4096));
  const RemoteRegion remote = MUST(toB.importRegion(region.share()));
  const Block block{&source, 0, &remote, 0, 4096};
  ASSERT_OK(MUST(put(toB, {&block, 1})).wait(kSoon));
  // Control goes over a Unix socket here: the connected IP sockets are the data.
  int cut = 0;
  DIR* folder = opendir("/proc/self/fd");
  ASSERT_NE(folder, nullptr);
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_storage address{};
    socklen_t bytes = sizeof(address);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
        address.ss_family == AF_INET && shutdown(fd, SHUT_RDWR) == 0)
      ++cut;
  }
  closedir(folder);
  ASSERT_GE(cut, 1);
  EXPECT_TRUE(eventually([&] { return toB.state() == "lost" && toA.state() == "lost"; }))
      << toB.state() << " and " << toA.state();
  EXPECT_EQ(put(toB, {&block, 1}).status().code(), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
