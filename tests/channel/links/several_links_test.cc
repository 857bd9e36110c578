// SPDX-License-Identifier: Apache-2.0
//
// A peer with several links: which one reaches which memory, grants that are made once, and what
// becomes of all that went over a link that fails.
#include <algorithm>
#include <atomic>
#include <future>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/fake/added_transport.h"

namespace peerlane {
namespace {

constexpr int kFirst = 1;      // before all links of the library
constexpr int kLast = 100000;  // after them

FakeLinkOptions agentFor(std::vector<MemoryKind> kinds) {
  FakeLinkOptions options;
  options.kinds = std::move(kinds);
  options.carriesWords = false;
  return options;
}

// The side that makes it second, the acceptor, fails.
FakeLinkOptions madeByOneSideAlone() {
  FakeLinkOptions options;
  options.onComplete = [calls = std::make_shared<std::atomic<int>>(0)] {
    return calls->fetch_add(1) == 0 ? Status::ok()
                                    : Status(Code::kNotSupported, "the second side is blind");
  };
  return options;
}

// Contexts of one process, which the link "self" joins, too. The fake wire wakes nobody, so waits
// poll.
class SeveralLinks : public testing::Test {
 protected:
  void join(const FakeLinkOptions& options, int place = kFirst) {
    added_ = std::make_unique<AddedTransport>(network_, options, place);
    Config config;
    config.links = {"self", options.name};
    config.spin = kSoon;
    pair_ = std::make_unique<ContextPair>(config);
  }
  void TearDown() override {
    pair_.reset();
    added_.reset();
  }
  ContextPair& pair() { return *pair_; }
  FakeWire& wire() { return *network_.wires().front(); }
  Status putAll(TestMemory& from, TestMemory& to) {
    std::memcpy(to.shadow(), from.shadow(), to.bytes());
    const RemoteRegion remote = to.importedBy(pair().toB);
    const Block block{&from.region(), 0, &remote, 0, to.bytes()};
    return MUST(put(pair().toB, std::span(&block, 1))).wait(kSoon);
  }
  // Both sides have given the fake link up.
  void loseFake() {
    wire().loseAfter(0, 0);
    for (const Peer& peer : {pair().toA, pair().toB}) {
      const auto isGone = [&] { return peer.core()->links().live().size() == 1; };
      EXPECT_OK(peer.core()->progress().wait(isGone, kSoon));
      EXPECT_OK(peer.core()->progress().call([] {}));  // and have told all that used it
    }
  }

