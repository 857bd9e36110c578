// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a link talk: in order, from any thread, before anybody listens, and after there
// is nobody to talk to.
#include "peerlane/session/line/link_lines.h"

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <thread>

#include "peerlane/core/wire.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/faults/intruder.h"
#include "tests/session/line/talking_transport.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using Words = std::vector<std::byte>;

Words numbered(uint32_t thread, uint32_t number, size_t more = 0) {
  Words words;
  ByteWriter writer(words);
  writer.u32(thread);
  writer.u32(number);
  words.resize(words.size() + more, std::byte{0x5a});
  return words;
}

// What one end heard. Thread-safe.
class Heard {
 public:
  LinkLine::Heard keep() {
    return [this](std::span<const std::byte> words) {
      const MutexLock lock(mutex_);
      all_.emplace_back(words.begin(), words.end());
      count_.store(all_.size(), std::memory_order_release);
    };
  }
  size_t count() const { return count_.load(std::memory_order_acquire); }
  std::vector<Words> all() const {
    const MutexLock lock(mutex_);
    return all_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Words> all_ PEERLANE_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

class LinkLinesTest : public testing::Test {
 protected:
  LinkLinesTest() {
    a_ = makeContext(withLinks({"self", "talking", "other"}));
    b_ = makeContext(withLinks({"self", "talking", "other"}));
    toB_ = MUST(a_->connect(b_->ticket(), kSoon));
    toA_ = MUST(b_->accept(kSoon));
    ofA_ = talking_.line(true);
    ofB_ = talking_.line(false);
  }
  ~LinkLinesTest() override {
    for (const auto& line : {ofA_, ofB_}) line->stopListening();
  }
  // Everything that was said at the side of `from`, by this thread, has come to the other side:
  // messages keep their order with it.
  static void settle(const Peer& from, const Peer& to) {
    EXPECT_OK(from.sendMessage(1, {}));
    EXPECT_TRUE(MUST(to.receiveMessage(1, kSoon)).empty());
  }
  static void onProgressThread(const Peer& peer, std::function<void()> act) {
    EXPECT_OK(peer.core()->progress().call(std::move(act)));
  }

  TalkingTransport talking_{"talking"};
  TalkingTransport other_{"other"};
  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  Peer toB_;
  Peer toA_;
  std::shared_ptr<LinkLine> ofA_;
  std::shared_ptr<LinkLine> ofB_;
};

TEST_F(LinkLinesTest, BothEndsHearAllInOrder) {
  constexpr uint32_t kMessages = 1000;
  Heard atA, atB;
  ofA_->listen(atA.keep());
  ofB_->listen(atB.keep());
  const auto sizeOf = [](uint32_t i) { return i % (LinkLine::kMostBytes - 7); };
  for (uint32_t i = 0; i < kMessages; ++i) {
    ofA_->say(numbered(1, i, sizeOf(i)));
    ofB_->say(numbered(2, i, sizeOf(i)));
  }
  ofA_->say({});
  ASSERT_TRUE(soon([&] { return atA.count() == kMessages && atB.count() == kMessages + 1; }));
  const auto here = atA.all(), there = atB.all();
  for (uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(here[i], numbered(2, i, sizeOf(i))) << i;
    ASSERT_EQ(there[i], numbered(1, i, sizeOf(i))) << i;
  }
  EXPECT_TRUE(there.back().empty());
}

TEST_F(LinkLinesTest, EndsAnswerEachOtherOnTheProgressThread) {
  constexpr uint32_t kTurns = 1000;
  std::promise<bool> done;
  ofB_->listen([&](std::span<const std::byte> words) {
    EXPECT_TRUE(toA_.core()->progress().onLoopThread());
    ofB_->say({words.begin(), words.end()});
  });
  ofA_->listen([&, turn = uint32_t{0}](std::span<const std::byte> words) mutable {
    EXPECT_TRUE(toB_.core()->progress().onLoopThread());
    EXPECT_EQ(Words(words.begin(), words.end()), numbered(7, turn));
    if (++turn == kTurns) return done.set_value(true);
    ofA_->say(numbered(7, turn));
  });
  ofA_->say(numbered(7, 0));
  auto ended = done.get_future();
  EXPECT_EQ(ended.wait_for(kSoon), std::future_status::ready);
}

TEST_F(LinkLinesTest, EachLinkHasALineOfItsOwn) {
  Heard here, there;
  ofB_->listen(here.keep());
  other_.line(false)->listen(there.keep());
  ofA_->say(numbered(1, 1));
  other_.line(true)->say(numbered(2, 2));
  ofA_->say(numbered(1, 3));
  settle(toB_, toA_);
  EXPECT_EQ(here.all(), (std::vector<Words>{numbered(1, 1), numbered(1, 3)}));
  EXPECT_EQ(there.all(), (std::vector<Words>{numbered(2, 2)}));
  other_.line(false)->stopListening();
}

TEST_F(LinkLinesTest, WhatCameBeforeIsHeardFirst) {
  for (uint32_t i = 0; i < LinkLine::kMostKept; ++i) ofA_->say(numbered(1, i));
  settle(toB_, toA_);
  Heard heard;
  onProgressThread(toA_, [&] {
    ofB_->listen(heard.keep());
    EXPECT_EQ(heard.count(), 0u) << "not inside the call";
  });
  ofA_->say(numbered(1, LinkLine::kMostKept));
  ASSERT_TRUE(soon([&] { return heard.count() == LinkLine::kMostKept + 1; }));
  const auto all = heard.all();
  for (uint32_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], numbered(1, i));
}

// What listen() posts has not run yet when one more comes.
TEST_F(LinkLinesTest, OneMoreMayComeBeforeWhatWasKeptIsHeard) {
  const auto owner = std::make_shared<int>();
  const std::weak_ptr<void> alive = owner;
  LinkLines lines(toA_.core()->progress(), alive, [](const control::LinkMessage&) {});
  Heard heard;
  onProgressThread(toA_, [&] {
    const auto line = lines.make("kept");
    const auto comes = [&](uint32_t number) {
      control::LinkMessage message{"kept", numbered(1, number)};
      return lines.handle(message);
    };
    for (uint32_t i = 0; i < LinkLine::kMostKept; ++i) EXPECT_OK(comes(i));
    line->listen(heard.keep());
    EXPECT_OK(comes(LinkLine::kMostKept));
    EXPECT_EQ(heard.count(), LinkLine::kMostKept + 1);
    lines.end();
  });
  const auto all = heard.all();
  for (uint32_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], numbered(1, i));
}

