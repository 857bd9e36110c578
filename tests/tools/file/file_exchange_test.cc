// SPDX-License-Identifier: Apache-2.0
#include "tools/file/file_exchange.h"

#include <gtest/gtest.h>

#include "peerlane/core/text.h"
#include "tools/report/text_table.h"

namespace peerlane {
namespace {

std::vector<std::byte> bytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(FileExchange, KeepsWhatIsSaid) {
  const auto offer = FileOffer::decode(
      FileOffer{.name = "n\xFF", .bytes = 5, .slotBytes = 8, .slots = 2}.encode());
  ASSERT_TRUE(offer.isOk()) << offer.status().toString();
  EXPECT_EQ(offer->bytes, 5u);
  EXPECT_EQ(offer->slotBytes, 8u);
  EXPECT_EQ(offer->slots, 2u);

  FileOutcome said;
  said.status = Status(Code::kSystem, "full");
  said.hash.fill(std::byte{0xAB});
  const auto outcome = FileOutcome::decode(said.encode());
  ASSERT_TRUE(outcome.isOk());
  EXPECT_EQ(outcome->status.code(), Code::kSystem);
  EXPECT_EQ(outcome->status.message(), "full");
  EXPECT_EQ(outcome->hash, said.hash);

  FileAnswer accepted{.slotBytes = 8, .slots = 1};
  accepted.ring.fill(std::byte{0x12});
  const auto answer = FileAnswer::decode(accepted.encode());
  ASSERT_TRUE(answer.isOk());
  EXPECT_TRUE(answer->refused.isOk());
  EXPECT_EQ(answer->ring, accepted.ring);
  EXPECT_FALSE(answer->tookAnother);
  const auto late = FileAnswer::decode(FileAnswer{.tookAnother = true}.encode());
  ASSERT_TRUE(late.isOk()) << late.status().toString();
  EXPECT_TRUE(late->tookAnother);

  const FilePiece piece{.index = 0x0102030405060708, .bytes = 9};
  const auto read = FilePiece::decode(piece.encode());
  ASSERT_TRUE(read.isOk());
  EXPECT_EQ(read->index, piece.index);
  EXPECT_EQ(read->bytes, 9u);
  EXPECT_EQ(encodeHex(piece.encode()).substr(0, 32), "08070605040302010900000000000000");
}

TEST(FileExchange, RefusesWhatIsNotUnderstood) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"format":"peerlane-file-2"})", R"({"format":1})",
        R"({"format":"peerlane-file-1","name":1,"bytes":1,"slot_bytes":1,"slots":1})",
        R"({"format":"peerlane-file-1","name":"n","bytes":-1,"slot_bytes":1,"slots":1})",
        R"({"format":"peerlane-file-1","name":"n","bytes":1,"slot_bytes":0,"slots":1})",
        R"({"format":"peerlane-file-1","code":99,"message":"","bytes":0,"hash":""})",
        R"({"format":"peerlane-file-1","code":0,"message":"","bytes":0,"hash":"zz"})"}) {
    EXPECT_EQ(FileOffer::decode(bytesOf(text)).status().code(), Code::kCorrupt) << text;
    EXPECT_EQ(FileAnswer::decode(bytesOf(text)).status().code(), Code::kCorrupt) << text;
    EXPECT_EQ(FileOutcome::decode(bytesOf(text)).status().code(), Code::kCorrupt) << text;
  }
  EXPECT_EQ(FilePiece::decode(std::vector<std::byte>(47)).status().code(), Code::kCorrupt);
  EXPECT_EQ(FilePiece::decode(std::vector<std::byte>(49)).status().code(), Code::kCorrupt);
}

TEST(ContentHash, IsBlake2bWith256Bits) {
  ContentHash empty;
  EXPECT_EQ(encodeHex(empty.finish()),
            "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  ContentHash whole;
  whole.update(bytesOf("abc"));
  ContentHash pieces;
  pieces.update(bytesOf("a"));
  pieces.update(bytesOf("bc"));
  const std::string expected = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
  EXPECT_EQ(encodeHex(whole.finish()), expected);
  EXPECT_EQ(encodeHex(pieces.finish()), expected);
}

TEST(TextTable, AlignsColumns) {
  TextTable table("lr");
  table.addRow({"a", "1"});
  table.addRow({"long", "100"});
  table.addRow({"x"});
  EXPECT_EQ(table.toString(), "a       1\nlong  100\nx\n");
}

}  // namespace
}  // namespace peerlane
