// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/sealed_pipe.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "peerlane/core/metrics.h"
#include "peerlane/core/text.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/transport/frame_agent.h"
#include "tests/fake/fake_regions.h"
#include "tests/fake/fake_wire.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/tape_pipe.h"

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;

KeyBytes countingKey(uint8_t first) {
  KeyBytes key;
  for (size_t i = 0; i < KeyBytes::kBytes; ++i)
    key.writableBytes()[i] = static_cast<std::byte>(first + i);
  return key;
}

TcpToken countingToken(uint8_t first) {
  TcpToken token;
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(first + i);
  return token;
}

LinkSecrets theSecrets() {
  return {countingKey(0xe0), countingToken(0), countingToken(0x40)};
}

Bytes bytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes pattern(size_t bytes, uint32_t seed = 1) {
  Bytes out(bytes);
  fillPattern(out, seed);
  return out;
}

IoSlice slice(Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

// --- Keys ---

TEST(StreamKeys, GoldenBytes) {
  // Made by an independent program from the description in docs/wire.md.
  const StreamKeys dialler = streamKeys(theSecrets(), AeadCipher::kAes256Gcm, 3, true);
  EXPECT_EQ(encodeHex(dialler.send.bytes()),
            "c4402da83fb97b14c20fb7c25b82f266f37b11ad4e0fe9857bea5c0e6984aefb");
  EXPECT_EQ(
      encodeHex(streamKeys(theSecrets(), AeadCipher::kChaCha20Poly1305, 0, false).send.bytes()),
      "de0f62135bfda4e084323bb095b53d671e794dc34d54f6957ba14d44d1570aec");
  KeyChain chain(dialler.send);
  EXPECT_EQ(encodeHex(chain.next().bytes()),
            "679677ca8f90a72c9c49ad553deb32b5920aaca6cbf07ed859c5578256a06924");
  EXPECT_EQ(encodeHex(chain.next().bytes()),
            "bc4013df768d716c311d887f117529e64092216de6ad5b444d912a238b96d422");
}

TEST(StreamKeys, EachSocketDirectionCipherAndConnectionHasItsOwn) {
  std::set<std::string> seen;
  size_t made = 0;
  const auto note = [&](const StreamKeys& keys) {
    seen.insert(encodeHex(keys.send.bytes()));
    seen.insert(encodeHex(keys.receive.bytes()));
    made += 2;
  };
  for (const AeadCipher cipher : {AeadCipher::kAes256Gcm, AeadCipher::kChaCha20Poly1305})
    for (const uint32_t socket : {0u, 1u, 256u})
      note(streamKeys(theSecrets(), cipher, socket, true));
  LinkSecrets other = theSecrets();
  other.linkKey = countingKey(1);
  note(streamKeys(other, AeadCipher::kAes256Gcm, 0, true));
  other = theSecrets();
  other.dialler[31] ^= std::byte{1};
  note(streamKeys(other, AeadCipher::kAes256Gcm, 0, true));
  other = theSecrets();
  other.listener[0] ^= std::byte{1};
  note(streamKeys(other, AeadCipher::kAes256Gcm, 0, true));
  EXPECT_EQ(seen.size(), made);
  const StreamKeys dialler = streamKeys(theSecrets(), AeadCipher::kAes256Gcm, 0, true);
  const StreamKeys listener = streamKeys(theSecrets(), AeadCipher::kAes256Gcm, 0, false);
  EXPECT_EQ(encodeHex(dialler.send.bytes()), encodeHex(listener.receive.bytes()));
  EXPECT_EQ(encodeHex(dialler.receive.bytes()), encodeHex(listener.send.bytes()));
}

// --- Records ---

class SealedPipeTest : public testing::TestWithParam<AeadCipher> {
 protected:
  StreamKeys keys(bool dials, uint32_t socket = 3) const {
    return streamKeys(theSecrets(), GetParam(), socket, dials);
  }
  // The records of these pieces, one write each.
  Bytes sealed(std::vector<Bytes> pieces, uint64_t bytesPerKey = kRecordBytesPerKey) const {
    Tape tape;
    SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true), nullptr, bytesPerKey);
    for (Bytes& piece : pieces) {
      const IoSlice whole = slice(piece);
      EXPECT_EQ(pipe.write({std::span(&whole, 1)}).value(), piece.size());
    }
    return tape.written;
  }
  struct Opened {
    Bytes plain;
    Status end;
  };
  // Everything that comes of `stream`, read in small pieces, until it fails or gives nothing.
  Opened open(Bytes stream, const StreamKeys& with, bool ends = true,
              uint64_t bytesPerKey = kRecordBytesPerKey) const {
    Tape tape{.toRead = std::move(stream), .ends = ends};
    SealedPipe pipe(std::make_unique<TapePipe>(tape), with, nullptr, bytesPerKey);
    Opened opened;
    Bytes room(1000);
    const IoSlice whole = slice(room);
    while (pipe.readable()) {
      const Result<size_t> bytes = pipe.read({std::span(&whole, 1)});
      if (!bytes) {
        opened.end = bytes.status();
        EXPECT_EQ(pipe.read({std::span(&whole, 1)}).status().message(), bytes.status().message())
            << "the error is sticky";
        break;
      }
      if (*bytes == 0) break;
      opened.plain.insert(opened.plain.end(), room.begin(),
                          room.begin() + static_cast<ptrdiff_t>(*bytes));
    }
    return opened;
  }
  Opened open(Bytes stream) const { return open(std::move(stream), keys(false)); }
};

