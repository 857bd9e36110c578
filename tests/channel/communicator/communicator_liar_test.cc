// SPDX-License-Identifier: Apache-2.0
//
// A rank that writes what cannot be: its lane closes with kCorrupt, nothing outside its own bytes
// is touched, and the connection and other communicators stay as they are.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>

#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/message/host/named_import_cache.h"
#include "peerlane/core/limits.h"
#include "peerlane/memory/library_memory.h"
#include "peerlane/program/words/word.h"

#include "tests/channel/communicator/communicator_pair.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

// Rank 1 of two, made of bytes instead of a communicator.
class Liar {
 public:
  static constexpr uint32_t kEagerBytes = 1024;

  explicit Liar(const Peer& peer, bool saysHello = true) : peer_(*peer.core()) {
    channel_ = kCommunicatorChannels + CommunicatorNumbers::of(peer_)->claim();
    area_ = MUST(makeLibraryMemory(peer_.regions(), LaneArea::bytes(kEagerBytes)));
    heard_ = std::make_shared<std::promise<LaneNote>>();
    peer_.messages().onMessage(channel_, [heard = heard_, told = told_, done = false](
                                             const std::vector<std::byte>& bytes) mutable {
      auto note = LaneNote::decode(bytes);
      if (!note.isOk()) return;
      ++(*told)[static_cast<size_t>(note->kind)];
      if (done || note->kind != LaneNote::Kind::kHello) return;
      done = true;
      heard->set_value(*note);
    });
    if (!saysHello) return;
    LaneNote hello;
    hello.kind = LaneNote::Kind::kHello;
    hello.rank = 1;
    hello.ranks = 2;
    hello.eagerBytes = kEagerBytes;
    hello.area = nameOf(*area_);
    say(hello.encode());
  }
  ~Liar() {
    peer_.messages().onMessage(channel_, nullptr);
    cache_.clear();
    retireRegion(area_, {peer_.shared_from_this()});
  }

  void say(std::vector<std::byte> bytes) {
    EXPECT_OK(peer_.messages().send(channel_, std::move(bytes)));
  }
  // The honest side's area, mapped.
  void reach() {
    theirs_ = heard_->get_future().get();
    const auto deadline = std::chrono::steady_clock::now() + kSoon;
    std::shared_ptr<ImportedRegion> found;
    while (found == nullptr && std::chrono::steady_clock::now() < deadline)
      found = MUST(cache_.find(theirs_.area));
    ASSERT_NE(found, nullptr);
    ASSERT_NE(found->memory.mapped, nullptr);
    their_ = found->memory.mapped;
  }
  // Publishes message `number`.
  void write(uint64_t number, const Envelope& envelope) {
    publish(their_ + LaneArea::kInboxOffset +
                number % LaneArea::kSlots * LaneArea::strideBytes(theirs_.eagerBytes),
            &envelope, number);
  }
  void answer(uint64_t number, const Answer& answer) {
    publish(their_ + LaneArea::kAnswersOffset + number % LaneArea::kSlots * kAnswerSlotBytes,
            &answer, number);
  }
  // How many notes of this kind the honest side has sent.
  int told(LaneNote::Kind kind) const { return (*told_)[static_cast<size_t>(kind)]; }
  uint32_t theirEagerBytes() const { return theirs_.eagerBytes; }
  // The honest side has said what became of message `number`.
  bool wasAnswered(uint64_t number) const {
    const std::byte* const slot = area_->base + LaneArea::kAnswersOffset +
                                  number % LaneArea::kSlots * uint64_t{kAnswerSlotBytes};
    return loadWord(slot, Width::k64) == number + 1;
  }

 private:
  void publish(std::byte* slot, const void* bytes, uint64_t number) {
    std::memcpy(slot + kSequenceBytes, bytes, kEnvelopeBytes);
    storeWord(slot, Width::k64, number + 1, std::memory_order_seq_cst);
    peer_.link().traits().waker.ring();
  }

