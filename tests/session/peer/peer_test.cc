// SPDX-License-Identifier: Apache-2.0
//
// One connected peer: its state, its messages, its route, its end.
#include "peerlane/session/peer/peer.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

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

// Both look at a descriptor as an event loop does.
bool isReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}
bool becomesReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kSoon).count())) == 1;
}

TEST_P(PeerTest, ADescriptorTellsOfMessages) {
  const int one = MUST(toA_.messageFd(1)), two = MUST(toA_.messageFd(2));
  EXPECT_NE(one, two);
  EXPECT_EQ(MUST(toA_.messageFd(1)), one);
  EXPECT_FALSE(isReadable(one));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_OK(toB_.sendMessage(1, bytesOf(std::to_string(i))));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(becomesReadable(one));
      EXPECT_EQ(textOf(MUST(toA_.receiveMessage(1, 0ns))), std::to_string(i));
    }
    EXPECT_FALSE(isReadable(one));
  }
  EXPECT_FALSE(isReadable(two)) << "nothing came there";
  EXPECT_OK(toB_.sendMessage(3, bytesOf("early")));
  EXPECT_TRUE(becomesReadable(MUST(toA_.messageFd(3)))) << "asked for after it was sent";
}

TEST_P(PeerTest, ADescriptorForMessagesTellsOfThePeersEnd) {
  const int fd = MUST(toA_.messageFd(1));
  EXPECT_OK(toB_.sendMessage(1, bytesOf("last")));
  ASSERT_TRUE(becomesReadable(fd));
  toB_.close();
  ASSERT_TRUE(soon([&] { return toA_.state() == "lost"; }));
  EXPECT_EQ(textOf(MUST(toA_.receiveMessage(1, 0ns))), "last");
  EXPECT_TRUE(becomesReadable(fd));
  EXPECT_EQ(toA_.receiveMessage(1, 0ns).status().code(), Code::kPeerLost);
  const int quiet = MUST(toA_.messageFd(2));
  EXPECT_TRUE(isReadable(quiet)) << "asked for afterwards";
}

TEST_P(PeerTest, AWatchedSilentChannelTellsOfThePeersEnd) {
  const int fd = MUST(toA_.messageFd(7));
  EXPECT_FALSE(isReadable(fd));
  toB_.close();
  EXPECT_TRUE(becomesReadable(fd));
}

TEST_P(PeerTest, ADescriptorTellsOfPeersToAccept) {
  const int fd = MUST(b_->acceptFd());
  EXPECT_EQ(MUST(b_->acceptFd()), fd);
  EXPECT_FALSE(isReadable(fd));
  const Peer first = MUST(a_->connect(b_->ticket(), kSoon));
  const Peer second = MUST(a_->connect(b_->ticket(), kSoon));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(becomesReadable(fd));
    EXPECT_OK(b_->accept(0ns).status());
  }
  EXPECT_FALSE(isReadable(fd));
  // One that leaves before it was taken is no longer there.
  const Peer third = MUST(a_->connect(b_->ticket(), kSoon));
  ASSERT_TRUE(becomesReadable(fd));
  third.close();
  EXPECT_TRUE(soon([&] { return !isReadable(fd); }));
  EXPECT_EQ(b_->accept(0ns).status().code(), Code::kTimeout);
}

TEST_P(PeerTest, UnreadMessagesEndNobody) {
  for (uint32_t i = 0; i < limits::kMessagesPerChannel; ++i)
    EXPECT_OK(toB_.sendMessage(0, bytesOf(std::to_string(i))));
  const Status full = toB_.sendMessage(0, bytesOf("one more"));
  EXPECT_EQ(full.code(), Code::kTryAgain);
  EXPECT_NE(full.message().find("64 messages of channel 0"), std::string_view::npos)
      << full.toString();
  const Status late = toB_.sendMessage(0, bytesOf("one more"), 1ms);
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_NE(late.message().find("64 messages of channel 0"), std::string_view::npos);
  EXPECT_OK(toB_.sendMessage(1, bytesOf("elsewhere")));
  EXPECT_EQ(textOf(MUST(toA_.receiveMessage(1, kSoon))), "elsewhere") << "the others are here, too";
  EXPECT_OK(toA_.status());
  EXPECT_OK(toB_.status());
  for (uint32_t i = 0; i < limits::kMessagesPerChannel; ++i)
    EXPECT_EQ(textOf(MUST(toA_.receiveMessage(0, kSoon))), std::to_string(i));
  EXPECT_OK(toB_.sendMessage(0, bytesOf("and on"), kSoon));
  EXPECT_EQ(textOf(MUST(toA_.receiveMessage(0, kSoon))), "and on");
}