INSTANTIATE_TEST_SUITE_P(Ciphers, SealedPipeTest,
                         testing::Values(AeadCipher::kAes256Gcm, AeadCipher::kChaCha20Poly1305),
                         [](const auto& tested) {
                           return tested.param == AeadCipher::kAes256Gcm ? "Aes" : "ChaCha";
                         });

TEST_P(SealedPipeTest, GoldenBytes) {
  // Made by an independent program from the description in docs/wire.md. The first record uses up
  // its key.
  const Bytes made = sealed({bytesOf("A record of Peerlane."), bytesOf("next")}, 16);
  const bool isAes = GetParam() == AeadCipher::kAes256Gcm;
  EXPECT_EQ(encodeHex(made),
            isAes
                ? "1500000076119cf082a4e7d5db5aa3d87bdbe8a86386d9bb22a238345f2d4b7342f3bc9c646efdff"
                  "5a"
                  "0400000037f004d0083354bfb461bf32a11c461e5171d80f"
                : "150000004563ef304d114d111c62b26e5f2db494a210f405934f7cb2eda24bc5fd4f0db58e39a128"
                  "bf"
                  "0400000059729cc623c7d3dc35f4487f6af5afa4bf2a2d29");
  EXPECT_EQ(open(made, keys(false), true, 16).plain, bytesOf("A record of Peerlane.next"));
}

TEST_P(SealedPipeTest, SlicesOfAnySizeComeThrough) {
  Bytes plain = pattern(1'000'003);
  Tape tape;
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true));
  std::vector<IoSlice> slices;
  size_t at = 0;
  for (size_t i = 0; at < plain.size(); ++i) {
    const size_t sizes[] = {1, 48, 0, 65536, 17, 65535, 131'073, 200'000};
    const size_t bytes = std::min(sizes[i % std::size(sizes)], plain.size() - at);
    slices.push_back({plain.data() + at, bytes});
    at += bytes;
  }
  EXPECT_EQ(pipe.write({slices}).value(), plain.size());
  EXPECT_FALSE(pipe.hasUnsent());
  EXPECT_EQ(tape.written.size(), plain.size() + 16 * kRecordExtraBytes) << "records are full";
  const Opened opened = open(tape.written);
  EXPECT_TRUE(opened.plain == plain);
  EXPECT_EQ(opened.end.code(), Code::kPeerLost);
  EXPECT_EQ(opened.end.message(), "the tape ended") << "between two records";
}

TEST_P(SealedPipeTest, SmallPiecesOfOneWriteShareARecord) {
  Bytes pieces[3] = {pattern(48, 1), pattern(8, 2), pattern(48, 3)};
  const IoSlice slices[3] = {slice(pieces[0]), slice(pieces[1]), slice(pieces[2])};
  Tape tape;
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true));
  EXPECT_EQ(pipe.write({slices}).value(), 104u);
  EXPECT_EQ(tape.written.size(), 104 + kRecordExtraBytes);
  EXPECT_EQ(tape.writes, 1u);
}

