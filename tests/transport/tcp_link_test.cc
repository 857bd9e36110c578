// SPDX-License-Identifier: Apache-2.0
//
// How a tcp link comes up, and what strangers can do to its listener. What it does once it is up is
// in the contract suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/metrics.h"
#include "peerlane/core/text.h"
#include "peerlane/os/socket.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/transport/tcp/aead.h"
#include "peerlane/transport/tcp/tcp_link.h"
#include "peerlane/transport/tcp/tcp_offer.h"
#include "peerlane/transport/tcp/tcp_transport.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

TcpToken numberedToken() {
  TcpToken token;
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(i);
  return token;
}

constexpr const char* kNumbers = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

TEST(TcpOffer, GoldenBytes) {
  TcpOffer offer{.token = numberedToken(), .port = 0x1234, .addresses = {"10.0.0.1"}};
  EXPECT_EQ(encodeHex(encodeTcpOffer(offer)), std::string("504c544f02000000") + kNumbers + "3412" +
                                                  "01" + "0800000031302e302e302e31");
  offer.ciphers = 3;
  EXPECT_EQ(encodeHex(encodeTcpOffer(offer)), std::string("504c544f02000300") + kNumbers + "3412" +
                                                  "01" + "0800000031302e302e302e31");
  EXPECT_EQ(encodeHex(encodeTcpGreeting({numberedToken()})),
            std::string("504c544701000000") + kNumbers);
  offer.sockets = 8;
  EXPECT_EQ(encodeHex(encodeTcpOffer(offer)), std::string("504c544f02000307") + kNumbers + "3412" +
                                                  "01" + "0800000031302e302e302e31");
  EXPECT_EQ(encodeHex(encodeTcpGreeting({numberedToken(), 7})),
            std::string("504c544701000700") + kNumbers);
}

