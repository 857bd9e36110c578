// SPDX-License-Identifier: Apache-2.0
//
// The bytes of the C API: what is written is read again, and what is damaged is refused.
#include "peerlane/p2p.h"
#include "peerlane/p2p/pair/pair_note.h"
#include "peerlane/p2p/process/root_blob.h"
#include "peerlane/p2p/segment/segment_name.h"
#include "tests/core/expect_ok.h"

namespace peerlane::p2p {
namespace {

TEST(P2pFormats, ARootIsReadAgain) {
  std::vector<char> blob(4108, 'x');
  EXPECT_OK(encodeRoot("pl1ticket", blob));
  EXPECT_EQ(MUST(decodeRoot(blob)), "pl1ticket");
  EXPECT_EQ(std::string(blob.data(), 7), "PLP2PRT");
  EXPECT_EQ(blob.back(), 0);
  for (size_t at = 0; at < 16 + 9; ++at) {
    std::vector<char> damaged = blob;
    damaged[at] ^= 0x10;
    EXPECT_EQ(decodeRoot(damaged).status().code(), Code::kCorrupt) << at;
  }
  EXPECT_EQ(encodeRoot(std::string(4108 - 15, 'a'), blob).code(), Code::kInvalidArgument);
  EXPECT_OK(encodeRoot(std::string(4108 - 16, 'a'), blob));
  EXPECT_EQ(decodeRoot(std::span(blob).first(10)).status().code(), Code::kCorrupt);
}

TEST(P2pFormats, ASegmentIsReadAgain) {
  SegmentName name;
  name.process[3] = 7;
  name.number = 0x8123'4567'89abu;
  for (size_t i = 0; i < name.key.size(); ++i) name.key[i] = static_cast<uint8_t>(0xf0 - i);
  name.address = 0x7f0000001000;
  name.bytes = SegmentName::kMostBytes;
  name.access = Access::kRemoteWrite;
  name.kind = DeviceKind::kCuda;
  char bytes[48];
  name.encode(bytes);
  const SegmentName read = MUST(SegmentName::decode(bytes));
  EXPECT_EQ(read.process, name.process);
  EXPECT_EQ(read.number, name.number);
  EXPECT_EQ(read.key, name.key);
  EXPECT_EQ(read.address, name.address);
  EXPECT_EQ(read.bytes, name.bytes);
  EXPECT_EQ(read.access, name.access);
  EXPECT_EQ(read.kind, name.kind);
  EXPECT_EQ(static_cast<uint8_t>(bytes[16]), 0xf0);
  EXPECT_EQ(static_cast<uint8_t>(bytes[31]), 0xe1);
  for (size_t at = 0; at < sizeof bytes; ++at) {
    char damaged[48];
    std::copy(std::begin(bytes), std::end(bytes), damaged);
    damaged[at] ^= 0x10;
    EXPECT_EQ(SegmentName::decode(damaged).status().code(), Code::kCorrupt) << at;
    damaged[at] ^= 0x13;
    EXPECT_EQ(SegmentName::decode(damaged).status().code(), Code::kCorrupt) << at;
  }
}

// Programs ship them in fields of the original's size.
static_assert(sizeof(P2pSegmentInfo) == 48 && sizeof(HcclRootInfo) == 4108);

TEST(P2pFormats, NotesAreReadAgain) {
  PairNote hello;
  hello.kind = 2;
  hello.link = 1;
  hello.wantsMessages = false;
  hello.process[7] = 9;
  const PairNote heard = MUST(PairNote::decode(hello.encode()));
  EXPECT_EQ(heard.kind, 2);
  EXPECT_EQ(heard.link, 1);
  EXPECT_FALSE(heard.wantsMessages);
  EXPECT_EQ(heard.process, hello.process);

  PairNote ask;
  ask.type = PairNote::Type::kAsk;
  ask.segment = 5;
  ask.proof[31] = std::byte{6};
  EXPECT_EQ(MUST(PairNote::decode(ask.encode())).proof, ask.proof);

  PairNote tell;
  tell.type = PairNote::Type::kAnswer;
  tell.segment = 5;
  tell.reference[63] = std::byte{3};
  EXPECT_EQ(MUST(PairNote::decode(tell.encode())).reference, tell.reference);
  tell.code = Code::kClosed;
  tell.why = std::string(1000, 'w');
  const PairNote refused = MUST(PairNote::decode(tell.encode()));
  EXPECT_EQ(refused.code, Code::kClosed);
  EXPECT_EQ(refused.why.size(), PairNote::kMostWords);

  PairNote gaveUp;
  gaveUp.type = PairNote::Type::kGaveUp;
  EXPECT_EQ(MUST(PairNote::decode(gaveUp.encode())).type, PairNote::Type::kGaveUp);
  for (const PairNote& note : {hello, ask, tell, gaveUp}) {
    std::vector<std::byte> bytes = note.encode();
    bytes.push_back(std::byte{1});
    EXPECT_TRUE(PairNote::decode(bytes).isOk()) << "a later version's field";
    for (size_t length = 0; length + 1 < bytes.size(); ++length)
      EXPECT_EQ(PairNote::decode(std::span(bytes).first(length)).status().code(), Code::kCorrupt);
    bytes[0] = std::byte{9};
    EXPECT_EQ(PairNote::decode(bytes).status().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace peerlane::p2p