TEST_P(SealedPipeTest, NothingOfThePlaintextIsInTheStream) {
  const Bytes stream = sealed({Bytes(4096, std::byte{'A'}), Bytes(4096, std::byte{'A'})});
  const Bytes run(8, std::byte{'A'});
  EXPECT_EQ(std::search(stream.begin(), stream.end(), run.begin(), run.end()), stream.end());
  const size_t half = stream.size() / 2;
  EXPECT_FALSE(std::equal(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(half),
                          stream.begin() + static_cast<ptrdiff_t>(half)))
      << "equal records look different";
}

// What the wire does not take at once waits in the pipe, and leaves first: for every number of
// bytes that the wire may have taken.
TEST_P(SealedPipeTest, PartialWritesOfEveryLength) {
  Bytes first = pattern(90, 1);
  Bytes second = pattern(10, 2);
  Bytes both = first;
  both.insert(both.end(), second.begin(), second.end());
  const IoSlice slices[2] = {slice(first), slice(second)};
  for (size_t room = 1; room <= 2 * kRecordExtraBytes + 100; ++room) {
    Tape tape{.room = room};
    SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true));
    ASSERT_EQ(pipe.write({std::span(&slices[0], 1)}).value(), first.size()) << room;
    const size_t whole = first.size() + kRecordExtraBytes;
    ASSERT_EQ(pipe.hasUnsent(), room < whole) << room;
    const size_t taken = pipe.write({std::span(&slices[1], 1)}).value();
    ASSERT_EQ(taken, room < whole ? 0 : second.size()) << room;
    tape.room = 1000;
    ASSERT_EQ(pipe.write(PipeSlices{}).value(), 0u);
    ASSERT_FALSE(pipe.hasUnsent());
    if (taken == 0) {
      ASSERT_EQ(pipe.write({std::span(&slices[1], 1)}).value(), second.size());
    }
    ASSERT_EQ(open(tape.written).plain, both) << room;
  }
}

TEST_P(SealedPipeTest, PartialReadsOfEveryLength) {
  const Bytes stream = sealed({pattern(70, 1), pattern(30, 2)});
  Bytes expected = pattern(70, 1);
  const Bytes rest = pattern(30, 2);
  expected.insert(expected.end(), rest.begin(), rest.end());
  for (size_t most = 1; most <= stream.size(); ++most) {
    Tape tape{.toRead = stream, .most = most};
    SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(false));
    Bytes plain;
    Bytes room(7);
    const IoSlice whole = slice(room);
    while (pipe.readable()) {
      const size_t bytes = pipe.read({std::span(&whole, 1)}).value();
      plain.insert(plain.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(bytes));
    }
    ASSERT_EQ(plain, expected) << most;
  }
}

// A reader that stops at its budget would never be woken for these.
TEST_P(SealedPipeTest, WhatThePipeHoldsIsTold) {
  Tape tape{.toRead = sealed({pattern(100), pattern(100), pattern(100)})};
  const size_t last = tape.toRead.size() - 1;
  const std::byte missing = tape.toRead[last];
  tape.toRead.resize(last);
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(false));
  EXPECT_FALSE(pipe.hasUnread());
  Bytes room(150);
  const IoSlice whole = slice(room);
  EXPECT_EQ(pipe.read({std::span(&whole, 1)}).value(), 150u);
  EXPECT_TRUE(pipe.hasUnread());
  EXPECT_EQ(pipe.read({std::span(&whole, 1)}).value(), 50u);
  EXPECT_FALSE(pipe.hasUnread()) << "the third is not whole";
  EXPECT_FALSE(pipe.readable());
  tape.toRead.push_back(missing);
  EXPECT_TRUE(pipe.readable());
  EXPECT_EQ(pipe.read({std::span(&whole, 1)}).value(), 100u);
}

TEST_P(SealedPipeTest, KeysFollowEachOther) {
  constexpr uint64_t kPerKey = 100'000;  // two records
  Bytes plain = pattern(1'300'000);
  const Bytes stream = sealed({plain}, kPerKey);
  EXPECT_TRUE(open(stream, keys(false), true, kPerKey).plain == plain);
  // The first record of the second key does not open with the first one.
  const Opened other = open(stream, keys(false), true, kRecordBytesPerKey);
  EXPECT_EQ(other.plain.size(), 2u * kRecordMostBytes);
  EXPECT_EQ(other.end.code(), Code::kCorrupt);
}

