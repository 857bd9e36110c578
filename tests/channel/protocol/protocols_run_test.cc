// SPDX-License-Identifier: Apache-2.0
//
// The message protocols in real memory, run by the CPU executor: several threads on each side of
// one lane, and refusals. What the explorer proves about the programs, this shows of the executor.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "peerlane/program/cpu/cpu_program.h"

namespace peerlane {
namespace {

constexpr uint32_t kSlots = 2;
constexpr uint32_t kBytes = 1000;
constexpr MessageLane kLane{.slots = kSlots, .inboxStrideBytes = kInboxPayloadOffset + 1024};

// What the first bytes of envelopes and answers say here. Both are 56 bytes on the lane.
struct Note {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  uint64_t message = 0;
  std::array<uint64_t, 4> rest{};
};
static_assert(sizeof(Note) == kEnvelopeBytes && sizeof(Note) == kAnswerBytes);

struct LaneMemory {
  alignas(64) std::array<std::byte, kSlots * kLane.inboxStrideBytes> inbox{};
  alignas(64) std::array<std::byte, kSlots * kAnswerSlotBytes> answers{};
  alignas(64) std::array<std::byte, kSlots * kWordSlotBytes> free{};
  alignas(64) std::array<std::byte, kSlots * kWordSlotBytes> done{};

  Note noteIn(const std::byte* slot) const {
    Note note;
    std::memcpy(&note, slot + kSequenceBytes, sizeof(note));
    return note;
  }
  Note envelope(uint64_t cursor) const {
    return noteIn(inbox.data() + cursor % kSlots * kLane.inboxStrideBytes);
  }
  Note answer(uint64_t cursor) const {
    return noteIn(answers.data() + cursor % kSlots * kAnswerSlotBytes);
  }
};

std::byte patternOf(uint64_t message, size_t i) {
  return static_cast<std::byte>(message * 31 + i * 7 + i / 251);
}

// One side of one message at a time: its buffers, its bindings, and the judge of what comes.
class Party : public LateBinder {
 public:
  Party(LaneMemory& lane, const Program& program, bool sends, uint64_t bytes)
      : lane_(lane), sends_(sends), bytes_(bytes), buffer_(bytes + 1) {
    Binding binding;
    if (sends)
      binding.targets = {whole(own_),
                         {buffer_.data(), bytes, nullptr, 0, nullptr},
                         whole(lane.inbox),
                         whole(lane.answers),
                         whole(learned_),
                         whole(lane.free),
                         {},
                         whole(lane.done)};
    else
      binding.targets = {whole(lane.inbox), {}, {}, {}, whole(lane.answers), whole(lane.done)};
    const Status status = prepared_.prepare(program, binding);
    EXPECT_TRUE(status) << status.toString();
  }

  // Runs message `cursor`; a run is polled by its thread.
  Code run(uint64_t cursor) {
    cursor_ = cursor;
    const Note note{buffer_.data(), bytes_, cursor + 1};
    std::memcpy(own_.data(), &note, sizeof(note));
    for (size_t i = 0; i < buffer_.size(); ++i)
      buffer_[i] = sends_ && i < bytes_ ? patternOf(cursor + 1, i) : std::byte{0xee};
    cpu::CpuRun run;
    run.start(prepared_, {&cursor_, 1}, {}, this);
    while (run.advance(256) != cpu::Step::kEnded) std::this_thread::yield();
    return run.code();
  }

  size_t wrongBytes() const {
    size_t wrong = buffer_.back() == std::byte{0xee} ? 0 : 1;
    for (size_t i = 0; i < bytes_; ++i) wrong += buffer_[i] != patternOf(cursor_ + 1, i);
    return wrong;
  }
  bool isUntouched() const {
    return std::all_of(buffer_.begin(), buffer_.end(),
                       [](std::byte byte) { return byte == std::byte{0xee}; });
  }
  // What the sender has learned from the answer.
  Note learned() const {
    Note note;
    std::memcpy(&note, learned_.data(), sizeof(note));
    return note;
  }