TEST(TcpOffer, BadOffersAreNamed) {
  const TcpOffer offer{.token = numberedToken(), .port = 1, .addresses = {"10.0.0.1"}};
  const std::vector<std::byte> good = encodeTcpOffer(offer);
  EXPECT_EQ(parseTcpOffer(good).value().addresses, offer.addresses);
  for (size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_EQ(parseTcpOffer(std::span(good).first(cut)).status().code(), Code::kCorrupt) << cut;
  std::vector<std::byte> later = good;
  later.resize(good.size() + 5);  // fields of a later minor version
  EXPECT_TRUE(parseTcpOffer(later).isOk());
  std::vector<std::byte> version = good;
  version[4] = std::byte{9};
  EXPECT_EQ(parseTcpOffer(version).status().code(), Code::kNotSupported);
  EXPECT_NE(parseTcpOffer(version).status().message().find("version 9; this build speaks 2"),
            std::string_view::npos);
  std::vector<std::byte> sockets = good;
  sockets[7] = std::byte{8};
  EXPECT_EQ(parseTcpOffer(sockets).status().code(), Code::kCorrupt);
  TcpGreeting greeting = encodeTcpGreeting({numberedToken()});
  greeting[6] = std::byte{8};
  EXPECT_EQ(parseTcpGreeting(greeting).status().code(), Code::kCorrupt);
  std::vector<std::byte> many = good;
  many[42] = std::byte{9};
  EXPECT_EQ(parseTcpOffer(many).status().code(), Code::kCorrupt);
  std::vector<std::byte> magic = good;
  magic[0] = std::byte{0};
  EXPECT_EQ(parseTcpOffer(magic).status().code(), Code::kCorrupt);
}

// A token that was shown on one socket opens no other, and is not the offered one.
TEST(TcpOffer, EachSocketShowsAnotherToken) {
  const TcpToken offered = numberedToken();
  const TcpCard card = cardOf(offered, 0);
  EXPECT_EQ(encodeHex(card.token),
            "ceaf66f0e83231f52dc8f0bc6d3d631c8e168337a1a0d84c6952ac4f15fee69d");
  EXPECT_EQ(encodeHex(cardOf(offered, 1).token),
            "158194d5ee48ef1d9b9476114c9dfba73d2dbde050d504f206dd587a677f1b14");
  EXPECT_TRUE(sameCard(card, cardOf(offered, 0)));
  EXPECT_FALSE(sameCard({.token = card.token, .socket = 1}, cardOf(offered, 1)));
  EXPECT_FALSE(sameCard({.token = card.token, .socket = 1}, card));
  EXPECT_FALSE(sameCard({.token = offered, .socket = 0}, card));
}

TEST(TcpOffer, TokensAreCompared) {
  TcpToken a = makeTcpToken();
  EXPECT_FALSE(sameToken(a, makeTcpToken()));
  TcpToken b = a;
  EXPECT_TRUE(sameToken(a, b));
  b[31] ^= std::byte{1};
  EXPECT_FALSE(sameToken(a, b));
}

// One side with an event loop of its own.
struct Party {
  Party() {
    config.tcpSockets = 1;
    auto watched = loop->watch(readiness->gate(), true, false, [this] { readiness->look(); });
    data = std::move(watched).value();
  }
  void encrypt() {
    config.tcpEncrypt = true;
    linkKey.writableBytes()[0] = std::byte{1};
  }
  LinkSurroundings surroundings() {
    return {config, *loop, *readiness, *bell, regions, [this] { ++wakes; }, {}, team.get()};
  }
  std::unique_ptr<PendingLink> prepare(bool initiator) {
    PeerFacts facts;
    facts.unixSocket = true;
    facts.initiator = initiator;
    facts.linkKey = linkKey;
    return transport->prepare(facts, surroundings()).value();
  }

  Config config;
  KeyBytes linkKey;
  std::unique_ptr<EventLoop> loop = EventLoop::create().value();
  std::unique_ptr<ReadinessSet> readiness = ReadinessSet::create().value();
  Watch data;
  std::unique_ptr<Bell> bell = Bell::create().value();
  FakeRegions regions;
  std::atomic<int> wakes = 0;  // by whoever polls
  std::unique_ptr<Transport> transport = makeTcpTransport();
  Metrics metrics;
  std::unique_ptr<cpu::CopyTeam, cpu::CopyTeam::End> team;
  std::unique_ptr<Link> link;
};

class TcpLinkTest : public testing::Test {
 protected:
  TcpLinkTest() {
    setLogSink([this](LogLevel, std::string_view, std::string_view text) {
      log_ += std::string(text) + "\n";
    });
  }
  ~TcpLinkTest() override { setLogSink({}); }

  void turn() {
    for (Party* party : {&listener_, &dialler_}) {
      party->loop->waitOnce(1ms);
      if (party->link) (void)party->link->poll();
    }
  }
  // Whether it became true within half a minute.
  bool until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!done() && std::chrono::steady_clock::now() < deadline) turn();
    return done();
  }
  static bool hasFailed(const Party& party) {
    const Status health = party.link->health();
    return !health.isOk() && health.code() != Code::kTryAgain;
  }
  static void postFlush(Mailbox& mailbox, const RemoteMemory& nowhere) {
    MailboxEntry* entry = mailbox.claim();
    entry->verb = Verb::kFlush;
    entry->remote = &nowhere;
    mailbox.ring();
  }
  // A flush from the dialler comes through: the link works.
  void expectWorks() {
    Mailbox mailbox(*dialler_.link);
    RemoteMemory nowhere;
    postFlush(mailbox, nowhere);
    EXPECT_TRUE(until([&] {
      mailbox.serve();
      return mailbox.idle();
    }));
    EXPECT_EQ(mailbox.code(), Code::kOk);
  }
  void connectWell() {
    auto awaiting = listener_.prepare(false);
    auto dialling = dialler_.prepare(true);
    Offer theirs = awaiting->takeOffer();
    Offer ours = dialling->takeOffer();
    listener_.link = awaiting->complete(std::move(ours)).value();
    dialler_.link = dialling->complete(std::move(theirs)).value();
    expectWorks();
  }
  Fd stranger(uint16_t port) {
    return connectStart(SocketAddress::fromIp("127.0.0.1", port).value()).value();
  }
  // The listener's end of `socket` is closed.
  bool closed(const Fd& socket) {
    std::byte byte;
    const Result<size_t> got = recvSome(socket.get(), std::span(&byte, 1));
    return got ? *got == 0 : got.status().code() != Code::kTryAgain;
  }
  void expectSleepersWake();
  void expectManyThreadsPoll();
  uint16_t portOf(const Offer& offer) { return parseTcpOffer(offer.blob).value().port; }

  std::string log_;
  Party listener_;
  Party dialler_;
};

TEST_F(TcpLinkTest, TheDataConnectionMayComeBeforeThePeersOffer) {
  auto awaiting = listener_.prepare(false);
  auto dialling = dialler_.prepare(true);
  Offer ours = dialling->takeOffer();
  dialler_.link = dialling->complete(awaiting->takeOffer()).value();
  for (int i = 0; i < 20; ++i) turn();  // dialled, presented, waiting
  EXPECT_EQ(dialler_.link->health().code(), Code::kTryAgain);
  listener_.link = awaiting->complete(std::move(ours)).value();
  EXPECT_TRUE(until([&] { return dialler_.wakes > 0 && listener_.wakes > 0; }))
      << "mailboxes may be served now, and nobody was told";
  expectWorks();
}

TEST_F(TcpLinkTest, SeveralLinksShareAListener) {
  auto first = listener_.prepare(false);
  auto second = listener_.prepare(false);
  EXPECT_EQ(portOf(first->takeOffer()), portOf(second->takeOffer()));
}

TEST_F(TcpLinkTest, ThePortRangeHolds) {
  // Find a free port first, then allow only that one.
  Fd probe = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
  const uint16_t port = localAddress(probe.get())->port();
  listener_.config.ports = {port, port};
  PeerFacts facts;
  facts.unixSocket = true;
  const auto refused = listener_.transport->prepare(facts, listener_.surroundings());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable) << refused.status().toString();
  probe.reset();
  EXPECT_EQ(portOf(listener_.prepare(false)->takeOffer()), port);
}

