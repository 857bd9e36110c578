// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_format.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

using Header = std::array<std::byte, kFrameHeaderBytes>;

std::string hexOf(const Frame& frame) {
  Header header;
  encodeFrame(frame, header);
  std::string text = encodeHex(header);
  for (size_t i = 16; i < text.size(); i += 17) text.insert(i, 1, ' ');
  return text;
}

Frame place(FrameKind kind) {
  Frame frame;
  frame.kind = kind;
  frame.sequence = 0x0102030405060708;
  frame.allocation = 0x1112131415161718;
  frame.generation = 0x2122232425262728;
  frame.offset = 0x3132333435363738;
  return frame;
}

Frame answer(FrameKind kind, uint64_t value) {
  Frame frame;
  frame.kind = kind;
  frame.sequence = 7;
  frame.value = value;
  return frame;
}

// The bytes of docs/wire.md. They never change within a version.
TEST(FrameFormat, GoldenBytes) {
  Frame put = place(FrameKind::kPut);
  put.payload = 0x00030201;
  put.last = true;
  EXPECT_EQ(hexOf(put),
            "504c010101020300 0807060504030201 1817161514131211 2827262524232221 3837363534333231 "
            "0000000000000000");
  Frame add = place(FrameKind::kAdd64);
  add.value = 0x4142434445464748;
  EXPECT_EQ(hexOf(add),
            "504c040000000000 0807060504030201 1817161514131211 2827262524232221 3837363534333231 "
            "4847464544434241");
  Frame store = place(FrameKind::kStore32);
  store.value = 0x41424344;
  EXPECT_EQ(hexOf(store).substr(0, 17), "504c020000000000 ");
  EXPECT_EQ(hexOf(store).substr(85), "4443424100000000");
  EXPECT_EQ(hexOf(answer(FrameKind::kAck, 11)),
            "504c070000000000 0700000000000000 0000000000000000 0000000000000000 0000000000000000 "
            "0b00000000000000");
  Frame data = answer(FrameKind::kGetData, 0);
  data.payload = 5;
  data.offset = 9;
  EXPECT_EQ(hexOf(data),
            "504c080005000000 0700000000000000 0000000000000000 0000000000000000 0900000000000000 "
            "0000000000000000");
  EXPECT_EQ(hexOf(answer(FrameKind::kGetRefused, 9)).substr(0, 16), "504c090000000000");
  Frame cancel = answer(FrameKind::kGetCancel, 5);
  EXPECT_EQ(hexOf(cancel),
            "504c0a0000000000 0700000000000000 0000000000000000 0000000000000000 0000000000000000 "
            "0500000000000000");
  Frame list = place(FrameKind::kPutList);
  list.offset = 0;
  list.value = 2;
  list.payload = 0x23;
  list.last = true;
  EXPECT_EQ(hexOf(list),
            "504c0b0123000000 0807060504030201 1817161514131211 2827262524232221 0000000000000000 "
            "0200000000000000");
  put.trailer = true;
  EXPECT_EQ(hexOf(put).substr(0, 17), "504c010301020300 ");
  std::array<std::byte, kFrameTrailerBytes> trailer;
  encodeTrailer(Code::kRevoked, trailer);
  EXPECT_EQ(encodeHex(trailer), "1100000000000000");
  const FrameBlock blocks[] = {{0x3132333435363738, 1}, {0x4142434445464748, 2}};
  std::array<std::byte, 2 * kFrameBlockBytes> table;
  encodeBlocks(blocks, table);
  EXPECT_EQ(encodeHex(table), "3837363534333231010000000000000048474645444342410200000000000000");
  EXPECT_EQ(hexOf(place(FrameKind::kGetRequest)).substr(0, 16), "504c060000000000");
  EXPECT_EQ(hexOf(answer(FrameKind::kFlush, 0)).substr(0, 16), "504c050000000000");
  EXPECT_EQ(hexOf(place(FrameKind::kStore64)).substr(0, 16), "504c030000000000");
}

