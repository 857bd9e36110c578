// SPDX-License-Identifier: Apache-2.0
//
// What two services say about a semaphore: golden bytes, what is refused, and how a bootstrap takes
// what comes in an order of its own.
#include "peerlane/channel/port/port_note.h"

#include "peerlane/channel/port/port_bootstrap.h"
#include "peerlane/core/text.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

using Kind = PortNote::Kind;

PortNote hello(uint32_t tag, uint64_t serial) {
  PortNote note{.kind = Kind::kHello, .tag = tag, .serial = serial};
  note.hostLine.isThere = true;
  for (size_t i = 0; i < note.hostLine.region.size(); ++i)
    note.hostLine.region[i] = static_cast<std::byte>(i + 1);
  note.hostLine.offset = 0x1240;
  return note;
}
PortNote ready(uint32_t tag, uint64_t serial, uint64_t answers = 1) {
  return {
      .kind = Kind::kReady, .tag = tag, .serial = serial, .usesHostLine = true, .answers = answers};
}
PortNote ended(uint32_t tag, uint64_t serial, Code code = Code::kClosed) {
  return {.kind = Kind::kEnded, .tag = tag, .serial = serial, .code = code, .text = "removed"};
}

PortNote gaveUp(uint32_t tag, uint64_t serial, Code code = Code::kTimeout) {
  return {.kind = Kind::kGaveUp, .tag = tag, .serial = serial, .code = code, .text = "too late"};
}
PortNote gone(uint32_t tag, uint64_t serial) {
  return {.kind = Kind::kGone, .tag = tag, .serial = serial};
}

void expectRoundTrip(const PortNote& note) {
  const std::vector<std::byte> bytes = note.encode();
  const PortNote back = MUST(PortNote::decode(bytes));
  EXPECT_EQ(back.encode(), bytes);
  EXPECT_EQ(back.kind, note.kind);
  EXPECT_EQ(back.tag, note.tag);
  EXPECT_EQ(back.serial, note.serial);
  EXPECT_EQ(back.deviceLine.isThere, note.deviceLine.isThere);
  EXPECT_EQ(back.deviceLine.offset, note.deviceLine.offset);
  EXPECT_EQ(back.hostLine.isThere, note.hostLine.isThere);
  EXPECT_EQ(back.hostLine.region, note.hostLine.region);
  EXPECT_EQ(back.hostLine.offset, note.hostLine.offset);
  EXPECT_EQ(back.usesHostLine, note.usesHostLine);
  EXPECT_EQ(back.code, note.code);
  EXPECT_EQ(back.text, note.text);
}

TEST(PortNote, GoldenBytes) {
  EXPECT_EQ(encodeHex(ready(7, 0x0102).encode()),
            "0102"
            "07000000"
            "0201000000000000"
            "01"
            "0100000000000000");
  EXPECT_EQ(encodeHex(ended(0x01020304, 9).encode()),
            "0103"
            "04030201"
            "0900000000000000"
            "09"
            "0700000072656d6f766564");
  EXPECT_EQ(encodeHex(gaveUp(7, 9).encode()),
            "0105"
            "07000000"
            "0900000000000000"
            "05"
            "08000000746f6f206c617465");
  EXPECT_EQ(encodeHex(gone(7, 9).encode()),
            "0104"
            "07000000"
            "0900000000000000");
  EXPECT_EQ(encodeHex(hello(7, 1).encode()),
            "0101"
            "07000000"
            "0100000000000000"
            "00"
            "01"
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
            "2122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40"
            "4012000000000000");
}

TEST(PortNote, ComesBackAsItWas) {
  PortNote both = hello(~0u, ~uint64_t{0});
  both.deviceLine = both.hostLine;
  both.deviceLine.offset = ~uint64_t{0};
  for (const PortNote& note : {hello(0, 0), both, PortNote{}, ready(1, 2), ended(3, 4),
                               ended(3, 4, kLastCode), gone(3, 4), gaveUp(3, 4)})
    expectRoundTrip(note);
}

TEST(PortNote, LongTextIsCutAndLongerTextRefused) {
  PortNote note = ended(1, 2);
  note.text = std::string(2000, 'x');
  const std::vector<std::byte> bytes = note.encode();
  EXPECT_EQ(MUST(PortNote::decode(bytes)).text, std::string(PortNote::kMaxText, 'x'));
  std::vector<std::byte> longer = bytes;
  longer[15] = std::byte{1};  // the length, one more than may be
  longer.push_back(std::byte{'x'});
  EXPECT_EQ(PortNote::decode(longer).status().code(), Code::kCorrupt);
}