TEST_F(TcpLinkTest, AWrongTokenIsClosedAndTheListenerStays) {
  auto awaiting = listener_.prepare(false);
  const Offer offer = awaiting->takeOffer();
  Fd intruder = stranger(portOf(offer));
  TcpToken wrong = parseTcpOffer(offer.blob)->token;
  wrong[5] ^= std::byte{1};
  ASSERT_TRUE(until([&] { return connectResult(intruder.get()).isOk(); }));
  ASSERT_TRUE(sendSome(intruder.get(), encodeTcpGreeting({wrong})).isOk());
  EXPECT_TRUE(until([&] { return closed(intruder); }));
  EXPECT_NE(log_.find("its token is not that of a waiting link"), std::string::npos) << log_;
  Fd noise = stranger(portOf(offer));
  ASSERT_TRUE(until([&] { return connectResult(noise.get()).isOk(); }));
  const std::vector<std::byte> bytes(100, std::byte{7});
  ASSERT_TRUE(sendSome(noise.get(), bytes).isOk());
  EXPECT_TRUE(until([&] { return closed(noise); }));
  EXPECT_NE(log_.find("wrong magic"), std::string::npos) << log_;
  connectWell();
}

// As when one side closes a link before its last socket has come: no stranger, and no warning.
TEST_F(TcpLinkTest, ALateSocketOfALinkThatHasEndedIsClosedQuietly) {
  auto ending = listener_.prepare(false);
  auto staying = listener_.prepare(false);
  const Offer offer = ending->takeOffer();
  Fd late = stranger(portOf(offer));
  ASSERT_TRUE(until([&] { return connectResult(late.get()).isOk(); }));
  ending.reset();
  const TcpCard card = cardOf(parseTcpOffer(offer.blob)->token, 0);
  ASSERT_TRUE(sendSome(late.get(), encodeTcpGreeting(card)).isOk());
  EXPECT_TRUE(until([&] { return closed(late); }));
  EXPECT_EQ(log_.find("closed a connection"), std::string::npos) << log_;
}

TEST_F(TcpLinkTest, ATokenIsGoodOnce) {
  auto awaiting = listener_.prepare(false);
  const Offer offer = awaiting->takeOffer();
  const TcpGreeting greeting = encodeTcpGreeting(cardOf(parseTcpOffer(offer.blob)->token, 0));
  Fd sockets[2] = {stranger(portOf(offer)), stranger(portOf(offer))};
  for (const Fd& socket : sockets) {
    ASSERT_TRUE(until([&] { return connectResult(socket.get()).isOk(); }));
    ASSERT_TRUE(sendSome(socket.get(), greeting).isOk());
    for (int i = 0; i < 10; ++i) turn();
  }
  EXPECT_TRUE(until([&] { return closed(sockets[1]); }));
  EXPECT_FALSE(closed(sockets[0]));
}

TEST_F(TcpLinkTest, SilentGuestsAreSentHomeAndTooManyTurnedAway) {
  listener_.config.connectTimeout = 3s;  // for all of them to come
  auto awaiting = listener_.prepare(false);
  const uint16_t port = portOf(awaiting->takeOffer());
  std::vector<Fd> guests;
  for (int i = 0; i < 70; ++i) {
    guests.push_back(stranger(port));
    if (i % 8 == 0) turn();
  }
  EXPECT_TRUE(until([&] { return log_.find("connections wait already") != std::string::npos; }));
  EXPECT_TRUE(until([&] {
    return std::all_of(guests.begin(), guests.end(), [&](const Fd& fd) { return closed(fd); });
  }));
  EXPECT_NE(log_.find("no token in the time given"), std::string::npos) << log_;
  listener_.config.connectTimeout = 10s;
  connectWell();
}

TEST_F(TcpLinkTest, NoDataConnectionEndsTheLinkInBoundedTime) {
  listener_.config.connectTimeout = 50ms;
  auto awaiting = listener_.prepare(false);
  TcpOffer silent;
  Offer offer;
  offer.blob = encodeTcpOffer(silent);
  (void)awaiting->takeOffer();
  listener_.link = awaiting->complete(std::move(offer)).value();
  EXPECT_TRUE(until([&] { return hasFailed(listener_); }));
  EXPECT_EQ(listener_.link->health().code(), Code::kTimeout);
  EXPECT_NE(listener_.link->health().message().find("PEERLANE_CONNECT_TIMEOUT"),
            std::string_view::npos);
  EXPECT_GT(listener_.wakes, 0);
}

TEST_F(TcpLinkTest, NobodyListensThere) {
  Fd probe = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
  TcpOffer empty;
  empty.port = localAddress(probe.get())->port();
  probe.reset();
  auto dialling = dialler_.prepare(true);
  (void)dialling->takeOffer();
  Offer offer;
  offer.blob = encodeTcpOffer(empty);
  dialler_.link = dialling->complete(std::move(offer)).value();
  EXPECT_TRUE(until([&] { return hasFailed(dialler_); }));
  EXPECT_EQ(dialler_.link->health().code(), Code::kUnavailable);
  EXPECT_NE(log_.find("127.0.0.1:" + std::to_string(empty.port)), std::string::npos) << log_;
}

