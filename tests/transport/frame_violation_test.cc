// SPDX-License-Identifier: Apache-2.0
//
// One frame agent against a peer that writes raw bytes: what ends the link, and with which words.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/transport/frame_agent.h"
#include "tests/fake/fake_regions.h"
#include "tests/fake/fake_wire.h"

namespace peerlane {
namespace {

class FrameViolation : public testing::Test {
 protected:
  FrameViolation() : agent_("the link", wire_.end(0), regions_, nullptr), raw_(wire_.end(1)) {
    grant_ = regions_.add(memory_, Access::kRemoteReadWrite);
    setLogSink([this](LogLevel, std::string_view, std::string_view text) { log_ += text; });
  }
  ~FrameViolation() override { setLogSink({}); }

  void send(const Frame& frame, size_t payload = 0) {
    std::vector<std::byte> bytes(kFrameHeaderBytes + payload, std::byte{0x5a});
    encodeFrame(frame, std::span(bytes).first<kFrameHeaderBytes>());
    IoSlice slice{bytes.data(), bytes.size()};
    while (slice.bytes != 0) {
      const Result<size_t> taken = raw_->write({std::span(&slice, 1)});
      ASSERT_TRUE(taken.isOk());
      slice.base = static_cast<std::byte*>(slice.base) + *taken;
      slice.bytes -= *taken;
      (void)agent_.poll();
    }
  }
  // What the agent answered, oldest first; payloads are dropped.
  std::vector<Frame> answers() {
    std::vector<Frame> frames;
    std::vector<std::byte> bytes;
    std::array<std::byte, 4096> buffer;
    for (;;) {
      (void)agent_.poll();
      IoSlice slice{buffer.data(), buffer.size()};
      const Result<size_t> read = raw_->read({std::span(&slice, 1)});
      if (!read || *read == 0) break;
      bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*read));
    }
    for (size_t at = 0; at + kFrameHeaderBytes <= bytes.size();) {
      const Frame frame =
          parseFrame(std::span(bytes).subspan(at).first<kFrameHeaderBytes>()).value();
      frames.push_back(frame);
      at += kFrameHeaderBytes + frame.payload + (frame.trailer ? kFrameTrailerBytes : 0);
    }
    return frames;
  }
  Frame frame(FrameKind kind, uint64_t sequence, uint32_t payload = 0) const {
    Frame made;
    made.kind = kind;
    made.sequence = sequence;
    made.payload = payload;
    if (kind != FrameKind::kAck && kind != FrameKind::kGetData && kind != FrameKind::kGetRefused &&
        kind != FrameKind::kFlush && kind != FrameKind::kGetCancel) {
      made.allocation = grant_.allocation;
      made.generation = grant_.generation;
    }
    return made;
  }
  void expectEnded(const char* words) {
    (void)agent_.poll();
    EXPECT_EQ(agent_.health().code(), Code::kCorrupt);
    EXPECT_NE(log_.find("the link ended: "), std::string::npos) << log_;
    EXPECT_NE(log_.find(words), std::string::npos) << log_;
    EXPECT_EQ(regions_.pins(), 0u);
  }
  void expectAlive() {
    (void)agent_.poll();
    EXPECT_TRUE(agent_.health().isOk()) << agent_.health().toString();
  }
  // A get of `bytes` that this side has asked for.
  void ask(Mailbox& mailbox, uint64_t bytes) {
    remote_.grant = grant_;
    piece_ = {asked_.data(), &remote_, 0, bytes};
    MailboxEntry* entry = mailbox.claim();
    entry->verb = Verb::kGet;
    entry->pieces = &piece_;
    entry->pieceCount = 1;
    mailbox.ring();
    mailbox.serve();
  }

  alignas(64) std::array<std::byte, 4096> memory_{};
  std::array<std::byte, 1024> asked_{};
  FakeWire wire_{1, 1 << 20};
  FakeRegions regions_;
  RegionGrant grant_;
  RemoteMemory remote_;
  Piece piece_;
  std::string log_;
  FrameAgent agent_;
  std::unique_ptr<FramePipe> raw_;
};

TEST_F(FrameViolation, NoFrameAtAll) {
  std::array<std::byte, kFrameHeaderBytes> noise;
  noise.fill(std::byte{0x5a});
  IoSlice slice{noise.data(), noise.size()};
  (void)raw_->write({std::span(&slice, 1)});
  expectEnded("magic");
}

TEST_F(FrameViolation, APayloadLongerThanTheLimit) {
  send(frame(FrameKind::kPut, 1, kFrameMaxPayload + 1));
  expectEnded("payload is 262145");
}