TEST_F(LinkLinesTest, MoreThanIsKeptEndsThePeer) {
  for (uint32_t i = 0; i <= LinkLine::kMostKept; ++i) ofA_->say(numbered(1, i));
  ASSERT_TRUE(soon([&] { return toA_.state() == "lost"; }));
  const Status why = toA_.status();
  EXPECT_NE(why.message().find("link 'talking' says more than 64 things"), std::string_view::npos)
      << why.toString();
}

TEST_F(LinkLinesTest, AnyThreadMaySay) {
  constexpr uint32_t kThreads = 4, kMessages = 250;
  Heard atA, atB;
  ofA_->listen(atA.keep());
  ofB_->listen(atB.keep());
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kMessages; ++i) (t % 2 == 0 ? ofA_ : ofB_)->say(numbered(t, i));
    });
  threads.clear();
  ASSERT_TRUE(soon([&] { return atA.count() + atB.count() == kThreads * kMessages; }));
  std::map<uint32_t, uint32_t> next;
  for (const Heard* heard : {&atA, &atB})
    for (const Words& words : heard->all()) {
      ByteReader reader(words);
      const uint32_t thread = reader.u32();
      EXPECT_EQ(reader.u32(), next[thread]++) << "of thread " << thread;
    }
}

TEST_F(LinkLinesTest, AnyThreadMayListenAndStopMeanwhile) {
  ofB_->stopListening();  // so that nothing is kept
  std::atomic<bool> isOver{false};
  std::jthread speaker([&] {
    for (uint32_t i = 0; !isOver.load(); ++i) {
      ofA_->say(numbered(1, i));
      if (i % 16 == 0) settle(toB_, toA_);
    }
  });
  for (int round = 0; round < 200; ++round) {
    auto heard = std::make_unique<std::atomic<uint32_t>>(0);
    ofB_->listen([&count = *heard](std::span<const std::byte>) { count.fetch_add(1); });
    if (round % 8 == 0) {
      EXPECT_TRUE(soon([&] { return heard->load() != 0; }));
    }
    ofB_->stopListening();
    heard.reset();  // a sanitizer sees a call that comes later
  }
  isOver.store(true);
}