// A listener that answers with another token, with noise, with the end, or not at all.
TEST_F(TcpLinkTest, TheDiallerVerifiesTheListener) {
  struct Case {
    std::vector<std::byte> answer;
    bool close;
    Code code;
  };
  const TcpGreeting wrong = encodeTcpGreeting({makeTcpToken()});
  const Case cases[] = {{{wrong.begin(), wrong.end()}, false, Code::kPermissionDenied},
                        {std::vector<std::byte>(40, std::byte{1}), false, Code::kCorrupt},
                        {{wrong.begin(), wrong.begin() + 39}, true, Code::kPeerLost},
                        {{}, true, Code::kPeerLost},
                        {{}, false, Code::kTimeout}};
  for (const Case& test : cases) {
    dialler_.config.connectTimeout = test.code == Code::kTimeout ? 200ms : 10s;
    Fd listener = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
    auto dialling = dialler_.prepare(true);
    (void)dialling->takeOffer();
    TcpOffer theirs;
    theirs.port = localAddress(listener.get())->port();
    Offer offer;
    offer.blob = encodeTcpOffer(theirs);
    dialler_.link = dialling->complete(std::move(offer)).value();
    Fd accepted;
    ASSERT_TRUE(until([&] {
      Result<Fd> socket = acceptOne(listener.get());
      if (socket) accepted = std::move(socket).value();
      return static_cast<bool>(accepted);
    }));
    std::vector<std::byte> greeting(kTcpGreetingBytes);
    size_t received = 0;
    ASSERT_TRUE(until([&] {
      Result<size_t> got = recvSome(accepted.get(), std::span(greeting).subspan(received));
      if (got) received += *got;
      return received == greeting.size();
    }));
    if (!test.answer.empty()) {
      ASSERT_TRUE(sendSome(accepted.get(), test.answer).isOk());
    }
    if (test.close) accepted.reset();
    EXPECT_TRUE(until([&] { return hasFailed(dialler_); }));
    EXPECT_EQ(dialler_.link->health().code(), test.code) << dialler_.link->health().toString();
    if (test.code == Code::kTimeout) {
      EXPECT_NE(dialler_.link->health().message().find("PEERLANE_CONNECT_TIMEOUT"),
                std::string_view::npos)
          << dialler_.link->health().toString();
    }
  }
}

TEST_F(TcpLinkTest, AnOfferThatCannotBeDialledIsRefused) {
  auto dialling = dialler_.prepare(true);
  Offer offer;
  offer.blob = encodeTcpOffer(TcpOffer());
  EXPECT_EQ(dialling->complete(std::move(offer)).status().code(), Code::kCorrupt);
  auto again = dialler_.prepare(true);
  EXPECT_EQ(again->complete(Offer()).status().code(), Code::kCorrupt);
}

TEST_F(TcpLinkTest, GrantsTellNoAddress) {
  connectWell();
  RegionRecord region;
  region.allocation = 5;
  region.base = reinterpret_cast<std::byte*>(0x1234);
  region.bytes = 64;
  region.memory.kind = MemoryKind::kShared;
  Result<LinkPart> part = dialler_.link->grant(region);
  EXPECT_TRUE(part->blob.empty());
  EXPECT_FALSE(part->fd);
  Grant grant;
  grant.region.allocation = 5;
  grant.region.bytes = 64;
  const RemoteMemory memory = dialler_.link->attach(std::move(grant)).value();
  EXPECT_EQ(memory.mapped, nullptr);
  EXPECT_STREQ(memory.engine, "socket");
  Grant odd;
  odd.own.blob.resize(3);
  EXPECT_EQ(dialler_.link->attach(std::move(odd)).status().code(), Code::kCorrupt);
}

// Both sides sleep whenever there is nothing to do: a readiness that nobody asked the loop for
// would be missed.
TEST_F(TcpLinkTest, SleepersAreWoken) {
  connectWell();
  expectSleepersWake();
}

void TcpLinkTest::expectSleepersWake() {
  constexpr size_t kBytes = 24 << 20;
  std::vector<std::byte> target(kBytes);
  std::vector<std::byte> source(kBytes, std::byte{5});
  RemoteMemory remote;
  remote.grant = listener_.regions.add(target, Access::kRemoteReadWrite);
  std::atomic<bool> stop{false};
  std::atomic<bool> overslept{false};
  Mailbox mailbox(*dialler_.link);
  const Piece piece{source.data(), &remote, 0, kBytes};
  for (const Verb verb : {Verb::kPut, Verb::kGet}) {
    MailboxEntry* entry = mailbox.claim();
    entry->verb = verb;
    entry->pieces = &piece;
    entry->pieceCount = 1;
  }
  mailbox.ring();
  mailbox.serve();
  while (dialler_.link->poll()) continue;  // until the socket is full
  std::thread thread([&] {
    while (!stop.load()) {
      if (listener_.link->poll()) continue;
      if (listener_.loop->waitOnce(20s) == 0 && !stop.load()) overslept = true;
    }
  });
  while (!mailbox.idle() && !overslept.load()) {
    const bool served = mailbox.serve();
    if (dialler_.link->poll() || served) continue;
    if (!mailbox.idle() && dialler_.loop->waitOnce(20s) == 0) overslept = true;
  }
  stop = true;
  listener_.loop->wake();
  thread.join();
  EXPECT_FALSE(overslept.load());
  EXPECT_EQ(mailbox.code(), Code::kOk);
  EXPECT_EQ(target, source);
}