  FakeNetwork network_{7};
  std::unique_ptr<AddedTransport> added_;
  std::unique_ptr<ContextPair> pair_;
};

TEST_F(SeveralLinks, TheBestThatReachesBothIsTaken) {
  join(agentFor({MemoryKind::kShared}));
  TestMemory shared(*pair().b, 10000, true, Access::kRemoteReadWrite, 1);
  TestMemory plain(*pair().b, 10000, false, Access::kRemoteReadWrite, 2);
  // What the agent copies must be of its kind at both sides.
  TestMemory own(*pair().a, 10000, true, Access::kRemoteReadWrite, 3);
  TestMemory heap(*pair().a, 10000, false, Access::kRemoteReadWrite, 4);
  const auto route = [&](TestMemory& remote, TestMemory& local) {
    return pair().toB.routeOf(remote.importedBy(pair().toB), local.region());
  };
  const MemoryRoute chosen = route(shared, own);
  EXPECT_EQ(chosen.link, "fake");
  EXPECT_EQ(chosen.by, "agent");
  EXPECT_EQ(chosen.memory, "host memory by descriptor");
  const MemoryRoute other = route(plain, own);
  EXPECT_EQ(other.link, "self");
  EXPECT_EQ(other.by, "mapping");
  ASSERT_FALSE(other.refused.empty());
  EXPECT_EQ(other.refused.front(), "fake: it does not reach host memory that is not exported");
  EXPECT_EQ(route(shared, heap).link, "self");

  ASSERT_OK(putAll(own, shared));
  ASSERT_OK(putAll(heap, plain));
  EXPECT_TRUE(shared.isAsExpected());
  EXPECT_TRUE(plain.isAsExpected());
  EXPECT_GT(wire().written(0) + wire().written(1), 10000u) << "the bytes went over the wire";
}

TEST_F(SeveralLinks, ARefusedKindSaysWhy) {
  FakeLinkOptions options = agentFor({MemoryKind::kShared, MemoryKind::kPrivate});
  options.refusedKind = MemoryKind::kPrivate;
  options.whyRefused = "the moon is in the way";
  join(options);
  TestMemory plain(*pair().b, 100, false);
  TestMemory own(*pair().a, 100, true);
  const MemoryRoute route = pair().toB.routeOf(plain.importedBy(pair().toB), own.region());
  EXPECT_EQ(route.link, "self");
  EXPECT_NE(std::find(route.refused.begin(), route.refused.end(), "fake: the moon is in the way"),
            route.refused.end());
}

TEST_F(SeveralLinks, AGrantIsMadeOnceForAllConnections) {
  join(agentFor({MemoryKind::kShared}));
  auto third = MUST(Context::create({pair().a->config(), {}, ""}));
  const Peer fromThird = MUST(third->connect(pair().b->ticket(), kSoon));
  (void)MUST(pair().b->accept(kSoon));
  {
    TestMemory shared(*pair().b, 5000, true);
    for (const Peer& peer : {pair().toB, fromThird})
      EXPECT_OK(MUST(peer.importRegion(shared.region().share())).prepare(kSoon));
    EXPECT_EQ(network_.keys()->made(), 1u);
    EXPECT_EQ(network_.keys()->alive(), 1u);
  }
  EXPECT_EQ(network_.keys()->alive(), 0u) << "taken back with the region";
}

TEST_F(SeveralLinks, WhenOneIsLostTheOthersGoOn) {
  join(agentFor({MemoryKind::kShared}));
  TestMemory from(*pair().a, 20000, true, Access::kRemoteReadWrite, 5);
  TestMemory to(*pair().b, 20000, true, Access::kRemoteReadWrite, 6);
  const RemoteRegion remote = to.importedBy(pair().toB);
  ASSERT_OK(remote.prepare(kSoon));
  EXPECT_EQ(remote.engine(), "fake");
  // One that the wire has not confirmed: it ends with the reason, and is not done again.
  wire().hold(0);
  wire().hold(1);
  const Block half{&from.region(), 0, &remote, 0, 10000};
  const Transfer lost = MUST(put(pair().toB, std::span(&half, 1)));
  loseFake();
  const Status why = lost.wait(kSoon);
  EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
  EXPECT_NE(why.message().find("may have arrived or not"), std::string_view::npos)
      << why.toString();
  EXPECT_TRUE(to.isAsExpected()) << "nothing of it was done again in silence";
  EXPECT_EQ(pair().toB.state(), "ready");
  EXPECT_EQ(pair().toA.state(), "ready");

  // The handle that was imported over it goes on by another link.
  const Block rest{&from.region(), 10000, &remote, 10000, 10000};
  ASSERT_OK(MUST(put(pair().toB, std::span(&rest, 1))).wait(kSoon));
  std::memcpy(to.shadow() + 10000, from.shadow() + 10000, 10000);
  EXPECT_TRUE(to.isAsExpected());
  EXPECT_EQ(remote.engine(), "mapped");
  const MemoryRoute route = pair().toB.routeOf(remote, from.region());
  EXPECT_EQ(route.link, "self");
  ASSERT_FALSE(route.refused.empty());
  EXPECT_NE(route.refused.front().find("fake: it failed: "), std::string::npos);
}

// Words, too: what was sent before is there or reported, and what comes after arrives.
TEST_F(SeveralLinks, WordsGoOverTheNextOne) {
  FakeLinkOptions options;
  options.carriesWords = true;
  join(options);
  EXPECT_EQ(pair().toB.route().link, "fake");
  EXPECT_EQ(pair().toB.route().wordsBy, "agent");
  const Signal signal = MUST(Signal::create(pair().toA, 2));
  ASSERT_OK(MUST(addSignal(pair().toB, 2, 1)).wait(kSoon));
  ASSERT_OK(signal.wait(1, kSoon));
  loseFake();
  EXPECT_EQ(pair().toB.route().link, "self");
  EXPECT_EQ(pair().toB.route().wordsBy, "mapped");
  ASSERT_OK(MUST(addSignal(pair().toB, 2, 1)).wait(kSoon));
  ASSERT_OK(signal.wait(2, kSoon));
  TestMemory from(*pair().a, 3000, false, Access::kRemoteReadWrite, 8);
  TestMemory to(*pair().b, 3000, false, Access::kRemoteReadWrite, 9);
  ASSERT_OK(putAll(from, to));
  EXPECT_TRUE(to.isAsExpected());
}

// The number of a message that was lost with its link is skipped by the one that comes over the
// next: the transfer hears of the end before the session does, when only the lost link is there to
// say so.
TEST_F(SeveralLinks, MessagesGoOnAfterOneThatWasLost) {
  FakeLinkOptions options;
  options.carriesWords = true;
  join(options);
  const auto say = [&](const char* text) {
    Notify what;
    what.message = std::as_bytes(std::span(text, std::strlen(text)));
    return MUST(notify(pair().toB, what));
  };
  ASSERT_OK(say("first").wait(kSoon));
  EXPECT_EQ(MUST(waitNotification(pair().toA, kSoon)).message.size(), 5u);
  wire().hold(0);
  wire().hold(1);
  const Transfer lost = say("second, lost");
  loseFake();
  EXPECT_EQ(lost.wait(kSoon).code(), Code::kPeerLost);
  // More than there are slots: room is given back over the next link.
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK(say("third").wait(kSoon)) << i;
    const Result<Notification> next = waitNotification(pair().toA, kSoon);
    ASSERT_OK(next.status()) << i;
    EXPECT_EQ(next->message.size(), 5u);
  }
}

// A plan was prepared for the link that failed, and says so.
TEST_F(SeveralLinks, APlanOverALostLinkIsToBeMadeAnew) {
  join(agentFor({MemoryKind::kShared}));
  TestMemory from(*pair().a, 4096, true, Access::kRemoteReadWrite, 5);
  TestMemory to(*pair().b, 4096, true, Access::kRemoteReadWrite, 6);
  const RemoteRegion remote = to.importedBy(pair().toB);
  const Block block{&from.region(), 0, &remote, 0, 4096};
  Plan plan = MUST(Plan::create(pair().toB, Direction::kPut, std::span(&block, 1)));
  ASSERT_OK(MUST(plan.post()).wait(kSoon));
  loseFake();
  const auto refused = plan.post();
  const Status why = refused.isOk() ? refused->wait(kSoon) : refused.status();
  EXPECT_FALSE(why.isOk());
  Plan again = MUST(Plan::create(pair().toB, Direction::kPut, std::span(&block, 1)));
  ASSERT_OK(MUST(again.post()).wait(kSoon));
  std::memcpy(to.shadow(), from.shadow(), 4096);
  EXPECT_TRUE(to.isAsExpected());
}

// The initiator makes it first, and gives it up when it hears that the other side could not.
TEST_F(SeveralLinks, WhatOneSideCannotMakeNeitherHas) {
  const FakeLinkOptions options = madeByOneSideAlone();
  join(options);
  for (const Peer& peer : {pair().toB, pair().toA}) {
    EXPECT_EQ(peer.core()->links().live().size(), 1u);
    EXPECT_EQ(peer.route().link, "self");
  }
  const auto refused = pair().toB.route().refused;
  EXPECT_NE(std::find(refused.begin(), refused.end(),
                      "link fake: the peer could not make it: the second side is blind"),
            refused.end());
  TestMemory from(*pair().a, 3000, true, Access::kRemoteReadWrite, 8);
  TestMemory to(*pair().b, 3000, true, Access::kRemoteReadWrite, 9);
  ASSERT_OK(putAll(from, to));
  EXPECT_TRUE(to.isAsExpected());
}

TEST_F(SeveralLinks, NoneThatBothCanMakeIsAnError) {
  const FakeLinkOptions options = madeByOneSideAlone();
  added_ = std::make_unique<AddedTransport>(network_, options, kFirst);
  Config config;
  config.links = {options.name};
  const auto a = MUST(Context::create({config, {}, ""}));
  const auto b = MUST(Context::create({config, {}, ""}));
  const auto refused = a->connect(b->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_NE(refused.status().message().find("the second side is blind"), std::string_view::npos)
      << refused.status().toString();
}

// A fallback is an error where the settings say so.
TEST_F(SeveralLinks, StrictWantsEachLinkOnBothSides) {
  const FakeLinkOptions options = madeByOneSideAlone();
  added_ = std::make_unique<AddedTransport>(network_, options, kFirst);
  Config config;
  config.links = {"self", "fake"};
  const auto b = MUST(Context::create({config, {}, ""}));
  config.strict = true;
  const auto a = MUST(Context::create({config, {}, ""}));
  const auto refused = a->connect(b->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_NE(refused.status().message().find("PEERLANE_STRICT: link fake"), std::string_view::npos)
      << refused.status().toString();
}

TEST_F(SeveralLinks, StrictLosesThePeerWithTheLink) {
  added_ = std::make_unique<AddedTransport>(network_, agentFor({MemoryKind::kShared}), kFirst);
  Config config;
  config.links = {"self", "fake"};
  config.spin = kSoon;
  config.strict = true;
  pair_ = std::make_unique<ContextPair>(config);
  wire().loseAfter(0, 0);
  const auto isLost = [&] { return pair().toB.state() == "lost"; };
  EXPECT_OK(pair().toB.core()->progress().wait(isLost, kSoon));
  EXPECT_NE(pair().toB.status().message().find("PEERLANE_STRICT: link fake"),
            std::string_view::npos)
      << pair().toB.status().toString();
}

// Without another one that carries words the peer is lost, as ever.
TEST_F(SeveralLinks, TheLastOneTakesThePeerAlong) {
  FakeLinkOptions options;
  options.carriesWords = true;
  added_ = std::make_unique<AddedTransport>(network_, options, kFirst);
  Config config;
  config.links = {options.name};
  config.spin = kSoon;
  pair_ = std::make_unique<ContextPair>(config);
  wire().loseAfter(0, 0);
  const auto isLost = [&] { return pair().toB.state() == "lost"; };
  EXPECT_OK(pair().toB.core()->progress().wait(isLost, kSoon));
}

// One that adds nothing to links that fail only with the process is not made.
TEST_F(SeveralLinks, ANeedlessOneIsNotMade) {
  FakeLinkOptions options;
  options.carriesWords = true;
  join(options, kLast);
  EXPECT_EQ(pair().toB.core()->links().live().size(), 1u);
  EXPECT_EQ(pair().toB.route().link, "self");
}

TEST_F(SeveralLinks, AnUnknownNameIsRefused) {
  Config config;
  config.links = {"shm", "pigeon"};
  const auto refused = Context::create({config, {}, ""});
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("'pigeon'"), std::string_view::npos);
  EXPECT_NE(refused.status().message().find("self, shm, cuda_ipc, verbs, tcp"),
            std::string_view::npos)
      << refused.status().toString();
}

}  // namespace
}  // namespace peerlane