TEST_F(LinkLinesTest, StoppingWaitsForTheCallUnderWay) {
  std::latch entered(1), stopping(1);
  auto token = std::make_shared<std::atomic<bool>>(false);
  const std::weak_ptr<std::atomic<bool>> watched = token;
  bool hasLeft = false;  // written by the call, read after stopListening()
  ofB_->listen([&, token = std::move(token)](std::span<const std::byte>) {
    entered.count_down();
    stopping.wait();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    hasLeft = true;
  });
  ofA_->say({});
  entered.wait();
  stopping.count_down();
  ofB_->stopListening();
  EXPECT_TRUE(hasLeft);
  EXPECT_TRUE(watched.expired()) << "what the function refers to may go now";
}

TEST_F(LinkLinesTest, StoppingInsideACallReturnsAtOnce) {
  auto token = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = token;
  ofB_->listen([&, token = std::move(token)](std::span<const std::byte>) {
    ofB_->stopListening();
    EXPECT_EQ(++*token, 1) << "the function lives until it has returned, and is not called again";
  });
  for (int i = 0; i < 3; ++i) ofA_->say({});
  settle(toB_, toA_);
  EXPECT_TRUE(watched.expired());
  Heard later;
  ofB_->listen(later.keep());
  ofA_->say(numbered(1, 4));
  settle(toB_, toA_);
  EXPECT_EQ(later.all(), std::vector<Words>{numbered(1, 4)}) << "the others were dropped";
}

TEST_F(LinkLinesTest, ACallMayGiveItsPlaceToAnother) {
  Heard later;
  ofB_->listen([&](std::span<const std::byte>) { ofB_->listen(later.keep()); });
  for (uint32_t i = 0; i < 3; ++i) ofA_->say(numbered(1, i));
  settle(toB_, toA_);
  EXPECT_EQ(later.all(), (std::vector<Words>{numbered(1, 1), numbered(1, 2)}));
}

TEST_F(LinkLinesTest, ALinkThatWasGivenUpSaysAndHearsNothing) {
  Heard atA, atB;
  ofA_->listen(atA.keep());
  ofB_->listen(atB.keep());
  talking_.wire().loseAfter(0, 0);
  for (const Peer& peer : {toA_, toB_})
    ASSERT_TRUE(soon([&] {
      bool isGone = false;
      onProgressThread(peer, [&] {
        isGone = peer.core()->links().named("talking") != nullptr &&
                 !peer.core()->links().isLive(*peer.core()->links().named("talking"));
      });
      return isGone;
    }));
  ofA_->say(numbered(1, 1));
  ofB_->say(numbered(2, 1));
  settle(toB_, toA_);
  settle(toA_, toB_);
  EXPECT_EQ(atA.count() + atB.count(), 0u);
  EXPECT_EQ(toA_.state(), "ready");
  Heard others;
  other_.line(false)->listen(others.keep());
  other_.line(true)->say(numbered(2, 2));
  settle(toB_, toA_);
  EXPECT_EQ(others.count(), 1u) << "the other link goes on";
  other_.line(false)->stopListening();
}

