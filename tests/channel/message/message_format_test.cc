// SPDX-License-Identifier: Apache-2.0
//
// The bytes that two ranks exchange: golden ones, and what is refused.
#include "peerlane/channel/message/host/message_format.h"

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
  EXPECT_EQ(encodeHex(LaneNote{.kind = LaneNote::Kind::kHeard, .number = 258}.encode()),
            "504c434d010a0000"
            "0201000000000000");
}

// Of messages on streams.
LaneNote deviceNote(LaneNote::Kind kind) {
  return {.kind = kind, .area = {0x11, 0x22, 0x9400, Access::kRemoteReadWrite}};
}
constexpr LaneNote::Kind kDeviceKinds[] = {
    LaneNote::Kind::kDeviceArea, LaneNote::Kind::kDeviceRegion, LaneNote::Kind::kDeviceReady,
    LaneNote::Kind::kDeviceWaits};

TEST(MessageFormat, GoldenDeviceNotes) {
  EXPECT_EQ(encodeHex(deviceNote(LaneNote::Kind::kDeviceArea).encode()),
            "504c434d01050003"
            "0000000000000000"
            "110000000000000022000000000000000094000000000000");
  EXPECT_EQ(encodeHex(LaneNote{.kind = LaneNote::Kind::kDeviceArea}.encode()),
            "504c434d01050000"
            "0000000000000000"
            "000000000000000000000000000000000000000000000000");
  EXPECT_EQ(encodeHex(deviceNote(LaneNote::Kind::kDeviceRegion).encode()),
            "504c434d01060003"
            "0000000000000000"
            "110000000000000022000000000000000094000000000000");
  LaneNote waits = deviceNote(LaneNote::Kind::kDeviceWaits);
  waits.number = uint64_t{1} << 63 | 258;
  EXPECT_EQ(encodeHex(waits.encode()),
            "504c434d01090003"
            "0201000000000080"
            "110000000000000022000000000000000094000000000000");
  LaneNote ready = deviceNote(LaneNote::Kind::kDeviceReady);
  ready.number = 1;
  EXPECT_EQ(encodeHex(ready.encode()),
            "504c434d01080003"
            "0100000000000000"
            "110000000000000022000000000000000094000000000000");
  const LaneNote end{.kind = LaneNote::Kind::kDeviceEnd, .code = Code::kTimeout};
  EXPECT_EQ(encodeHex(end.encode()),
            "504c434d01070500"
            "0000000000000000");
}

TEST(MessageFormat, GoldenEnvelopeAndAnswer) {
  const Envelope envelope{.kind = MessageKind::kGet,
                          .mayStage = 1,
                          .access = Access::kRemoteRead,
                          .ordinal = 9,
                          .part = {.index = 2, .count = 0x0405},
                          .bytes = 0x0102,
                          .number = 3,
                          .allocation = 4,
                          .generation = 5,
                          .regionBytes = 6,
                          .offset = 7};
  EXPECT_EQ(encodeHex(std::as_bytes(std::span(&envelope, 1))),
            "0201010902000504"
            "0201000000000000"
            "0300000000000000"
            "0400000000000000"
            "0500000000000000"
            "0600000000000000"
            "0700000000000000");
  const Answer answer{.verdict = Verdict::kStaged,
                      .code = Code::kOk,
                      .access = Access::kRemoteReadWrite,
                      .otherPieces = 1,
                      .chunkBytes = 0x20000,
                      .bytes = 1,
                      .number = 2,
                      .allocation = 3,
                      .generation = 4,
                      .regionBytes = 5,
                      .position = 6};
  EXPECT_EQ(encodeHex(std::as_bytes(std::span(&answer, 1))),
            "0200030100000200"
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

TEST(MessageFormat, DeviceNotesSayWhatTheySaid) {
  for (const LaneNote::Kind kind : kDeviceKinds) {
    const auto note = LaneNote::decode(deviceNote(kind).encode());
    ASSERT_TRUE(note.isOk()) << note.status().toString();
    EXPECT_EQ(note->kind, kind);
    EXPECT_EQ(note->area.allocation, 0x11u);
    EXPECT_EQ(note->area.generation, 0x22u);
    EXPECT_EQ(note->area.bytes, 0x9400u);
    EXPECT_EQ(note->area.access, Access::kRemoteReadWrite);
  }
  const auto none = LaneNote::decode(LaneNote{.kind = LaneNote::Kind::kDeviceArea}.encode());
  ASSERT_TRUE(none.isOk()) << none.status().toString();
  EXPECT_EQ(none->area.allocation, 0u);
  const LaneNote end{.kind = LaneNote::Kind::kDeviceEnd, .code = Code::kTimeout};
  const auto ended = LaneNote::decode(end.encode());
  ASSERT_TRUE(ended.isOk()) << ended.status().toString();
  EXPECT_EQ(ended->kind, LaneNote::Kind::kDeviceEnd);
  EXPECT_EQ(ended->code, Code::kTimeout);
}

void expectCorrupt(const std::vector<std::byte>& bytes, const char* why) {
  const auto note = LaneNote::decode(bytes);
  EXPECT_EQ(note.status().code(), Code::kCorrupt) << why;
  EXPECT_NE(note.status().message().find(why), std::string::npos) << note.status().toString();
}

TEST(MessageFormat, RefusesDeviceNotesThatCannotBe) {
  std::vector<LaneNote> notes{{.kind = LaneNote::Kind::kDeviceEnd, .code = Code::kClosed}};
  for (const LaneNote::Kind kind : kDeviceKinds) notes.push_back(deviceNote(kind));
  for (const LaneNote& note : notes) {
    const std::vector<std::byte> good = note.encode();
    for (size_t cut = 0; cut < good.size(); ++cut)
      EXPECT_EQ(LaneNote::decode(std::span(good).first(cut)).status().code(), Code::kCorrupt)
          << cut;
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_EQ(LaneNote::decode(longer).status().code(), Code::kCorrupt);
    struct Change {
      size_t at;
      int value;
      const char* why;
    };
    for (const Change& change :
         {Change{0, 0, "PLCM"}, Change{4, 2, "version"}, Change{5, 11, "kind"},
          Change{6, 18, "code"}, Change{7, 4, "access"}}) {
      std::vector<std::byte> bad = good;
      bad[change.at] = static_cast<std::byte>(change.value);
      expectCorrupt(bad, change.why);
    }
  }
  // The end of messages names no memory, and what names memory has all of the name.
  std::vector<std::byte> other = deviceNote(LaneNote::Kind::kDeviceArea).encode();
  other[5] = std::byte{7};
  EXPECT_EQ(LaneNote::decode(other).status().code(), Code::kCorrupt);
  other = LaneNote{.kind = LaneNote::Kind::kDeviceEnd}.encode();
  other[5] = std::byte{5};
  EXPECT_EQ(LaneNote::decode(other).status().code(), Code::kCorrupt);
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
       {Change{0, 0, "PLCM"}, Change{4, 2, "version"}, Change{5, 0, "kind"}, Change{5, 11, "kind"},
        Change{6, 18, "code"}, Change{7, 4, "access"}, Change{29, 0x20, "eager"},
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