TEST_F(FrameViolation, ATrailerThatIsNoCode) {
  Frame put = frame(FrameKind::kPut, 1, 8);
  put.last = put.trailer = true;
  send(put, 8 + kFrameTrailerBytes);  // 0x5a5a...
  expectEnded("trailer is 6510615555426900570");
}

TEST_F(FrameViolation, AListWhoseTableLies) {
  Frame list = frame(FrameKind::kPutList, 1, 2 * kFrameBlockBytes + 16);
  list.value = 2;
  send(list, list.payload);  // a table of noise
  expectEnded("block's bytes is 6510615555426900570; accepted: 1 to the rest of the payload, 16");
}

TEST_F(FrameViolation, AnEntryLeftOut) {
  send(frame(FrameKind::kFlush, 1));
  expectAlive();
  send(frame(FrameKind::kFlush, 3));
  expectEnded("entry 3; expected 2");
}

TEST_F(FrameViolation, AnEntryTwice) {
  send(frame(FrameKind::kFlush, 1));
  send(frame(FrameKind::kFlush, 1));
  expectEnded("entry 1; expected 2");
}

TEST_F(FrameViolation, AnotherEntryInsideAPut) {
  send(frame(FrameKind::kPut, 1, 10), 10);
  expectAlive();
  send(frame(FrameKind::kAdd64, 2));
  expectEnded("expected 1, a put that goes on");
}

TEST_F(FrameViolation, AWordInsideAPutOfTheSameNumber) {
  send(frame(FrameKind::kPut, 1, 10), 10);
  send(frame(FrameKind::kAdd64, 1));
  expectEnded("a put that goes on");
}

TEST_F(FrameViolation, AnAnswerToNothing) {
  send(frame(FrameKind::kAck, 1));
  expectEnded("waits for no answer");
}

TEST_F(FrameViolation, DataThatNobodyAskedFor) {
  Frame data = frame(FrameKind::kGetData, 1, 8);
  data.last = true;
  send(data, 8);
  expectEnded("not the oldest open one");
}

TEST_F(FrameViolation, ARefusalOfNothing) {
  Frame refused = frame(FrameKind::kGetRefused, 1);
  refused.value = 11;
  send(refused);
  expectEnded("not the oldest open one");
}

// Only what this side gave up may be answered out of turn.
TEST_F(FrameViolation, ARefusalThatOvertakes) {
  Mailbox first(agent_);
  Mailbox second(agent_);
  ask(first, 100);
  ask(second, 100);
  Frame refused = frame(FrameKind::kGetRefused, 2);
  refused.value = static_cast<uint64_t>(Code::kCancelled);
  send(refused);
  expectEnded("request 2, which is not the oldest open one");
}

TEST_F(FrameViolation, ACancelOfARequestThatWasNotMade) {
  Frame request = frame(FrameKind::kGetRequest, 1);
  request.value = 8;
  send(request);
  Frame cancel = frame(FrameKind::kGetCancel, 1);
  cancel.value = 1;
  send(cancel);
  send(cancel);  // answered by now, which the other side could not know
  expectAlive();
  cancel.sequence = 2;
  send(cancel);
  expectEnded("cancel of get request 2; the last one was 1");
}

TEST_F(FrameViolation, MoreRequestsThanMayBeOpenThoughTheyAreCancelled) {
  wire_.freeze(0);
  for (uint64_t i = 1; i <= kFrameMaxRequests + 200; ++i) {
    Frame request = frame(FrameKind::kGetRequest, i);
    request.value = memory_.size();
    send(request);
    Frame cancel = frame(FrameKind::kGetCancel, i);
    cancel.value = i;
    send(cancel);
  }
  wire_.thaw(0);
  (void)agent_.poll();
  expectEnded("one more than the 1024 that may be open");
}

TEST_F(FrameViolation, MoreDataThanWasAskedFor) {
  Mailbox mailbox(agent_);
  ask(mailbox, 100);
  Frame data = frame(FrameKind::kGetData, 1, 101);
  data.last = true;
  send(data, 101);
  expectEnded("at most 100 bytes");
  EXPECT_TRUE(mailbox.idle());
  EXPECT_EQ(mailbox.code(), Code::kCorrupt);
  EXPECT_EQ(asked_[0], std::byte{0});
}

TEST_F(FrameViolation, DataAtAnotherOffset) {
  Mailbox mailbox(agent_);
  ask(mailbox, 100);
  send(frame(FrameKind::kGetData, 1, 50), 50);
  expectAlive();
  EXPECT_EQ(asked_[49], std::byte{0x5a});
  Frame data = frame(FrameKind::kGetData, 1, 10);
  data.offset = 40;
  send(data, 10);
  expectEnded("accepted: offset 50, at most 50 bytes");
}