  PeerCore& peer_;
  uint32_t channel_ = 0;
  std::shared_ptr<RegionRecord> area_;
  std::shared_ptr<std::promise<LaneNote>> heard_;
  const std::shared_ptr<std::array<std::atomic<int>, 256>> told_ =
      std::make_shared<std::array<std::atomic<int>, 256>>();
  LaneNote theirs_;
  NamedImportCache cache_{peer_};
  std::byte* their_ = nullptr;
};

class CommunicatorLiarTest : public testing::Test {
 protected:
  CommunicatorLiarTest()
      : contexts_(configFor(kSelf)),
        liar_(contexts_.toA),
        honest_(MUST(Communicator::create(*contexts_.a, {Peer(), contexts_.toB}, 0))),
        memory_(*contexts_.a, 8192, false) {
    liar_.reach();
  }
  void expectBroken(const Result<Transfer>& transfer) {
    EXPECT_EQ(endOf(transfer), Code::kCorrupt) << transfer->status().toString();
    // Both directions end; the other one a little later.
    EXPECT_EQ(endOf(honest_->send(1, memory_.region(), 0, 8)), Code::kCorrupt);
    EXPECT_EQ(endOf(honest_->recv(1, memory_.region(), 0, 8)), Code::kCorrupt);
    EXPECT_TRUE(memory_.isAsExpected());
    EXPECT_OK(contexts_.toB.status());
  }
  Envelope honestEnvelope() const {
    Envelope envelope;
    envelope.kind = MessageKind::kEager;
    envelope.bytes = 100;
    return envelope;
  }

  // The first envelope, of a message in pieces as they cannot be.
  void expectPartBreaks(Part part) {
    const auto received = honest_->recv(1, memory_.region(), 0, 100);
    Envelope envelope = honestEnvelope();
    envelope.part = part;
    liar_.write(0, envelope);
    expectBroken(received);
  }

  ContextPair contexts_;
  Liar liar_;
  std::unique_ptr<Communicator> honest_;
  TestMemory memory_;
};

TEST_F(CommunicatorLiarTest, HonestBytesAreTaken) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  liar_.write(0, honestEnvelope());
  EXPECT_EQ(endOf(received), Code::kOk);
}

TEST_F(CommunicatorLiarTest, AnEnvelopeOfAnotherMessage) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.number = 16;
  liar_.write(0, envelope);
  expectBroken(received);
}

TEST_F(CommunicatorLiarTest, AnEnvelopeOfNoKind) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.kind = static_cast<MessageKind>(9);
  liar_.write(0, envelope);
  expectBroken(received);
}

TEST_F(CommunicatorLiarTest, APieceOfNone) {
  expectPartBreaks({1, 0});
}
TEST_F(CommunicatorLiarTest, APieceBeyondItsMessage) {
  expectPartBreaks({2, 2});
}
TEST_F(CommunicatorLiarTest, APieceWithoutThoseBefore) {
  expectPartBreaks({1, 3});
}

// One piece was met as one of three, and then the message has five: every piece ends, and the lane.
TEST_F(CommunicatorLiarTest, PiecesThatSayDifferentNumbers) {
  auto group = honest_->group();
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < 3; ++i) group.recv(1, std::span(bytes).subspan(i * 100, 100));
  const auto received = group.asOneMessage().post();
  Envelope envelope = honestEnvelope();
  envelope.number = 1;
  envelope.part = {1, 3};
  liar_.write(1, envelope);
  ASSERT_TRUE(soon([&] { return liar_.wasAnswered(1); }));
  envelope.number = 0;
  envelope.part = {0, 5};
  liar_.write(0, envelope);
  expectBroken(received);
}