TEST_P(PeerTest, AMessageWaitsForRoom) {
  constexpr uint32_t kCount = 500;
  std::thread sender([&] {
    for (uint32_t i = 0; i < kCount; ++i)
      EXPECT_OK(toB_.sendMessage(0, bytesOf(std::to_string(i)), kSoon));
  });
  for (uint32_t i = 0; i < kCount; ++i)
    EXPECT_EQ(textOf(MUST(toA_.receiveMessage(0, kSoon))), std::to_string(i));
  sender.join();
}

// The program's messages are taken by nobody, and everything of the library's goes on.
TEST_P(PeerTest, TheProgramsMessagesStarveNoneOfTheLibrarys) {
  for (uint32_t i = 0; i < limits::kMessagesPerPeer; ++i)
    ASSERT_OK(toB_.sendMessage(i / limits::kMessagesPerChannel, {}));
  const Status full = toB_.sendMessage(5000, {});
  EXPECT_EQ(full.code(), Code::kTryAgain);
  EXPECT_NE(full.message().find("1024 messages of 16 channels"), std::string_view::npos)
      << full.toString();
  // More than are let through before somebody listens, and all of them in order.
  constexpr uint32_t kLibrarys = 0x9000'0000u;
  constexpr uint32_t kNotes = 300;
  for (uint32_t i = 0; i < kNotes; ++i)
    ASSERT_OK(toB_.core()->messages().send(
        kLibrarys, {static_cast<std::byte>(i), static_cast<std::byte>(i >> 8)}));
  const Region region = MUST(b_->allocate(4096));
  const RemoteRegion remote = MUST(toB_.importRegion(region.share()));
  EXPECT_OK(remote.prepare(kSoon));
  std::vector<uint32_t> heard;
  std::atomic<uint32_t> count{0};
  toA_.core()->messages().onMessage(kLibrarys, [&](const std::vector<std::byte>& note) {
    heard.push_back(std::to_integer<uint32_t>(note.at(0)) | std::to_integer<uint32_t>(note.at(1))
                                                                << 8);
    count.store(static_cast<uint32_t>(heard.size()), std::memory_order_release);
  });
  EXPECT_TRUE(soon([&] { return count.load(std::memory_order_acquire) == kNotes; }));
  for (uint32_t i = 0; i < heard.size(); ++i) ASSERT_EQ(heard[i], i);
  toA_.core()->messages().onMessage(kLibrarys, nullptr);
  EXPECT_OK(toA_.core()->progress().call([] {}));
  EXPECT_OK(toA_.status());
}

TEST_P(PeerTest, WhatArrivedIsReceivedAfterTheEnd) {
  for (const char* text : {"one", "two", "three"}) EXPECT_OK(toB_.sendMessage(0, bytesOf(text)));
  a_.reset();
  ASSERT_TRUE(soon([&] { return toA_.state() == "lost"; }));
  for (const char* text : {"one", "two", "three"})
    EXPECT_EQ(textOf(MUST(toA_.receiveMessage(0, 0ns))), text);
  EXPECT_EQ(toA_.receiveMessage(0, kSoon).status().code(), Code::kPeerLost);
}