// Two threads per side: the loop's, and one that polls and serves as a waiting user does.
TEST_F(TcpLinkTest, TheLoopMayRunWhileOthersPoll) {
  connectWell();
  expectManyThreadsPoll();
}

void TcpLinkTest::expectManyThreadsPoll() {
  constexpr size_t kBytes = 4 << 20;
  std::vector<std::byte> target(kBytes);
  std::vector<std::byte> source(kBytes, std::byte{3});
  RemoteMemory remote;
  remote.grant = listener_.regions.add(target, Access::kRemoteReadWrite);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (Party* party : {&listener_, &dialler_}) {
    threads.emplace_back([&stop, party] {
      while (!stop.load()) {
        party->loop->spin();
        (void)party->link->poll();
      }
    });
    threads.emplace_back([&stop, party] {
      while (!stop.load()) (void)party->link->poll();
    });
  }
  Mailbox mailbox(*dialler_.link);
  const Piece piece{source.data(), &remote, 0, kBytes};
  for (int round = 0; round < 10; ++round) {
    MailboxEntry* entry = mailbox.claim();
    entry->verb = round % 2 == 0 ? Verb::kPut : Verb::kGet;
    entry->pieces = &piece;
    entry->pieceCount = 1;
    mailbox.ring();
    while (!mailbox.idle()) {
      mailbox.serve();
      std::this_thread::yield();
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mailbox.code(), Code::kOk);
  EXPECT_EQ(target, source);
}

// --- Several sockets ---

class StripedTcpLinkTest : public TcpLinkTest {
 protected:
  StripedTcpLinkTest() {
    for (Party* party : {&listener_, &dialler_}) {
      party->config.tcpSockets = 3;
      party->team = cpu::CopyTeam::create(2, party->metrics).value();
    }
  }
  // Bytes of the listener's region arrive whole, by a put and by a get.
  void expectMoves(size_t bytes) {
    std::vector<std::byte> target(bytes);
    std::vector<std::byte> source(bytes, std::byte{9});
    RemoteMemory remote;
    remote.grant = listener_.regions.add(target, Access::kRemoteReadWrite);
    Mailbox mailbox(*dialler_.link);
    const Piece piece{source.data(), &remote, 0, bytes};
    for (const Verb verb : {Verb::kPut, Verb::kGet}) {
      MailboxEntry* entry = mailbox.claim();
      entry->verb = verb;
      entry->pieces = &piece;
      entry->pieceCount = 1;
    }
    mailbox.ring();
    EXPECT_TRUE(until([&] {
      mailbox.serve();
      return mailbox.idle();
    }));
    EXPECT_EQ(mailbox.code(), Code::kOk);
    EXPECT_EQ(target, std::vector<std::byte>(bytes, std::byte{9}));
  }
  static TcpLink& tcpLink(const Party& party) { return static_cast<TcpLink&>(*party.link); }
  static uint32_t socketsOf(const Party& party) { return tcpLink(party).sockets(); }
  static bool isWhole(const Party& party) {
    return tcpLink(party).socketsMade() == socketsOf(party);
  }
  std::unique_ptr<PendingLink> prepareListener() {
    auto awaiting = listener_.prepare(false);
    offered_ = parseTcpOffer(awaiting->takeOffer().blob).value();
    return awaiting;
  }
  // The listener's link to a peer that wants so many sockets, and makes none by itself.
  void acceptPeer(uint32_t sockets) {
    TcpOffer wanted;
    wanted.sockets = sockets;
    Offer theirs;
    theirs.blob = encodeTcpOffer(wanted);
    listener_.link = prepareListener()->complete(std::move(theirs)).value();
  }
  // That peer makes one.
  Fd showCard(uint16_t number) {
    Fd socket = stranger(offered_.port);
    EXPECT_TRUE(until([&] { return connectResult(socket.get()).isOk(); }));
    EXPECT_TRUE(sendSome(socket.get(), encodeTcpGreeting(cardOf(offered_.token, number))).isOk());
    return socket;
  }
  void connectAll() {
    connectWell();
    ASSERT_TRUE(until([&] { return isWhole(listener_) && isWhole(dialler_); }));
  }

  TcpOffer offered_;  // by the listener
};

// connect() waits for no more.
TEST_F(StripedTcpLinkTest, TheFirstSocketIsEnoughToBegin) {
  acceptPeer(3);
  EXPECT_EQ(listener_.link->health().code(), Code::kTryAgain);
  const Fd socket = showCard(0);
  EXPECT_TRUE(until([&] { return listener_.link->health().isOk(); }));
  EXPECT_EQ(tcpLink(listener_).socketsMade(), 1u);
}

TEST_F(StripedTcpLinkTest, TheSmallerNumberCounts) {
  for (const auto& [ours, theirs] : {std::pair{1u, 8u}, std::pair{8u, 1u}, std::pair{2u, 5u}}) {
    dialler_.config.tcpSockets = ours;
    listener_.config.tcpSockets = theirs;
    connectAll();
    EXPECT_EQ(socketsOf(dialler_), std::min(ours, theirs));
    EXPECT_EQ(dialler_.link->traits().sockets, std::min(ours, theirs));
    EXPECT_EQ(socketsOf(listener_), std::min(ours, theirs));
    expectMoves(6 << 20);
  }
}

TEST_F(StripedTcpLinkTest, SleepersAreWoken) {
  connectAll();
  expectSleepersWake();
}

TEST_F(StripedTcpLinkTest, TheLoopMayRunWhileOthersPoll) {
  connectAll();
  expectManyThreadsPoll();
}

TEST_F(StripedTcpLinkTest, DataConnectionsMayComeBeforeThePeersOffer) {
  dialler_.config.tcpSockets = 2;
  auto awaiting = listener_.prepare(false);
  auto dialling = dialler_.prepare(true);
  Offer ours = dialling->takeOffer();
  dialler_.link = dialling->complete(awaiting->takeOffer()).value();
  for (int i = 0; i < 30; ++i) turn();
  listener_.link = awaiting->complete(std::move(ours)).value();
  EXPECT_TRUE(until([&] { return isWhole(listener_) && isWhole(dialler_); }));
  EXPECT_EQ(socketsOf(listener_), 2u);
  expectMoves(6 << 20);
}

TEST_F(StripedTcpLinkTest, OnlyAwaitedSocketsAreTaken) {
  const auto awaiting = prepareListener();
  // Not one of the three, and one of them twice.
  std::vector<Fd> sockets;
  for (const uint16_t number : {uint16_t{3}, uint16_t{1}, uint16_t{1}}) {
    sockets.push_back(showCard(number));
    for (int i = 0; i < 10; ++i) turn();
  }
  EXPECT_TRUE(until([&] { return closed(sockets[0]) && closed(sockets[2]); }));
  EXPECT_FALSE(closed(sockets[1]));
}

TEST_F(StripedTcpLinkTest, TheDiallerVerifiesTheNumber) {
  Fd listener = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
  auto dialling = dialler_.prepare(true);
  const TcpToken token = parseTcpOffer(dialling->takeOffer().blob)->token;
  TcpOffer theirs;
  theirs.port = localAddress(listener.get())->port();
  theirs.sockets = 3;
  Offer offer;
  offer.blob = encodeTcpOffer(theirs);
  dialler_.link = dialling->complete(std::move(offer)).value();
  Fd accepted;
  ASSERT_TRUE(until([&] {
    Result<Fd> socket = acceptOne(listener.get());
    if (socket) accepted = std::move(socket).value();
    return static_cast<bool>(accepted);
  }));
  ASSERT_TRUE(
      sendSome(accepted.get(), encodeTcpGreeting(cardOf(token, 1))).isOk());  // it dialled 0
  EXPECT_TRUE(until([&] { return hasFailed(dialler_); }));
  EXPECT_EQ(dialler_.link->health().code(), Code::kPermissionDenied);
}

// The peer offered three sockets, and one comes.
TEST_F(StripedTcpLinkTest, ALaterSocketThatIsNotMadeIsDoneWithout) {
  listener_.config.connectTimeout = 1s;
  acceptPeer(3);
  const Fd socket = showCard(0);
  EXPECT_TRUE(until([&] { return log_.find("socket 3 of 3 is not made") != std::string::npos; }));
  EXPECT_NE(log_.find("socket 2 of 3 is not made, and done without: the peer made no data "
                      "connection"),
            std::string::npos)
      << log_;
  EXPECT_TRUE(listener_.link->health().isOk());
  EXPECT_EQ(tcpLink(listener_).socketsMade(), 1u);
}

TEST_F(StripedTcpLinkTest, UnderStrictAllAreNeeded) {
  listener_.config.connectTimeout = 1s;
  listener_.config.strict = true;
  acceptPeer(2);
  const Fd socket = showCard(0);
  EXPECT_TRUE(until([&] { return hasFailed(listener_); }));
  EXPECT_EQ(listener_.link->health().code(), Code::kTimeout);
}

// Nobody is warned of it, for short-lived peers do it; of half a token, everybody is.
TEST_F(StripedTcpLinkTest, AGuestThatLeavesWithoutAWordIsNoStranger) {
  auto awaiting = listener_.prepare(false);
  const uint16_t port = portOf(awaiting->takeOffer());
  for (const size_t bytes : {size_t{0}, size_t{7}}) {
    Fd guest = stranger(port);
    ASSERT_TRUE(until([&] { return connectResult(guest.get()).isOk(); }));
    if (bytes != 0) {
      ASSERT_TRUE(sendSome(guest.get(), std::vector<std::byte>(bytes)).isOk());
    }
    guest.reset();
    for (int i = 0; i < 20; ++i) turn();
    EXPECT_EQ(log_.find("closed a connection from") != std::string::npos, bytes != 0) << log_;
  }
}

// Out of order: nothing is sent by a socket that is not there.
TEST_F(StripedTcpLinkTest, WhatIsMadeOutOfOrderWaitsForThoseBefore) {
  acceptPeer(3);
  std::vector<Fd> sockets;
  for (const auto& [number, made] :
       {std::pair{uint16_t{2}, 1u}, std::pair{uint16_t{0}, 1u}, std::pair{uint16_t{1}, 3u}}) {
    sockets.push_back(showCard(number));
    std::byte byte{};
    ASSERT_TRUE(until([&] { return recvSome(sockets.back().get(), std::span(&byte, 1)).isOk(); }));
    EXPECT_EQ(tcpLink(listener_).socketsMade(), made) << number;
  }
}

// A link that ends while a socket is being made must not keep it: nobody would read it.
TEST_F(StripedTcpLinkTest, AClosedPipeAdoptsNothing) {
  const Fd listener = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
  Fd socket = stranger(localAddress(listener.get())->port());
  TcpPipe pipe(*dialler_.readiness, 1s, /*isOften=*/true);
  pipe.close();
  EXPECT_FALSE(pipe.adopt(std::move(socket)));
  EXPECT_TRUE(dialler_.readiness->isEmpty());
}

// Each socket has keys of its own, and helpers that poll open records as well.
TEST_F(StripedTcpLinkTest, EncryptedPartsArriveWhole) {
  for (Party* party : {&listener_, &dialler_}) party->encrypt();
  connectAll();
  expectMoves(9 << 20);
  expectManyThreadsPoll();
}

TEST_F(StripedTcpLinkTest, OneSocketThatEndsEndsTheLink) {
  connectAll();
  tcpLink(listener_).connection(1).agent().close(Code::kPeerLost);
  EXPECT_TRUE(until([&] { return hasFailed(dialler_) && hasFailed(listener_); }));
  EXPECT_EQ(dialler_.link->health().code(), Code::kPeerLost);
}

// --- Encryption ---

class EncryptedTcpLinkTest : public TcpLinkTest {
 protected:
  EncryptedTcpLinkTest() {
    for (Party* party : {&listener_, &dialler_}) party->encrypt();
  }
  // Offers exchanged, and changed on the way by a test.
  struct Outcome {
    Status listener;
    Status dialler;
  };
  Outcome exchange(
      const std::function<void(TcpOffer& fromListener, TcpOffer& fromDialler)>& change) {
    auto awaiting = listener_.prepare(false);
    auto dialling = dialler_.prepare(true);
    TcpOffer fromListener = parseTcpOffer(awaiting->takeOffer().blob).value();
    TcpOffer fromDialler = parseTcpOffer(dialling->takeOffer().blob).value();
    change(fromListener, fromDialler);
    Offer offers[2];
    offers[0].blob = encodeTcpOffer(fromDialler);
    offers[1].blob = encodeTcpOffer(fromListener);
    Outcome outcome;
    auto first = awaiting->complete(std::move(offers[0]));
    auto second = dialling->complete(std::move(offers[1]));
    outcome.listener = first.status();
    outcome.dialler = second.status();
    if (first) listener_.link = std::move(*first);
    if (second) dialler_.link = std::move(*second);
    return outcome;
  }
};

TEST_F(TcpLinkTest, TheRouteSaysThatNothingIsEncrypted) {
  connectWell();
  EXPECT_EQ(dialler_.link->traits().protection, "not encrypted");
}

TEST_F(EncryptedTcpLinkTest, BothSidesSayWithWhat) {
  connectWell();
  const bool hasAes = (aeadCiphersHere().value() & 2) != 0;
  const std::string expected = hasAes ? "encrypted (AES-256-GCM)" : "encrypted (ChaCha20-Poly1305)";
  EXPECT_EQ(dialler_.link->traits().protection, expected);
  EXPECT_EQ(listener_.link->traits().protection, expected);
}

TEST_F(EncryptedTcpLinkTest, WithoutAesOnOneSideBothTakeTheOther) {
  const Outcome outcome = exchange([](TcpOffer& fromListener, TcpOffer&) {
    fromListener.ciphers = static_cast<uint8_t>(AeadCipher::kChaCha20Poly1305);
  });
  ASSERT_TRUE(outcome.dialler.isOk());
  EXPECT_EQ(dialler_.link->traits().protection, "encrypted (ChaCha20-Poly1305)");
}

TEST_F(EncryptedTcpLinkTest, OneSideAloneIsRefusedOnBothWithTheSameSentence) {
  for (const bool listens : {false, true}) {
    listener_.config.tcpEncrypt = listens;
    dialler_.config.tcpEncrypt = !listens;
    const Outcome outcome = exchange([](TcpOffer&, TcpOffer&) {});
    EXPECT_EQ(outcome.listener.code(), Code::kInvalidArgument);
    EXPECT_EQ(outcome.dialler.code(), Code::kInvalidArgument);
    EXPECT_EQ(outcome.listener.message(), outcome.dialler.message());
    EXPECT_EQ(outcome.dialler.message(),
              listens
                  ? "PEERLANE_TCP_ENCRYPT is 0 on the side that connected and 1 on the side that "
                    "listened: set the same value on both"
                  : "PEERLANE_TCP_ENCRYPT is 1 on the side that connected and 0 on the side that "
                    "listened: set the same value on both");
  }
}

TEST_F(EncryptedTcpLinkTest, NoCipherInCommonIsRefused) {
  const Outcome outcome = exchange([](TcpOffer& fromListener, TcpOffer& fromDialler) {
    fromListener.ciphers = fromDialler.ciphers = 0x80;  // of a later version
  });
  for (const Status& end : {outcome.listener, outcome.dialler}) {
    EXPECT_EQ(end.code(), Code::kInvalidArgument);
    EXPECT_NE(end.message().find("PEERLANE_TCP_ENCRYPT is 1 on both"), std::string_view::npos);
  }
}

// Sides that have not the same key: another connection's, or a man between them.
TEST_F(EncryptedTcpLinkTest, AnotherKeyEndsTheLinkWithOneClearLine) {
  listener_.linkKey.writableBytes()[31] = std::byte{1};
  (void)exchange([](TcpOffer&, TcpOffer&) {});
  ASSERT_TRUE(dialler_.link && listener_.link);
  Mailbox mailbox(*dialler_.link);
  RemoteMemory nowhere;
  postFlush(mailbox, nowhere);
  EXPECT_TRUE(until([&] {
    mailbox.serve();
    return hasFailed(listener_) && mailbox.idle();
  }));
  EXPECT_EQ(listener_.link->health().code(), Code::kCorrupt);
  EXPECT_NE(mailbox.code(), Code::kOk);
  const std::string line = "ended: sealed record 0 does not open";
  const size_t found = log_.find(line);
  ASSERT_NE(found, std::string::npos) << log_;
  EXPECT_EQ(log_.find(line, found + 1), std::string::npos) << log_;
}

// Everything that crosses the socket, by a man between the two who changes one byte of it.
TEST_F(EncryptedTcpLinkTest, AChangedByteEndsThatLinkAndNothingElse) {
  Fd front = listenOn(SocketAddress::fromIp("127.0.0.1", 0).value()).value();
  uint16_t behind = 0;
  (void)exchange([&](TcpOffer& fromListener, TcpOffer&) {
    behind = fromListener.port;
    fromListener.port = localAddress(front.get())->port();
  });
  Fd fromDialler;
  ASSERT_TRUE(until([&] {
    Result<Fd> socket = acceptOne(front.get());
    if (socket) fromDialler = std::move(socket).value();
    return static_cast<bool>(fromDialler);
  }));
  Fd toListener = stranger(behind);
  ASSERT_TRUE(until([&] { return connectResult(toListener.get()).isOk(); }));
  std::vector<std::byte> seen;
  bool changes = false;
  const auto carry = [&] {
    std::byte buffer[4096];
    for (const auto& [from, to] :
         {std::pair(&fromDialler, &toListener), std::pair(&toListener, &fromDialler)}) {
      Result<size_t> bytes = recvSome(from->get(), buffer);
      if (!bytes || *bytes == 0) continue;
      if (from == &fromDialler) seen.insert(seen.end(), buffer, buffer + *bytes);
      if (from == &fromDialler && changes) buffer[*bytes - 1] ^= std::byte{1};
      ASSERT_EQ(sendSome(to->get(), std::span(buffer, *bytes)).value(), *bytes);
    }
  };
  std::vector<std::byte> target(64);
  const std::string secret = "a word that nobody else may read";
  RemoteMemory remote;
  remote.grant = listener_.regions.add(target, Access::kRemoteReadWrite);
  Mailbox mailbox(*dialler_.link);
  const Piece piece{reinterpret_cast<std::byte*>(const_cast<char*>(secret.data())), &remote, 0,
                    secret.size()};
  const auto put = [&] {
    MailboxEntry* entry = mailbox.claim();
    entry->verb = Verb::kPut;
    entry->pieces = &piece;
    entry->pieceCount = 1;
    mailbox.ring();
    return until([&] {
      mailbox.serve();
      carry();
      return mailbox.idle() || hasFailed(listener_);
    });
  };
  ASSERT_TRUE(put());
  EXPECT_EQ(mailbox.code(), Code::kOk);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(target.data()), secret.size()), secret);
  const auto clear = std::as_bytes(std::span(secret));
  EXPECT_EQ(std::search(seen.begin(), seen.end(), clear.begin(), clear.end()), seen.end());
  std::fill(target.begin(), target.end(), std::byte{});
  changes = true;
  ASSERT_TRUE(put());
  EXPECT_EQ(listener_.link->health().code(), Code::kCorrupt) << listener_.link->health().toString();
  EXPECT_EQ(target, std::vector<std::byte>(64)) << "nothing of a changed record is used";
  fromDialler.reset();  // the man between them goes as well
  toListener.reset();
  ASSERT_TRUE(until([&] { return mailbox.idle(); }));
  EXPECT_EQ(mailbox.code(), Code::kPeerLost);
  auto awaiting = listener_.prepare(false);
  auto dialling = dialler_.prepare(true);
  EXPECT_TRUE(awaiting->complete(dialling->takeOffer()).isOk()) << "the listener goes on";
}

TEST_F(EncryptedTcpLinkTest, SleepersAreWoken) {
  connectWell();
  expectSleepersWake();
}

TEST_F(EncryptedTcpLinkTest, TheLoopMayRunWhileOthersPoll) {
  connectWell();
  expectManyThreadsPoll();
}

}  // namespace
}  // namespace peerlane