// No lie: what arrives last was sent first. Three messages in a row have other numbers of pieces
// than their receives, and the last of them is found out before the others.
TEST_F(CommunicatorLiarTest, PiecesThatArriveTheOtherWayAround) {
  std::vector<std::byte> bytes(600);
  std::vector<Transfer> received;
  size_t at = 0;
  for (const size_t count : {2, 1, 2, 1}) {
    auto group = honest_->group();
    for (size_t i = 0; i < count; ++i, at += 100) group.recv(1, std::span(bytes).subspan(at, 100));
    received.push_back(MUST(group.asOneMessage().post()));
  }
  const auto write = [&](uint64_t number, uint8_t ordinal, Part part) {
    Envelope envelope = honestEnvelope();
    envelope.number = number;
    envelope.ordinal = ordinal;
    envelope.part = part;
    liar_.write(number, envelope);
  };
  write(3, 2, {0, 3});
  EXPECT_EQ(received[2].wait(kSoon).code(), Code::kSizeMismatch);
  write(0, 0, {});
  EXPECT_EQ(received[0].wait(kSoon).code(), Code::kSizeMismatch);
  write(5, 2, {2, 3});
  write(4, 2, {1, 3});
  write(1, 1, {0, 2});
  write(2, 1, {1, 2});
  EXPECT_EQ(received[1].wait(kSoon).code(), Code::kSizeMismatch);
  write(6, 3, {});
  EXPECT_OK(received[3].wait(kSoon));
}

// All of them would come, and be refused.
TEST_F(CommunicatorLiarTest, VeryManyPieces) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.part = {0, 65535};
  liar_.write(0, envelope);
  EXPECT_EQ(endOf(received), Code::kSizeMismatch);
  EXPECT_TRUE(memory_.isAsExpected());
}

// A staged message that is given up again and again: who says so is answered once, so that the
// answers of an honest side never gather.
TEST_F(CommunicatorLiarTest, AStagedMessageThatIsGivenUpTwice) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.kind = MessageKind::kRing;
  liar_.write(0, envelope);
  ASSERT_TRUE(soon([&] { return liar_.wasAnswered(0); }));
  for (int i = 0; i < 3; ++i)
    liar_.say(LaneNote{.kind = LaneNote::Kind::kGaveUp, .code = Code::kRevoked}.encode());
  liar_.say(LaneNote{.kind = LaneNote::Kind::kBye, .code = Code::kClosed}.encode());
  // It comes behind all answers. Until then nobody but the progress thread runs the lane, so the
  // goodbye does not overtake what was said before.
  ASSERT_TRUE(soon([&] { return liar_.told(LaneNote::Kind::kBye) == 1; }));
  EXPECT_EQ(liar_.told(LaneNote::Kind::kHeard), 1);
  EXPECT_EQ(endOf(received), Code::kRevoked);
}

// Nobody waits for it.
TEST_F(CommunicatorLiarTest, AnAnswerToNothing) {
  for (const uint64_t number : {uint64_t{0}, uint64_t{7}, UINT64_MAX})
    liar_.say(LaneNote{.kind = LaneNote::Kind::kHeard, .number = number}.encode());
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  liar_.write(0, honestEnvelope());
  EXPECT_EQ(endOf(received), Code::kOk);
}

TEST_F(CommunicatorLiarTest, AnEagerMessageThatDoesNotFit) {
  const auto received = honest_->recv(1, memory_.region(), 0, 8192);
  Envelope envelope = honestEnvelope();
  envelope.bytes = 8192;
  ASSERT_GT(envelope.bytes, liar_.theirEagerBytes());
  liar_.write(0, envelope);
  expectBroken(received);
}

TEST_F(CommunicatorLiarTest, APlaceOutsideItsRegion) {
  TestMemory theirs(*contexts_.b, 4096, false);
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.kind = MessageKind::kGet;
  envelope.allocation = theirs.region().record()->allocation;
  envelope.generation = theirs.region().record()->generation;
  envelope.regionBytes = 4096;
  envelope.access = Access::kRemoteReadWrite;
  envelope.offset = UINT64_MAX - 50;
  liar_.write(0, envelope);
  expectBroken(received);
}

