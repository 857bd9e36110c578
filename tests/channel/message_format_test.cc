// SPDX-License-Identifier: Apache-2.0
//
// The bytes that two ranks exchange: golden ones, and what is refused.
#include "peerlane/channel/message_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

LaneNote helloNote() {
  LaneNote note;
  note.kind = LaneNote::Kind::kHello;
  note.rank = 1;
  note.otherRank = 2;
  note.ranks = 3;
  note.eagerBytes = 4096;
  note.area = {0x11, 0x22, 70'000, Access::kRemoteReadWrite};
  return note;
}

TEST(MessageFormat, GoldenNotes) {
  EXPECT_EQ(encodeHex(helloNote().encode()),
            "504c434d01010003"
            "0000000000000000"
            "010000000200000003000000001000001000000000000000"
            "110000000000000022000000000000007011010000000000");
  const LaneNote gaveUp{.kind = LaneNote::Kind::kGaveUp, .code = Code::kCancelled, .number = 258};
  EXPECT_EQ(encodeHex(gaveUp.encode()),
            "504c434d01030600"
            "0201000000000000");
}

TEST(MessageFormat, GoldenEnvelopeAndAnswer) {
  const Envelope envelope{.kind = MessageKind::kGet,
                          .mayStage = 1,
                          .access = Access::kRemoteRead,
                          .bytes = 0x0102,
                          .number = 3,
                          .allocation = 4,
                          .generation = 5,
                          .regionBytes = 6,
                          .offset = 7};
  EXPECT_EQ(encodeHex(std::as_bytes(std::span(&envelope, 1))),
            "0201010000000000"
            "0201000000000000"
            "0300000000000000"
            "0400000000000000"
            "0500000000000000"
            "0600000000000000"
            "0700000000000000");
  const Answer answer{.verdict = Verdict::kStaged,
                      .code = Code::kOk,
                      .access = Access::kRemoteReadWrite,
                      .chunkBytes = 0x20000,
                      .bytes = 1,
                      .number = 2,
                      .allocation = 3,
                      .generation = 4,
                      .regionBytes = 5,
                      .position = 6};
  EXPECT_EQ(encodeHex(std::as_bytes(std::span(&answer, 1))),
            "0200030000000200"
            "0100000000000000"
            "0200000000000000"
            "0300000000000000"
            "0400000000000000"
            "0500000000000000"
            "0600000000000000");
}

TEST(MessageFormat, NotesSayWhatTheySaid) {
  const auto hello = LaneNote::decode(helloNote().encode());
  ASSERT_TRUE(hello.isOk()) << hello.status().toString();
  EXPECT_EQ(hello->rank, 1u);
  EXPECT_EQ(hello->otherRank, 2u);
  EXPECT_EQ(hello->ranks, 3u);
  EXPECT_EQ(hello->eagerBytes, 4096u);
  EXPECT_EQ(hello->area.allocation, 0x11u);
  EXPECT_EQ(hello->area.generation, 0x22u);
  EXPECT_EQ(hello->area.bytes, 70'000u);
  EXPECT_EQ(hello->area.access, Access::kRemoteReadWrite);
  const LaneNote bye{.kind = LaneNote::Kind::kBye, .code = Code::kClosed};
  EXPECT_EQ(LaneNote::decode(bye.encode())->code, Code::kClosed);
}

TEST(MessageFormat, RefusesWhatCannotBe) {
  const std::vector<std::byte> good = helloNote().encode();
  for (size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_EQ(LaneNote::decode(std::span(good).first(cut)).status().code(), Code::kCorrupt) << cut;
  struct Change {
    size_t at;
    int value;
    const char* why;
  };
  for (const Change& change :
       {Change{0, 0, "PLCM"}, Change{4, 2, "version"}, Change{5, 0, "kind"}, Change{5, 5, "kind"},
        Change{6, 17, "code"}, Change{7, 4, "access"}, Change{29, 0x20, "eager"},
        Change{32, 8, "slots"}, Change{58, 0, "small"}}) {
    std::vector<std::byte> bad = good;
    bad[change.at] = static_cast<std::byte>(change.value);
    const auto note = LaneNote::decode(bad);
    EXPECT_EQ(note.status().code(), Code::kCorrupt) << change.at;
    EXPECT_NE(note.status().message().find(change.why), std::string::npos)
        << note.status().toString();
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(LaneNote::decode(longer).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace peerlane