TEST(PortNote, RefusesWhatIsNone) {
  const auto refusal = [](std::vector<std::byte> bytes, size_t at, uint8_t value) {
    bytes[at] = static_cast<std::byte>(value);
    const Status status = PortNote::decode(bytes).status();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    return std::string(status.message());
  };
  EXPECT_NE(refusal(ready(1, 2).encode(), 0, 2).find("version"), std::string::npos);
  for (const uint8_t kind : {0, 6, 255})
    EXPECT_NE(refusal(ready(1, 2).encode(), 1, kind).find("kind"), std::string::npos);
  EXPECT_NE(refusal(ended(1, 2).encode(), 14, 18).find("code"), std::string::npos);
}

TEST(PortNote, RefusesAnyPartOfOneAndTakesALongerOne) {
  PortNote both = hello(5, 6);
  both.deviceLine = both.hostLine;
  for (const PortNote& note : {both, ready(1, 2), ended(3, 4), gaveUp(3, 4)}) {
    std::vector<std::byte> bytes = note.encode();
    for (size_t length = 0; length < bytes.size(); ++length)
      EXPECT_EQ(PortNote::decode(std::span(bytes).first(length)).status().code(), Code::kCorrupt)
          << length;
    bytes.push_back(std::byte{9});  // of a later version
    EXPECT_OK(PortNote::decode(bytes).status());
  }
}

// One side's bootstrap, and the other side's notes as the test writes them.
class PortBootstrapTest : public testing::Test {
 protected:
  PortBootstrapTest() : pair_(configFor(kMapped)), peer_(*pair_.toB.core()) {}
  // In order, and taken when this returns: the last one answers for them all.
  void say(const std::vector<PortNote>& notes) {
    for (const PortNote& note : notes) ASSERT_OK(PortBootstrap::sendNote(*pair_.toA.core(), note));
    const uint32_t last = ++lastTag_;
    ASSERT_OK(bootstrap_->begin(last).status());
    ASSERT_OK(PortBootstrap::sendNote(*pair_.toA.core(), hello(last, 1)));
    ASSERT_OK(hear(last, Kind::kHello));
    bootstrap_->end(last, nullptr);
  }
  // kTryAgain: it was taken back.
  Status hear(uint32_t tag, Kind kind, std::chrono::nanoseconds time = kSoon) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    if (kind == Kind::kHello) return bootstrap_->awaitHello(peer_, tag, deadline).status();
    const auto heard = bootstrap_->awaitReady(peer_, tag, deadline);
    PEERLANE_RETURN_IF_ERROR(heard.status());
    return *heard ? Status::ok() : Status(Code::kTryAgain, "it was taken back");
  }
  // One use of tag 7 that hears hello `theirs` and answers it. Its serial.
  uint64_t answer(uint64_t theirs) {
    const uint64_t own = MUST(bootstrap_->begin(7));
    EXPECT_OK(hear(7, Kind::kHello));
    EXPECT_OK(bootstrap_->answer(peer_, ready(7, own, theirs)));
    return own;
  }
  std::function<void()> counter() {
    return [this] { gone_.fetch_add(1); };
  }
  std::atomic<int> gone_{0};

  ContextPair pair_;
  PeerCore& peer_;
  std::shared_ptr<PortBootstrap> bootstrap_ = PortBootstrap::of(peer_);
  uint32_t lastTag_ = 1000;
};

// The peer answers as soon as it has our hello, however long we take to look at its own.
TEST_F(PortBootstrapTest, AReadyAheadOfItsTurnIsKept) {
  ASSERT_OK(bootstrap_->begin(7).status());
  say({hello(7, 5), ready(7, 5)});
  EXPECT_OK(hear(7, Kind::kHello));
  EXPECT_OK(hear(7, Kind::kReady));
}