// Not a lie that can be told from a region just taken back: that message is refused, no more.
TEST_F(CommunicatorLiarTest, ARegionThatDoesNotExist) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  Envelope envelope = honestEnvelope();
  envelope.kind = MessageKind::kGet;
  envelope.allocation = 12345;
  envelope.generation = 1;
  envelope.regionBytes = 4096;
  liar_.write(0, envelope);
  EXPECT_EQ(endOf(received), Code::kInvalidArgument);
  const auto next = honest_->recv(1, memory_.region(), 0, 100);
  envelope = honestEnvelope();
  envelope.number = envelope.ordinal = 1;
  liar_.write(1, envelope);
  EXPECT_EQ(endOf(next), Code::kOk);
}

TEST_F(CommunicatorLiarTest, AnAnswerToAnotherMessage) {
  const auto sent = honest_->send(1, memory_.region(), 0, 100);
  Answer answer;
  answer.verdict = Verdict::kAccepted;
  answer.number = 7;
  liar_.answer(0, answer);
  expectBroken(sent);
}

TEST_F(CommunicatorLiarTest, ARefusalWithoutAReason) {
  const auto sent = honest_->send(1, memory_.region(), 0, 100);
  Answer answer;
  answer.verdict = static_cast<Verdict>(77);
  answer.code = static_cast<Code>(200);
  liar_.answer(0, answer);
  EXPECT_EQ(endOf(sent), Code::kCorrupt);
}

TEST_F(CommunicatorLiarTest, ARingThatCannotBe) {
  MessageOptions ring;
  ring.protocol = Protocol::kRing;
  const auto sent = honest_->send(1, memory_.region(), 0, 8192, ring);
  Answer answer;
  answer.verdict = Verdict::kStaged;
  answer.bytes = 8192;
  answer.chunkBytes = 0;
  answer.regionBytes = UINT64_MAX;
  liar_.answer(0, answer);
  expectBroken(sent);
}

TEST_F(CommunicatorLiarTest, ABufferForAPutOutsideItsRegion) {
  TestMemory theirs(*contexts_.b, 4096, false);
  MessageOptions put;
  put.protocol = Protocol::kPut;
  const auto sent = honest_->send(1, memory_.region(), 0, 100, put);
  Answer answer;
  answer.verdict = Verdict::kAccepted;
  answer.bytes = 100;
  answer.allocation = theirs.region().record()->allocation;
  answer.generation = theirs.region().record()->generation;
  answer.regionBytes = 4096;
  answer.access = Access::kRemoteReadWrite;
  answer.position = 4000;
  liar_.answer(0, answer);
  expectBroken(sent);
  EXPECT_TRUE(theirs.isAsExpected());
}

TEST_F(CommunicatorLiarTest, NotesThatAreNone) {
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  liar_.say({std::byte{1}, std::byte{2}});
  expectBroken(received);
}

TEST_F(CommunicatorLiarTest, NotesAboutMessagesThatAreNotThere) {
  for (uint64_t number = 0; number < 200; ++number) {
    LaneNote note;
    note.kind = number % 2 == 0 ? LaneNote::Kind::kWithdraw : LaneNote::Kind::kGaveUp;
    note.number = number == 0 ? 1 : number * 1'000'003;
    note.code = Code::kCancelled;
    liar_.say(note.encode());
  }
  const auto received = honest_->recv(1, memory_.region(), 0, 100);
  liar_.write(0, honestEnvelope());
  EXPECT_EQ(endOf(received), Code::kOk);
}

// Notes from before this side is there are kept, and not without an end.
TEST(CommunicatorEarlyNotes, MoreThanAreKeptEndTheBootstrap) {
  ContextPair contexts(configFor(kSelf));
  Liar liar(contexts.toA, /*saysHello=*/false);
  CommunicatorOptions options;
  options.timeout = kSoon;
  auto made = std::async(std::launch::async, [&] {
    return Communicator::create(*contexts.a, {Peer(), contexts.toB}, 0, options).status();
  });
  LaneNote note;
  note.kind = LaneNote::Kind::kGaveUp;
  for (size_t i = 0; i < limits::kEarlyNotes; ++i) liar.say(note.encode());
  EXPECT_EQ(made.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  liar.say(note.encode());
  EXPECT_EQ(made.get().code(), Code::kClosed) << "it is taken for one that left";
}

}  // namespace
}  // namespace peerlane