TEST_F(FrameViolation, DataThatEndsTooEarlyOrNotAtAll) {
  Mailbox mailbox(agent_);
  ask(mailbox, 100);
  Frame data = frame(FrameKind::kGetData, 1, 50);
  data.last = true;
  send(data, 50);
  expectEnded("says last at the wrong place");
}

TEST_F(FrameViolation, ARequestLeftOut) {
  Frame request = frame(FrameKind::kGetRequest, 2);
  request.value = 8;
  send(request);
  expectEnded("get request 2; expected 1");
}

TEST_F(FrameViolation, MoreRequestsThanMayBeOpen) {
  wire_.freeze(0);
  for (uint64_t i = 1; i <= kFrameMaxRequests + 200; ++i) {
    Frame request = frame(FrameKind::kGetRequest, i);
    request.value = memory_.size();
    send(request);
  }
  wire_.thaw(0);
  // The agent takes them faster than it can answer: the wire holds 1 MiB, 256 answers.
  (void)agent_.poll();
  expectEnded("one more than the 1024 that may be open");
}

TEST_F(FrameViolation, MoreFailuresThanMayBeUnanswered) {
  Frame store = frame(FrameKind::kStore64, 1);
  store.offset = 1;  // not aligned
  // Nothing of the agent's answers is read; the wire is filled with one long answer first.
  for (uint64_t i = 1; agent_.health().isOk() && i < 100'000; ++i) {
    store.sequence = i;
    send(store);
    if (i == 50'000) FAIL() << "never refused";
  }
  expectEnded("one more than the 1024 that may be open");
}

// Not a violation: one answer for several entries says how the last one ended, and that the others
// went well.
TEST_F(FrameViolation, AnAnswerSpeaksForTheEntriesBeforeIt) {
  remote_.grant = grant_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  for (int i = 0; i < 4; ++i) {
    mailboxes.push_back(std::make_unique<Mailbox>(agent_));
    MailboxEntry* entry = mailboxes.back()->claim();
    entry->verb = Verb::kAdd64;
    entry->remote = &remote_;
    mailboxes.back()->ring();
    mailboxes.back()->serve();
  }
  Frame ack = frame(FrameKind::kAck, 3);
  ack.value = static_cast<uint64_t>(Code::kPermissionDenied);
  send(ack);
  expectAlive();
  EXPECT_TRUE(mailboxes[0]->idle() && mailboxes[1]->idle() && mailboxes[2]->idle());
  EXPECT_FALSE(mailboxes[3]->idle());
  EXPECT_EQ(mailboxes[1]->code(), Code::kOk);
  EXPECT_EQ(mailboxes[2]->code(), Code::kPermissionDenied);
  agent_.close(Code::kClosed);
  EXPECT_EQ(mailboxes[3]->code(), Code::kClosed);
}

TEST_F(FrameViolation, RefusalsAreAnsweredInOrderAndTheLinkGoesOn) {
  Frame word = frame(FrameKind::kAdd64, 1);
  word.value = 1;
  send(word);
  word.sequence = 2;
  send(word);
  word.sequence = 3;
  word.generation = 77;
  send(word);
  Frame put = frame(FrameKind::kPut, 4, 100);
  put.offset = memory_.size() - 99;
  send(put, 100);
  put.last = true;
  put.offset = 8;  // in range, but the entry is refused already
  send(put, 100);
  word = frame(FrameKind::kAdd64, 5);
  word.value = 1;
  send(word);
  Frame request = frame(FrameKind::kGetRequest, 1);
  request.offset = ~uint64_t{0};
  request.value = 2;
  send(request);
  // Each poll answers at once, so the successes before a failure may come apart or together.
  std::vector<std::pair<uint64_t, uint64_t>> acks;
  uint64_t refused = 0;
  for (const Frame& answer : answers()) {
    if (answer.kind == FrameKind::kAck) acks.emplace_back(answer.sequence, answer.value);
    if (answer.kind == FrameKind::kGetRefused) refused = answer.value;
  }
  ASSERT_GE(acks.size(), 3u);
  const std::vector<std::pair<uint64_t, uint64_t>> tail(acks.end() - 3, acks.end());
  const auto invalid = static_cast<uint64_t>(Code::kInvalidArgument);
  EXPECT_EQ(tail, (std::vector<std::pair<uint64_t, uint64_t>>{{3, invalid}, {4, invalid}, {5, 0}}));
  EXPECT_EQ(refused, invalid);
  uint64_t count = 0;
  std::memcpy(&count, memory_.data(), 8);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(memory_[8], std::byte{0});
  expectAlive();
  EXPECT_EQ(regions_.pins(), 0u);
}

}  // namespace
}  // namespace peerlane