TEST_F(PortBootstrapTest, AReadyOfAnotherUseOfTheTagIsNotTaken) {
  ASSERT_OK(bootstrap_->begin(7).status());
  say({ready(7, 4), hello(7, 5), ready(7, 4)});
  EXPECT_OK(hear(7, Kind::kHello));
  say({ready(7, 4)});
  EXPECT_EQ(hear(7, Kind::kReady, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  say({ready(7, 5)});
  EXPECT_OK(hear(7, Kind::kReady));
}

// Its line may serve another semaphore by now.
TEST_F(PortBootstrapTest, AReadyThatAnswersAnEarlierHelloIsNotTaken) {
  const uint64_t first = MUST(bootstrap_->begin(7));
  bootstrap_->end(7, nullptr);
  const uint64_t second = MUST(bootstrap_->begin(7));
  say({hello(7, 5), ready(7, 5, first)});
  EXPECT_OK(hear(7, Kind::kHello));
  EXPECT_EQ(hear(7, Kind::kReady, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  say({ready(7, 5, second)});
  EXPECT_OK(hear(7, Kind::kReady));
}

TEST_F(PortBootstrapTest, AWithdrawnHelloIsNotTakenNorWhatWasSaidWithIt) {
  ASSERT_OK(bootstrap_->begin(7).status());
  say({hello(7, 5), ready(7, 5), ended(7, 5), hello(7, 6)});
  EXPECT_OK(hear(7, Kind::kHello));
  EXPECT_EQ(hear(7, Kind::kReady, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  say({ready(7, 6)});
  EXPECT_OK(hear(7, Kind::kReady));
}

TEST_F(PortBootstrapTest, AHelloIsKeptUntilSomebodyAsks) {
  say({hello(7, 5)});
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_OK(hear(7, Kind::kHello));
  bootstrap_->end(7, nullptr);
  say({hello(7, 6)});
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_OK(hear(7, Kind::kHello));
}

// Who runs out of time takes back its own hello alone.
TEST_F(PortBootstrapTest, AHelloStandsForOneUseAfterTheOther) {
  say({hello(7, 5)});
  for (int i = 0; i < 3; ++i) {
    const uint64_t own = answer(5);
    EXPECT_EQ(hear(7, Kind::kReady, std::chrono::milliseconds(1)).code(), Code::kTimeout);
    if (i == 2) {
      say({ready(7, 5, own)});
      EXPECT_OK(hear(7, Kind::kReady));
    }
    bootstrap_->end(7, nullptr);
  }
  // The one that was met stands no more.
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_EQ(hear(7, Kind::kHello, std::chrono::milliseconds(1)).code(), Code::kTimeout);
}

TEST_F(PortBootstrapTest, WhoWaitsMeetsTheNextOneWhereThePeerWasTooLate) {
  say({hello(7, 5)});
  const uint64_t own = answer(5);
  say({ready(7, 5, own), gaveUp(7, 5)});
  EXPECT_EQ(hear(7, Kind::kReady).code(), Code::kTryAgain);
  EXPECT_EQ(hear(7, Kind::kHello, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  say({gone(7, 5), hello(7, 6)});
  EXPECT_OK(hear(7, Kind::kHello));
  say({ready(7, 6, own)});
  EXPECT_OK(hear(7, Kind::kReady));
}

TEST_F(PortBootstrapTest, AnyOtherReasonToGiveUpIsOurs) {
  say({hello(7, 5)});
  (void)answer(5);
  say({gaveUp(7, 5, Code::kOutOfMemory)});
  EXPECT_EQ(hear(7, Kind::kReady).code(), Code::kOutOfMemory);
}

// Whoever says ready to a use that we have given up has met it: its hello is for no other one, and
// those that come after it need not wait for its end to have their lines back.
TEST_F(PortBootstrapTest, AHelloThatHasMetAnEarlierUseStandsNoMore) {
  say({hello(7, 5)});
  const uint64_t first = answer(5);
  bootstrap_->end(7, counter());
  say({ready(7, 5, first)});
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_EQ(hear(7, Kind::kHello, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 1) << "the second one's line";
  // It had not: it heard in time that we gave up, and says so.
  say({hello(7, 5)});
  const uint64_t third = answer(5);
  say({ready(7, 5, third)});
  EXPECT_OK(hear(7, Kind::kReady));
}

// The same where the ready came, and nobody looked in time.
TEST_F(PortBootstrapTest, AHelloThatHasMetUsUnseenStandsNoMore) {
  say({hello(7, 5)});
  const uint64_t first = answer(5);
  say({ready(7, 5, first)});
  bootstrap_->end(7, counter());
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_EQ(hear(7, Kind::kHello, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  say({gone(7, 5)});
  EXPECT_EQ(gone_.load(), 1);
}

// And where a later use has answered it meanwhile: its line may be the one that was met, if the
// peer had heard of the first one's end. The hello comes again then.
TEST_F(PortBootstrapTest, ALaterUseGoesOnWaiting) {
  say({hello(7, 5)});
  const uint64_t first = answer(5);
  bootstrap_->end(7, counter());
  const uint64_t second = answer(5);
  say({ready(7, 5, first)});
  EXPECT_EQ(hear(7, Kind::kReady).code(), Code::kTryAgain);
  say({hello(7, 5)});
  EXPECT_OK(hear(7, Kind::kHello));
  EXPECT_OK(bootstrap_->answer(peer_, ready(7, second, 5)));
  say({ready(7, 5, second)});
  EXPECT_OK(hear(7, Kind::kReady));
  EXPECT_EQ(gone_.load(), 1) << "the first one was not met";
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 1);
  say({gone(7, 5)});
  EXPECT_EQ(gone_.load(), 2);
}

// A line may serve another semaphore as soon as nobody can signal it any more, and not before.
TEST_F(PortBootstrapTest, ALineIsFreeWhenThePeerHasLetGo) {
  say({hello(7, 5)});
  (void)answer(5);
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 0);
  say({gone(7, 4)});
  EXPECT_EQ(gone_.load(), 0);
  say({gone(7, 5)});
  EXPECT_EQ(gone_.load(), 1);
}

TEST_F(PortBootstrapTest, ALineThatNobodyWasToldOfInAReadyIsFreeAtOnce) {
  say({hello(7, 5)});
  ASSERT_OK(bootstrap_->begin(7).status());
  EXPECT_OK(hear(7, Kind::kHello));
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 1);
  (void)answer(5);
  say({gaveUp(7, 5)});
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 2) << "who gave up has not signalled";
}

// A ready may have been under way while we gave up, and the peer have met a later use since.
TEST_F(PortBootstrapTest, ALineIsNotFreeBecauseOfAReadyToAnEarlierUse) {
  say({hello(7, 5)});
  const uint64_t first = answer(5);
  bootstrap_->end(7, counter());
  (void)answer(5);
  bootstrap_->end(7, counter());
  say({ready(7, 5, first)});
  EXPECT_EQ(gone_.load(), 0);
  say({gone(7, 5)});
  EXPECT_EQ(gone_.load(), 2);
}

TEST_F(PortBootstrapTest, ALineIsFreeWhenThePeerMeetsTheNextUse) {
  say({hello(7, 5)});
  (void)answer(5);
  bootstrap_->end(7, counter());
  const uint64_t second = answer(5);
  EXPECT_EQ(gone_.load(), 0);
  say({ready(7, 5, second)});
  EXPECT_EQ(gone_.load(), 1);
  EXPECT_OK(hear(7, Kind::kReady));
  bootstrap_->end(7, counter());
  EXPECT_EQ(gone_.load(), 1) << "the peer's threads may signal this one";
  say({gone(7, 5)});
  EXPECT_EQ(gone_.load(), 2);
}

TEST_F(PortBootstrapTest, ATagIsOneSemaphoresAtATime) {
  const uint64_t first = MUST(bootstrap_->begin(7));
  const Status refused = bootstrap_->begin(7).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("tag 7 is in use"), std::string_view::npos);
  EXPECT_OK(bootstrap_->begin(8).status());
  bootstrap_->end(7, nullptr);
  EXPECT_NE(MUST(bootstrap_->begin(7)), first) << "a tag's second use can be told from its first";
}

TEST_F(PortBootstrapTest, WhoWaitsHearsWhyThePeerGaveUp) {
  ASSERT_OK(bootstrap_->begin(7).status());
  say({hello(7, 5)});
  EXPECT_OK(hear(7, Kind::kHello));
  say({ended(7, 4, Code::kInternal), ended(7, 5, Code::kUnavailable)});
  const Status gaveUp = hear(7, Kind::kReady);
  EXPECT_EQ(gaveUp.code(), Code::kUnavailable);
  EXPECT_NE(gaveUp.message().find("removed"), std::string_view::npos);
}

// Else one side would hold a semaphore that is over, and the other one wait for it.
TEST_F(PortBootstrapTest, WhoHasEndedIsNotMetAnyMore) {
  ASSERT_OK(bootstrap_->begin(7).status());
  say({hello(7, 5)});
  EXPECT_OK(hear(7, Kind::kHello));
  say({ready(7, 5), ended(7, 5, Code::kTimeout)});
  EXPECT_EQ(hear(7, Kind::kReady).code(), Code::kTimeout);
}

TEST_F(PortBootstrapTest, AnEndIsToldOnceWheneverItComes) {
  for (const bool isEarly : {true, false}) {
    const uint32_t tag = isEarly ? 8 : 7;
    ASSERT_OK(bootstrap_->begin(tag).status());
    say({hello(tag, 5)});
    EXPECT_OK(hear(tag, Kind::kHello));
    std::atomic<int> told{0};
    if (isEarly) say({ended(tag, 5)});
    bootstrap_->onEnded(tag, [&](const Status& why) {
      EXPECT_EQ(why.code(), Code::kClosed);
      told.fetch_add(1);
    });
    if (!isEarly) say({ended(tag, 5)});
    EXPECT_EQ(told.load(), 1);
    say({ended(tag, 5)});
    EXPECT_EQ(told.load(), 1);
    bootstrap_->end(tag, nullptr);
  }
}

TEST_F(PortBootstrapTest, ANoteThatIsNoneEndsWaitsWithKCorrupt) {
  ASSERT_OK(bootstrap_->begin(7).status());
  const std::vector<std::byte> noise(20, std::byte{0xee});
  ASSERT_OK(pair_.toA.core()->messages().send(kPortChannel, noise));
  EXPECT_EQ(hear(7, Kind::kHello).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace peerlane