TEST(FrameFormat, WhatIsWrittenIsRead) {
  Frame put = place(FrameKind::kPut);
  put.payload = kFrameMaxPayload;
  Frame emptyPut = answer(FrameKind::kPut, 0);
  emptyPut.last = true;
  Frame trailed = put;
  trailed.trailer = true;
  Frame store = place(FrameKind::kStore64);
  store.value = ~uint64_t{0};
  Frame request = place(FrameKind::kGetRequest);
  request.value = 1;
  Frame data = answer(FrameKind::kGetData, 0);
  data.payload = 1;
  data.offset = ~uint64_t{0};
  data.last = true;
  Frame list = answer(FrameKind::kPutList, kFrameMaxBlocks);
  list.allocation = 3;
  list.payload = kFrameMaxPayload;
  Frame asked = list;
  asked.kind = FrameKind::kGetList;
  asked.payload = kFrameMaxBlocks * kFrameBlockBytes;
  for (const Frame& frame : {put, trailed, list, asked, emptyPut, store, place(FrameKind::kAdd64),
                             request, data, answer(FrameKind::kAck, 0), answer(FrameKind::kAck, 16),
                             answer(FrameKind::kGetRefused, 16), answer(FrameKind::kFlush, 0),
                             answer(FrameKind::kGetCancel, 1), answer(FrameKind::kGetCancel, 7)}) {
    Header header;
    encodeFrame(frame, header);
    const Result<Frame> parsed = parseFrame(header);
    ASSERT_TRUE(parsed.isOk()) << parsed.status().toString();
    EXPECT_EQ(*parsed, frame) << frameKindName(frame.kind);
  }
}

struct Violation {
  const char* what;
  Frame frame;
  const char* names;  // in the message
};