TEST_P(SealedPipeTest, HelpersSealAndOpenTheSame) {
  Metrics metrics;
  const auto team = cpu::CopyTeam::create(3, metrics).value();
  constexpr uint64_t kPerKey = 500'000;  // seven or eight records: keys change inside of a batch
  Bytes plain = pattern(3'000'000);
  Tape tape;
  SealedPipe writer(std::make_unique<TapePipe>(tape), keys(true), team.get(), kPerKey);
  const IoSlice whole = slice(plain);
  EXPECT_EQ(writer.write({std::span(&whole, 1)}).value(), plain.size());
  EXPECT_TRUE(tape.written == sealed({plain}, kPerKey));
  Tape back{.toRead = tape.written};
  SealedPipe reader(std::make_unique<TapePipe>(back), keys(false), team.get(), kPerKey);
  Bytes opened(plain.size());
  for (size_t at = 0; at < opened.size();) {
    const IoSlice rest{opened.data() + at, opened.size() - at};
    const size_t bytes = reader.read({std::span(&rest, 1)}).value();
    ASSERT_NE(bytes, 0u);
    at += bytes;
  }
  EXPECT_TRUE(opened == plain);
}

// --- Attacks ---

constexpr const char* kDoesNotOpen = "does not open";

// What cannot be read takes the records after it out of the stream, not their numbers.
TEST_P(SealedPipeTest, UnreadableMemoryCostsNoRecord) {
  constexpr size_t kPages = 600 * 1024;
  auto* const pages = static_cast<std::byte*>(
      ::mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Bytes plain = pattern(kPages);
  std::copy(plain.begin(), plain.end(), pages);
  Metrics metrics;
  const auto team = cpu::CopyTeam::create(3, metrics).value();
  for (const size_t from : {size_t{0}, size_t{4096}, size_t{300 * 1024}, kPages - 4096}) {
    for (cpu::CopyTeam* const helpers : {static_cast<cpu::CopyTeam*>(nullptr), team.get()}) {
      ASSERT_EQ(::mprotect(pages + from, kPages - from, PROT_NONE), 0);
      Tape tape;
      SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true), helpers);
      Bytes head = pattern(48, 5);
      std::vector<IoSlice> left{slice(head), {pages, kPages}, slice(head)};
      std::span<IoSlice> rest = left;
      Bytes expected = head;
      size_t taken = 0;
      Result<size_t> written = size_t{0};
      while ((written = pipe.write({rest})).isOk()) {
        ASSERT_NE(*written, 0u);
        taken += *written;
        rest = rest.subspan(takeBytes(rest, *written));
      }
      EXPECT_EQ(written.status().code(), Code::kRevoked);
      ASSERT_GE(taken, head.size());
      EXPECT_LE(taken, head.size() + from);
      EXPECT_GT(taken + kRecordMostBytes, head.size() + from);
      expected.insert(expected.end(), plain.begin(),
                      plain.begin() + static_cast<ptrdiff_t>(taken - head.size()));
      // It goes on with what comes after.
      rest = rest.subspan(1);
      ASSERT_EQ(pipe.write({rest}).value(), head.size());
      expected.insert(expected.end(), head.begin(), head.end());
      EXPECT_TRUE(open(tape.written).plain == expected) << from;
      ASSERT_EQ(::mprotect(pages, kPages, PROT_READ | PROT_WRITE), 0);
    }
  }
  ::munmap(pages, kPages);
}

TEST_P(SealedPipeTest, MemoryThatCannotBeFilledCostsNoByte) {
  auto* const page =
      static_cast<std::byte*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Bytes plain = pattern(100);
  Tape tape{.toRead = sealed({plain})};
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(false));
  const IoSlice lost{page, 4096};
  EXPECT_EQ(pipe.read({std::span(&lost, 1)}).status().code(), Code::kRevoked);
  Bytes got(100);
  const IoSlice room = slice(got);
  EXPECT_EQ(pipe.read({std::span(&room, 1)}).value(), 100u);
  EXPECT_TRUE(got == plain);
  ::munmap(page, 4096);
}