// More than are asked for at once, and one of them twice: its second wish comes to the front when
// the answer to the first has just come.
TEST_P(PeerTest, ManyRegionsAreImportedAtOnce) {
  constexpr uint32_t kAtOnce = limits::kImportsUnderWay;
  std::vector<Region> regions;
  std::vector<RemoteRegion> remotes;
  const auto wish = [&](const Region& region) {
    remotes.push_back(MUST(toB_.importRegion(region.share())));
    toB_.core()->imports().request(remotes.back().reference(), remotes.back().slot());
  };
  {
    const StandingCallback still(toA_.core()->progress());
    for (uint32_t i = 0; i < 2 * kAtOnce; ++i) regions.push_back(MUST(b_->allocate(4096)));
    for (const Region& region : regions) wish(region);
    wish(regions[kAtOnce]);
    EXPECT_OK(toB_.core()->progress().call([] {}));
  }
  for (const RemoteRegion& remote : remotes) EXPECT_OK(remote.prepare(kSoon));
  EXPECT_EQ(remotes.back().slot()->region, remotes[kAtOnce].slot()->region) << "imported once";
}

TEST_P(PeerTest, NotificationsThatFindNoRoomAreBounded) {
  constexpr uint32_t kAll = limits::kNotificationSlots + limits::kNotificationsWaiting;
  for (uint32_t i = 0; i < limits::kNotificationSlots; ++i)
    ASSERT_OK(MUST(notify(toB_, {.message = bytesOf(""), .tag = i})).wait(kSoon));
  for (uint32_t i = limits::kNotificationSlots; i < kAll; ++i)
    ASSERT_OK(notify(toB_, {.message = bytesOf(""), .tag = i}).status());
  const Status full = notify(toB_, {.message = bytesOf("")}).status();
  EXPECT_EQ(full.code(), Code::kTryAgain);
  EXPECT_NE(full.message().find("1024 notifications wait for room at the peer, which has 16"),
            std::string_view::npos)
      << full.toString();
  EXPECT_OK(notify(toB_, {.signal = 1u}).status()) << "a signal needs no room";
  for (uint32_t i = 0; i < kAll; ++i) EXPECT_EQ(MUST(waitNotification(toA_, kSoon)).tag, i);
  EXPECT_OK(flush(toB_, kSoon));
  EXPECT_OK(notify(toB_, {.message = bytesOf("")}).status());
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
  EXPECT_TRUE(soon([&] { return toA_.state() == "lost"; }));
  EXPECT_EQ(toA_.status().code(), Code::kPeerLost);
  // Each side by its own number.
  for (const Peer& peer : {toA_, toB_})
    EXPECT_TRUE(peer.status().message().starts_with("peer " + std::to_string(peer.number()) + ": "))
        << peer.status().toString();
  toB_.close();
  toA_.close();
  EXPECT_EQ(toA_.status().code(), Code::kPeerLost) << "the first reason stays";
  EXPECT_EQ(toB_.sendMessage(1, {}).code(), Code::kClosed);
  EXPECT_EQ(toB_.receiveMessage(1, kSoon).status().code(), Code::kClosed);
  EXPECT_EQ(toA_.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
  EXPECT_TRUE(soon([&] { return a_->peers().empty() && b_->peers().empty(); }));
}

TEST_P(PeerTest, BothMayCloseAtOnce) {
  for (int i = 0; i < 20; ++i) {
    const Peer toB = MUST(a_->connect(b_->ticket(), kSoon));
    const Peer toA = MUST(b_->accept(kSoon));
    std::thread other([&] { toA.close(); });
    toB.close();
    other.join();
    EXPECT_TRUE(soon([&] { return a_->peers().size() == 1 && b_->peers().size() == 1; }));
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
  EXPECT_TRUE(soon([&] { return toB_.state() == "lost"; }));
  toB_ = Peer();
  EXPECT_TRUE(soon([&] { return a_->peers().empty(); }));
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

// --- A peer that is not heard for a while: its progress thread stands still ---

Config hearingBadly(const char* link, std::chrono::milliseconds patience = 1s) {
  Config config = withLinks({link});
  config.peerTimeout = patience;
  return config;
}

// What was asked of it meanwhile is imported once it is heard again.
TEST_P(PeerTest, ImportsWorkAgainAfterSilence) {
  auto a = makeContext(hearingBadly(GetParam()));
  const Peer toB = MUST(a->connect(b_->ticket(), kSoon));
  const Peer toA = MUST(b_->accept(kSoon));
  const Region near = MUST(a->allocate(4096));
  const Region far = MUST(b_->allocate(4096));
  const RemoteRegion before = MUST(toB.importRegion(far.share()));
  const RemoteRegion during = MUST(toB.importRegion(far.share()));
  const RemoteRegion posted = MUST(toB.importRegion(far.share()));
  const auto slot = posted.slot();
  {
    const StandingCallback still(toA.core()->progress());
    EXPECT_EQ(before.prepare(kSoon).code(), Code::kPeerSilent) << "asked while it was thought well";
    EXPECT_EQ(toB.state(), "silent");
    EXPECT_NE(toB.status().message().find("PEERLANE_PEER_TIMEOUT"), std::string_view::npos);
    EXPECT_EQ(during.prepare(kSoon).code(), Code::kPeerSilent);
    const Block block{&near, 0, &posted, 0, 4096};
    EXPECT_EQ(put(toB, {&block, 1}).status().code(), Code::kPeerSilent);
    // As a post that had been checked just before the silence was noticed.
    toB.core()->imports().request(posted.reference(), slot);
  }
  EXPECT_TRUE(soon([&] { return toB.state() == "ready"; }));
  for (const RemoteRegion* remote : {&before, &during, &posted}) {
    EXPECT_OK(remote->prepare(kSoon));
    const Block block{&near, 0, remote, 0, 4096};
    EXPECT_OK(MUST(put(toB, {&block, 1})).wait(kSoon));
  }
}

// Who stood still himself has not heard what was said meanwhile: that is no silence of the peer.
TEST_P(PeerTest, OwnStandstillIsNoSilenceOfThePeer) {
  auto a = makeContext(hearingBadly(GetParam(), 500ms));
  const Peer toB = MUST(a->connect(b_->ticket(), kSoon));
  const Peer toA = MUST(b_->accept(kSoon));
  for (int round = 0; round < 3; ++round) {
    {
      const StandingCallback still(toB.core()->progress());
      std::this_thread::sleep_for(800ms);  // above a's patience; nothing waits for it
    }
    // Silence would end the wait.
    EXPECT_EQ(waitNotification(toB, 30ms).status().code(), Code::kTimeout) << round;
    EXPECT_EQ(toB.state(), "ready");
  }
  // And it is still noticed where it is.
  const StandingCallback still(toA.core()->progress());
  EXPECT_TRUE(soon([&] { return toB.state() == "silent"; }));
}

// --- The slab: docs/wire.md, "Slab", written out by hand ---

std::vector<std::byte> fromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}
std::vector<std::byte> slabAt(const Peer& peer, size_t offset, size_t bytes) {
  const std::byte* from = peer.core()->slab() + offset;
  return {from, from + bytes};
}

// From the front of the second slot: number, length, tag, message.
constexpr const char* kSecondSlot =
    "0200000000000000"
    "05000000"
    "04030201"
    "68656c6c6f";

TEST_P(PeerTest, WritesTheGoldenSlab) {
  const auto first = bytesOf("");
  const std::string hello = "hello";
  ASSERT_OK(MUST(notify(toB_, {.message = first})).wait(kSoon));
  ASSERT_OK(MUST(notify(toB_, {.message = bytesOf(hello), .tag = 0x01020304})).wait(kSoon));
  ASSERT_OK(MUST(addSignal(toB_, 3, 0x1122)).wait(kSoon));
  ASSERT_OK(MUST(Signal::create(toA_, 3)).wait(0x1122, kSoon));
  EXPECT_EQ(slabAt(toA_, 192, 8), fromHex("2211000000000000")) << "counter 3";
  MUST(waitNotification(toA_, kSoon));
  MUST(waitNotification(toA_, kSoon));
  EXPECT_EQ(slabAt(toA_, 5120, 12), fromHex("010000000000000000000000")) << "slot 0";
  EXPECT_EQ(slabAt(toA_, 9280, 21), fromHex(kSecondSlot)) << "slot 1";
  // What the receiver took is credited in the sender's slab.
  const std::byte* credit = toB_.core()->slab() + 4160;
  EXPECT_TRUE(soon([&] { return loadWord(credit, Width::k64) != 0; }));
  EXPECT_EQ(slabAt(toB_, 4096, 8), fromHex("0100000000000000")) << "credit of slot 0";
  EXPECT_EQ(slabAt(toB_, 4160, 8), fromHex("0200000000000000")) << "credit of slot 1";
}

TEST_P(PeerTest, ReadsTheGoldenSlab) {
  // As the peer would: the bytes, then the slot's number.
  const auto arrives = [&](size_t offset, const std::string& hex) {
    const std::vector<std::byte> bytes = fromHex(hex);
    std::byte* to = toA_.core()->slab() + offset;
    std::memcpy(to + 8, bytes.data() + 8, bytes.size() - 8);
    storeWord(to, Width::k64, loadWord(bytes.data(), Width::k64), std::memory_order_seq_cst);
  };
  arrives(5120, "0100000000000000ffffffff00000000");  // given up by its sender: skipped
  arrives(9280, kSecondSlot);
  const auto hello = waitNotification(toA_, kSoon);
  ASSERT_OK(hello.status());
  EXPECT_EQ(hello->tag, 0x01020304u);
  EXPECT_EQ(textOf(hello->message), "hello");
  arrives(13440, "03000000000000000110000000000000");  // 4097 bytes: dropped
  EXPECT_EQ(pollNotification(toA_).status().code(), Code::kTryAgain);
  EXPECT_OK(toA_.status());
  const std::byte* credit = toB_.core()->slab() + 4224;
  EXPECT_TRUE(soon([&] { return loadWord(credit, Width::k64) == 3; }));
  storeWord(toA_.core()->slab() + 4032, Width::k64, 7, std::memory_order_seq_cst);
  EXPECT_EQ(MUST(Signal::create(toA_, 63)).value(), 7u);
}

// --- The control connection, cut while the process at its other end lives and can write ---

// Another process that imports what it is told of, and then does nothing more. Made while this
// process has no threads.
class Importer {
 public:
  Importer() {
    EXPECT_EQ(pipe(pipe_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    alarm(60);  // whatever becomes of the test
    std::string ticket;
    for (char each = 0; read(pipe_[0], &each, 1) == 1 && each != '\n';) ticket += each;
    auto context = makeContext(withLinks({"shm"}));
    const Peer peer = MUST(context->connect(ticket, kSoon));
    const RemoteRegion region =
        MUST(peer.importRegion(MUST(peer.receiveMessage(kReference, kSoon))));
    EXPECT_OK(region.prepare(kSoon));
    EXPECT_OK(peer.sendMessage(kImported, {}));
    for (;;) pause();
  }
  ~Importer() {
    end();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  void tell(const std::string& ticket) {
    const std::string line = ticket + "\n";
    EXPECT_EQ(write(pipe_[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  // Shuts every stream of this process that leads to the other one.
  int cutStreams() const {
    int cut = 0;
    DIR* folder = opendir("/proc/self/fd");
    while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
      const int fd = std::atoi(entry->d_name);
      ucred who{};
      socklen_t bytes = sizeof(who);
      if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.pid == pid_ &&
          shutdown(fd, SHUT_RDWR) == 0)
        ++cut;
    }
    if (folder != nullptr) closedir(folder);
    return cut;
  }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }

  static constexpr uint32_t kReference = 1;
  static constexpr uint32_t kImported = 2;

 private:
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST(PeerProcess, AConnectionThatEndsWithoutGoodbyeFreesNothing) {
  Importer other;
  auto context = makeContext(withLinks({"shm"}));
  other.tell(context->ticket());
  const Peer peer = MUST(context->accept(kSoon));
  const Region region = MUST(context->allocate(4096));
  ASSERT_OK(peer.sendMessage(Importer::kReference, region.share()));
  ASSERT_OK(peer.receiveMessage(Importer::kImported, kSoon).status());
  ASSERT_EQ(other.cutStreams(), 2);  // the connection, and the door at which it is woken
  ASSERT_TRUE(soon([&] { return peer.state() == "lost"; }));
  // The process lives, and the region is still mapped there.
  EXPECT_EQ(context->unregister(region, 50ms).code(), Code::kPeerSilent);
  EXPECT_EQ(context->unregister(region, 1ms).code(), Code::kPeerSilent) << "and asking helps not";
  other.end();
  EXPECT_TRUE(soon([&] { return context->unregister(region, 1ms).isOk(); }));
}

// --- The data connection of tcp, cut while the control connection lives ---

TEST(EmptyHandles, OfAPeerAnswerLikeTheirNeighbours) {
  const Peer nobody;
  EXPECT_EQ(nobody.number(), 0u);
  EXPECT_EQ(nobody.state(), "");
  EXPECT_EQ(nobody.contextId(), "");
  EXPECT_EQ(nobody.processId(), 0);
  EXPECT_EQ(nobody.silentFor(), std::nullopt);
  EXPECT_EQ(nobody.route().link, "");
  EXPECT_TRUE(nobody.route().devices.empty());
  EXPECT_EQ(nobody.status().code(), Code::kInvalidArgument);
  nobody.close();
}

TEST(EmptyHandles, OfARegionAnswerLikeTheirNeighbours) {
  const Region nothing;
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_EQ(nothing.bytes(), 0u);
  EXPECT_EQ(nothing.number(), 0u);
  EXPECT_EQ(RemoteRegion().number(), 0u);
  EXPECT_EQ(nothing.access(), Access::kLocal);
  EXPECT_EQ(nothing.device(), Device{});
  EXPECT_FALSE(nothing.isShared());
  EXPECT_EQ(nothing.description(), "");
  // A share of nothing is refused by whoever is given it.
  const auto owner = makeContext(withLinks({"self"}));
  const auto other = makeContext(withLinks({"self"}));
  const Peer peer = MUST(other->connect(owner->ticket(), kSoon));
  EXPECT_EQ(peer.importRegion(nothing.share()).status().code(), Code::kCorrupt);
}

// A program with many regions, or peers, finds by the number the one that an error is about.
TEST(Numbers, AreThoseOfErrors) {
  const auto a = makeContext(withLinks({"self"}));
  const auto b = makeContext(withLinks({"self"}));
  (void)MUST(a->connect(b->ticket(), kSoon));
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Region first = MUST(b->allocate(4096)), second = MUST(b->allocate(4096));
  EXPECT_NE(first.number(), second.number());
  const RemoteRegion remote = MUST(toB.importRegion(second.share()));
  EXPECT_EQ(remote.number(), second.number());
  const std::string name = "region " + std::to_string(second.number()) + " ";
  const auto names = [](const Status& status, const std::string& text) {
    EXPECT_NE(status.message().find(text), std::string_view::npos) << status.toString();
  };
  names(a->unregister(second, kSoon), name);
  EXPECT_NE(b->dump().find(name), std::string::npos) << b->dump();
  ASSERT_OK(b->unregister(second, kSoon));
  names(remote.prepare(kSoon), name);
  EXPECT_NE(toB.number(), 0u);
  EXPECT_NE(a->dump().find("peer " + std::to_string(toB.number()) + " "), std::string::npos)
      << a->dump();
}

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
  EXPECT_TRUE(soon([&] { return toB.state() == "lost" && toA.state() == "lost"; }))
      << toB.state() << " and " << toA.state();
  EXPECT_EQ(put(toB, {&block, 1}).status().code(), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