  // An answer of 0 bytes refuses.
  Status bind(TargetId target, BoundTarget& out) override {
    const Note said = sends_ ? lane_.answer(cursor_) : lane_.envelope(cursor_);
    if (said.message != cursor_ + 1) return Status(Code::kInternal, "the note of another message");
    const uint64_t agreed = said.bytes == bytes_ ? bytes_ : 0;
    if (sends_ || target == kReceiverPeerPayload) {
      out = {said.address, agreed, nullptr, 0, nullptr};
    } else if (target == kReceiverBuffer) {
      out = {buffer_.data(), agreed, nullptr, 0, nullptr};
    } else {
      const Note verdict{buffer_.data(), agreed, cursor_ + 1};
      std::memcpy(own_.data(), &verdict, sizeof(verdict));
      out = whole(own_);
    }
    return Status::ok();
  }

 private:
  template <size_t n>
  static BoundTarget whole(std::array<std::byte, n>& memory) {
    return {memory.data(), n, nullptr, 0, nullptr};
  }

  LaneMemory& lane_;
  bool sends_;
  uint64_t bytes_;
  uint64_t cursor_ = 0;
  std::vector<std::byte> buffer_;  // and one byte behind it
  std::array<std::byte, kEnvelopeBytes> own_{};
  std::array<std::byte, kAnswerBytes> learned_{};
  cpu::CpuProgram prepared_;
};

struct Protocol {
  const char* name;
  Program (*sender)(uint64_t bytes);
  Program (*receiver)(uint64_t bytes);
};

const Protocol kProtocols[] = {
    {"Eager", [](uint64_t bytes) { return eagerSender({.lane = kLane, .payloadBytes = bytes}); },
     [](uint64_t bytes) { return eagerReceiver({.lane = kLane, .payloadBytes = bytes}); }},
    {"RendezvousGet", [](uint64_t /*bytes*/) { return eagerSender({.lane = kLane}); },
     [](uint64_t bytes) {
       return rendezvousGetReceiver({kLane, bytes});
     }},
    {"RendezvousPut",
     [](uint64_t bytes) {
       return rendezvousPutSender({kLane, bytes});
     },
     [](uint64_t bytes) {
       return rendezvousPutReceiver({kLane, bytes});
     }},
};

class ProtocolRun : public testing::TestWithParam<Protocol> {};

TEST_P(ProtocolRun, MovesEveryByteWithSeveralThreadsOnEachSide) {
  constexpr uint64_t kMessages = 300;
  constexpr uint64_t kThreads = 3;  // not a multiple of the slots: they meet in every slot
  LaneMemory lane;
  std::atomic<size_t> wrong{0};
  std::atomic<size_t> failed{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    for (const bool sends : {true, false}) {
      threads.emplace_back([&, t, sends] {
        Party party(lane, sends ? GetParam().sender(kBytes) : GetParam().receiver(kBytes), sends,
                    kBytes);
        for (uint64_t cursor = t; cursor < kMessages; cursor += kThreads) {
          failed += party.run(cursor) != Code::kOk;
          wrong += party.wrongBytes();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0u);
  EXPECT_EQ(wrong.load(), 0u);
}

// The receiver has less room, or more, than what is sent: both sides end, nothing is written, and
// the lane is good for the next message.
TEST_P(ProtocolRun, RefusesOtherSizes) {
  for (const uint64_t room : {kBytes - 1, kBytes + 1}) {
    LaneMemory lane;
    Party sender(lane, GetParam().sender(kBytes), true, kBytes);
    Party receiver(lane, GetParam().receiver(room), false, room);
    Party fitting(lane, GetParam().receiver(kBytes), false, kBytes);
    std::thread other([&] {
      EXPECT_EQ(receiver.run(0), Code::kOk);
      EXPECT_TRUE(receiver.isUntouched());
      EXPECT_EQ(fitting.run(1), Code::kOk);
      EXPECT_EQ(fitting.wrongBytes(), 0u);
    });
    EXPECT_EQ(sender.run(0), Code::kOk);
    if (std::string(GetParam().name) != "RendezvousPut") {
      EXPECT_EQ(sender.learned().bytes, 0u);
    }
    EXPECT_EQ(sender.run(1), Code::kOk);
    other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Shipped, ProtocolRun, testing::ValuesIn(kProtocols),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace peerlane