TEST_P(SealedPipeTest, EveryAlteredByteEndsThePipe) {
  const Bytes good = sealed({pattern(20, 1), pattern(20, 2), pattern(20, 3)});
  const size_t record = good.size() / 3;
  for (size_t at = record; at < 2 * record; ++at) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}}) {
      Bytes bad = good;
      bad[at] ^= flip;
      const Opened opened = open(bad);
      ASSERT_EQ(opened.plain, pattern(20, 1)) << at << ": nothing of the altered one, nor after it";
      // A longer length may wait for bytes that never come.
      const bool isLength = at - record < kRecordHeaderBytes;
      ASSERT_TRUE(opened.end.code() == Code::kCorrupt ||
                  (isLength && opened.end.code() == Code::kPeerLost))
          << at << opened.end.toString();
    }
  }
}

TEST_P(SealedPipeTest, ReplayedLeftOutAndMovedRecordsEndThePipe) {
  const Bytes good = sealed({pattern(20, 1), pattern(20, 2), pattern(20, 3)});
  const auto size = static_cast<ptrdiff_t>(good.size() / 3);
  const auto record = [&](int i) {
    return Bytes(good.begin() + i * size, good.begin() + (i + 1) * size);
  };
  struct Case {
    std::vector<int> order;
    size_t opens;
  };
  for (const Case& test : {Case{{0, 0}, 1}, Case{{0, 1, 0}, 2}, Case{{0, 2}, 1}, Case{{1, 0}, 0},
                           Case{{0, 2, 1}, 1}}) {
    Bytes stream;
    for (const int i : test.order) {
      const Bytes one = record(i);
      stream.insert(stream.end(), one.begin(), one.end());
    }
    const Opened opened = open(stream);
    EXPECT_EQ(opened.plain.size(), 20 * test.opens);
    EXPECT_EQ(opened.end.code(), Code::kCorrupt);
    EXPECT_NE(opened.end.message().find("sealed record " + std::to_string(test.opens) + " " +
                                        kDoesNotOpen),
              std::string_view::npos)
        << opened.end.toString();
  }
}

TEST_P(SealedPipeTest, ATruncatedStreamSaysWhere) {
  const Bytes good = sealed({pattern(20, 1), pattern(20, 2)});
  const size_t record = good.size() / 2;
  for (size_t cut = 0; cut < good.size(); ++cut) {
    const Opened opened = open(Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(cut)));
    ASSERT_EQ(opened.plain.size(), cut / record * 20);
    ASSERT_EQ(opened.end.code(), Code::kPeerLost);
    ASSERT_EQ(
        opened.end.message().find("in the middle of a sealed record") != std::string_view::npos,
        cut % record != 0)
        << cut;
  }
}

TEST_P(SealedPipeTest, OtherKeysOpenNothing) {
  const Bytes good = sealed({pattern(20)});
  const AeadCipher other =
      GetParam() == AeadCipher::kAes256Gcm ? AeadCipher::kChaCha20Poly1305 : AeadCipher::kAes256Gcm;
  StreamKeys wrongCipher = keys(false);
  wrongCipher.cipher = other;
  StreamKeys oneBit = keys(false);
  oneBit.receive.writableBytes()[31] ^= std::byte{1};
  // The last one: what a side sent itself, sent back.
  for (const StreamKeys& wrong : {keys(false, /*socket=*/4), keys(true), wrongCipher, oneBit}) {
    const Opened opened = open(good, wrong);
    EXPECT_TRUE(opened.plain.empty());
    EXPECT_EQ(opened.end.code(), Code::kCorrupt);
    EXPECT_NE(opened.end.message().find(kDoesNotOpen), std::string_view::npos);
  }
}

TEST_P(SealedPipeTest, LengthsOutsideOfTheirLimitsAreRefusedAtOnce) {
  for (const uint32_t length : {0u, kRecordMostBytes + 1, 0xffffffffu}) {
    Bytes stream(4);
    for (size_t i = 0; i < 4; ++i) stream[i] = static_cast<std::byte>(length >> (8 * i));
    const Opened opened = open(stream, keys(false), /*ends=*/false);
    EXPECT_EQ(opened.end.code(), Code::kCorrupt);
    EXPECT_EQ(opened.end.message(),
              "a sealed record of " + std::to_string(length) + " bytes; accepted: 1 to 65536");
  }
}