TEST_F(LinkLinesTest, AfterThePeerOrTheContextNobodyHearsAndNobodyMinds) {
  auto token = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = token;
  ofB_->listen([token = std::move(token)](std::span<const std::byte>) { ADD_FAILURE(); });
  toB_.close();
  ofA_->say({});
  ASSERT_TRUE(soon([&] { return toA_.state() == "lost"; }));
  ofB_->say({});
  EXPECT_TRUE(soon([&] { return watched.expired(); })) << "a line that ended keeps nothing";
  ofB_->listen([](std::span<const std::byte>) { ADD_FAILURE(); });
  toB_ = Peer();
  toA_ = Peer();
  a_.reset();
  b_.reset();
  for (const auto& line : {ofA_, ofB_}) {
    line->say({});
    line->listen([](std::span<const std::byte>) { ADD_FAILURE(); });
    line->stopListening();
  }
}

// --- With somebody who is not this library ---

class LinkLinesStranger : public testing::Test {
 protected:
  LinkLinesStranger() {
    context_ = MUST(Context::create({withLinks({"tcp", "talking"}), {"127.0.0.1:0"}, ""}));
    secret_ = MUST(Secret::fromText(context_->secretText()));
    for (const std::string& address : context_->addresses())
      if (!address.starts_with("unix")) address_ = address;
  }
  void expectShownOut(Intruder& it, const Peer& peer, const char* why) {
    EXPECT_TRUE(it.seesTheEnd());
    EXPECT_TRUE(soon([&] { return peer.state() == "lost"; }));
    EXPECT_NE(peer.status().message().find(why), std::string_view::npos)
        << peer.status().toString();
  }
  TalkingTransport talking_{"talking"};
  std::unique_ptr<Context> context_;
  Secret secret_;
  std::string address_;
};

TEST_F(LinkLinesStranger, AnEarlierVersionHasNoLines) {
  Intruder it(address_);
  it.enter(secret_, feature::kRevoked);
  it.becomePeer();
  const Peer peer = MUST(context_->accept(kSoon));
  EXPECT_EQ(talking_.prepared(false), 1u);
  EXPECT_EQ(talking_.line(false), nullptr);
  it.say(control::LinkMessage{"tcp", {}});
  expectShownOut(it, peer, "speaks about a link of 'tcp'");
}

TEST_F(LinkLinesStranger, WordsAboutALinkThatHasEndedAreDropped) {
  Intruder it(address_);
  it.enter(secret_);
  Words offer;
  ByteWriter(offer).u64(1000);  // a fake link's
  it.becomePeer({{"talking", offer, 0}});
  const Peer peer = MUST(context_->accept(kSoon));
  Heard heard;
  const auto line = talking_.line(false);
  line->listen(heard.keep());
  it.say(control::LinkMessage{"talking", numbered(1, 1)});
  EXPECT_TRUE(soon([&] { return heard.count() == 1; }));
  it.say(control::LinkEnded{"talking", "no use"});
  for (size_t i = 0; i <= LinkLine::kMostKept; ++i) it.say(control::LinkMessage{"talking", {}});
  EXPECT_TRUE(it.isQuiet());
  EXPECT_EQ(peer.state(), "ready");
  EXPECT_EQ(heard.count(), 1u);
}

TEST_F(LinkLinesStranger, OneThatKnowsThemMaySpeakAboutItsLinksAlone) {
  Intruder it(address_);
  it.enter(secret_);
  it.becomePeer();
  const Peer peer = MUST(context_->accept(kSoon));
  EXPECT_NE(talking_.line(false), nullptr);
  // A link that was offered, and that this peer did not take.
  for (size_t i = 0; i <= LinkLine::kMostKept; ++i) it.say(control::LinkMessage{"talking", {}});
  it.say(control::LinkMessage{"tcp", numbered(1, 1)});
  EXPECT_TRUE(it.isQuiet());
  EXPECT_EQ(peer.state(), "ready");
  it.say(control::LinkMessage{"pigeon", {}});
  expectShownOut(it, peer, "speaks about a link of 'pigeon'");
}

}  // namespace
}  // namespace peerlane