TEST(FrameFormat, EveryViolationIsNamed) {
  const auto changed = [](Frame frame, auto change) {
    change(frame);
    return frame;
  };
  const Frame put = changed(place(FrameKind::kPut), [](Frame& f) { f.payload = 1; });
  const Frame ack = answer(FrameKind::kAck, 0);
  const Frame list = changed(answer(FrameKind::kPutList, 2), [](Frame& f) { f.payload = 40; });
  const Frame asked = changed(answer(FrameKind::kGetList, 2), [](Frame& f) { f.payload = 32; });
  const Violation violations[] = {
      {"payload too long", changed(put, [](Frame& f) { f.payload = kFrameMaxPayload + 1; }),
       "payload is 262145"},
      {"payload huge", changed(put, [](Frame& f) { f.payload = ~0u; }), "payload is 4294967295"},
      {"empty put that goes on", changed(put, [](Frame& f) { f.payload = 0; }), "payload is 0"},
      {"sequence 0", changed(put, [](Frame& f) { f.sequence = 0; }), "sequence is 0"},
      {"value in a put", changed(put, [](Frame& f) { f.value = 1; }), "value is 1"},
      {"payload in an ack", changed(ack, [](Frame& f) { f.payload = 1; }), "payload is 1"},
      {"last in an ack", changed(ack, [](Frame& f) { f.last = true; }), "flags is 1"},
      {"place in an ack", changed(ack, [](Frame& f) { f.allocation = 3; }), "allocation"},
      {"generation in an ack", changed(ack, [](Frame& f) { f.generation = 3; }), "generation"},
      {"offset in an ack", changed(ack, [](Frame& f) { f.offset = 3; }), "offset is 3"},
      {"unknown code", changed(ack, [](Frame& f) { f.value = 18; }), "value is 18"},
      {"refused with OK", answer(FrameKind::kGetRefused, 0), "value is 0"},
      {"request of nothing", place(FrameKind::kGetRequest), "value is 0"},
      {"data of nothing", answer(FrameKind::kGetData, 0), "payload is 0"},
      {"wide store32",
       changed(place(FrameKind::kStore32), [](Frame& f) { f.value = uint64_t{1} << 32; }),
       "value is 4294967296"},
      {"flush with a value", answer(FrameKind::kFlush, 1), "value is 1"},
      {"kind 0", changed(ack, [](Frame& f) { f.kind = static_cast<FrameKind>(0); }), "kind is 0"},
      {"kind 13", changed(ack, [](Frame& f) { f.kind = static_cast<FrameKind>(13); }),
       "kind is 13"},
      {"request with more than its table", changed(asked, [](Frame& f) { f.payload = 33; }),
       "payload is 33; accepted: 32 for 2 blocks"},
      {"request with less", changed(asked, [](Frame& f) { f.payload = 31; }), "payload is 31"},
      {"request that is the last", changed(asked, [](Frame& f) { f.last = true; }), "flags is 1"},
      {"list of nothing", changed(list, [](Frame& f) { f.value = 0; }), "value is 0"},
      {"list of too many", changed(list, [](Frame& f) { f.value = 65; }), "value is 65"},
      {"list with an offset", changed(list, [](Frame& f) { f.offset = 1; }), "offset is 1"},
      {"list without bytes", changed(list, [](Frame& f) { f.payload = 33; }),
       "payload is 33; accepted: at least 34 for 2 blocks"},
      {"cancel of no first", answer(FrameKind::kGetCancel, 0), "value is 0"},
      {"cancel that ends before it begins", answer(FrameKind::kGetCancel, 8),
       "value is 8; accepted: at most the sequence, 7"},
      {"place in a cancel",
       changed(answer(FrameKind::kGetCancel, 1), [](Frame& f) { f.offset = 3; }), "offset is 3"},
  };
  for (const Violation& violation : violations) {
    Header header;
    encodeFrame(violation.frame, header);
    const Result<Frame> parsed = parseFrame(header);
    ASSERT_FALSE(parsed.isOk()) << violation.what;
    EXPECT_EQ(parsed.status().code(), Code::kCorrupt) << violation.what;
    EXPECT_NE(parsed.status().message().find(violation.names), std::string_view::npos)
        << violation.what << ": " << parsed.status().message();
  }
  Header header;
  encodeFrame(ack, header);
  header[0] = std::byte{0};
  EXPECT_NE(parseFrame(header).status().message().find("magic"), std::string_view::npos);
  encodeFrame(ack, header);
  header[3] = std::byte{2};
  EXPECT_NE(parseFrame(header).status().message().find("flags, after is 1; accepted: 0 in a ack"),
            std::string_view::npos)
      << parseFrame(header).status().toString();
}

TEST(FrameFormat, BlocksOfAListFillItsPayload) {
  Frame list = answer(FrameKind::kPutList, 2);
  list.payload = 2 * kFrameBlockBytes + 30;
  std::array<std::byte, 2 * kFrameBlockBytes> table;
  std::array<FrameBlock, kFrameMaxBlocks> parsed;
  const auto parse = [&](uint64_t first, uint64_t second) {
    const FrameBlock blocks[] = {{~uint64_t{0}, first}, {5, second}};
    encodeBlocks(blocks, table);
    return std::string(parseBlocks(list, table, parsed).message());
  };
  EXPECT_EQ(parse(10, 20), "");
  EXPECT_EQ(parsed[0], (FrameBlock{~uint64_t{0}, 10}));
  EXPECT_EQ(parsed[1], (FrameBlock{5, 20}));
  EXPECT_NE(parse(0, 30).find("block's bytes is 0"), std::string::npos);
  EXPECT_NE(parse(10, 21).find("block's bytes is 21; accepted: 1 to the rest of the payload, 20"),
            std::string::npos);
  EXPECT_NE(parse(~uint64_t{0}, 31).find("block's bytes is 18446744073709551615"),
            std::string::npos);
  EXPECT_NE(parse(10, 19).find("payload after the blocks is 1"), std::string::npos);
  list.kind = FrameKind::kGetList;
  list.payload = 2 * kFrameBlockBytes;
  EXPECT_EQ(parse(10, kFrameMostOfList - 10), "");
  EXPECT_NE(parse(10, kFrameMostOfList - 9).find("block's bytes is"), std::string::npos);
}

}  // namespace
}  // namespace peerlane