// Frames in clear, of a side that does not encrypt, are no records.
TEST_P(SealedPipeTest, ClearBytesAreRefused) {
  EXPECT_EQ(open(bytesOf("PL\x01\x01 and what a frame has besides")).end.code(), Code::kCorrupt);
}

TEST_P(SealedPipeTest, OverAWireThatTakesAFewBytes) {
  FakeWire wire(7, 3000);
  wire.setPartial(501);
  SealedPipe a(wire.end(0), keys(true));
  SealedPipe b(wire.end(1), keys(false));
  Bytes plain = pattern(300'000);
  Bytes got(plain.size());
  size_t sent = 0;
  size_t received = 0;
  for (int round = 0; received < got.size(); ++round) {
    ASSERT_LT(round, 100'000);
    const IoSlice rest{plain.data() + sent, plain.size() - sent};
    sent += a.write({std::span(&rest, 1)}).value();
    const IoSlice room{got.data() + received, got.size() - received};
    received += b.read({std::span(&room, 1)}).value();
  }
  EXPECT_TRUE(got == plain);
}

// --- Under a frame agent ---

// Side 0 puts into the memory of side 1, over a wire that holds `capacity` bytes.
class SealedAgents : public testing::Test {
 protected:
  static constexpr size_t kBytes = 4 << 20;

  void connect(size_t capacity) {
    wire_ = std::make_unique<FakeWire>(1, capacity);
    for (const int side : {0, 1}) {
      auto pipe = std::make_unique<SealedPipe>(
          wire_->end(side), streamKeys(theSecrets(), AeadCipher::kChaCha20Poly1305, 0, side == 0));
      pipes_[side] = pipe.get();
      agents_[side] = std::make_unique<FrameAgent>("side " + std::to_string(side), std::move(pipe),
                                                   regions_[side], nullptr);
    }
    remote_.grant = regions_[1].add(target_, Access::kRemoteReadWrite);
    mailbox_ = std::make_unique<Mailbox>(*agents_[0]);
  }
  ~SealedAgents() override {
    for (auto& agent : agents_) agent.reset();  // ends what the mailbox waits for
  }
  void put(size_t bytes) {
    piece_ = {source_.data(), &remote_, 0, bytes};
    MailboxEntry* const entry = mailbox_->claim();
    entry->verb = Verb::kPut;
    entry->pieces = &piece_;
    entry->pieceCount = 1;
    mailbox_->ring();
    mailbox_->serve();
  }

  Bytes source_ = pattern(kBytes);
  Bytes target_ = Bytes(kBytes);
  FakeRegions regions_[2];
  RemoteMemory remote_;
  Piece piece_{};
  std::unique_ptr<FakeWire> wire_;
  std::unique_ptr<Mailbox> mailbox_;
  SealedPipe* pipes_[2] = {};
  std::unique_ptr<FrameAgent> agents_[2];
};

// The agent has nothing more to write long before the wire has taken all.
TEST_F(SealedAgents, SealedBytesLeaveWithoutAFurtherFrame) {
  connect(3000);
  put(200'000);
  EXPECT_TRUE(pipes_[0]->hasUnsent());
  for (int round = 0; round < 1000 && !mailbox_->idle(); ++round)
    for (auto& agent : agents_) (void)agent->poll();
  EXPECT_TRUE(mailbox_->idle());
  EXPECT_EQ(mailbox_->code(), Code::kOk);
  EXPECT_TRUE(std::equal(target_.begin(), target_.begin() + 200'000, source_.begin()));
}

// Nothing would wake a reader for what its pipe has taken from the wire already.
TEST_F(SealedAgents, APollLeavesNothingInThePipe) {
  connect(8 << 20);
  put(kBytes);
  for (int round = 0; round < 1000 && !mailbox_->idle(); ++round) {
    for (auto& agent : agents_) (void)agent->poll();
    ASSERT_FALSE(pipes_[1]->hasUnread()) << round;
  }
  EXPECT_TRUE(mailbox_->idle());
  EXPECT_TRUE(target_ == source_);
}

}  // namespace
}  // namespace peerlane
