// SPDX-License-Identifier: Apache-2.0
//
// Byte formats: golden bytes, every truncation, limits, and stickiness of the first failure.
#include "peerlane/core/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

namespace peerlane {
namespace {

std::vector<std::byte> bytesOf(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

void writeSample(ByteWriter& writer) {
  writer.u8(0x01);
  writer.u16(0x0302);
  writer.u32(0x07060504);
  writer.u64(0x8f0e0d0c0b0a0908);
  writer.string("ab", 2);
  writer.raw(bytesOf({0xee}));
}

const std::vector<std::byte> kSample =
    bytesOf({1, 2, 3, 4, 5,   6,   7,   8, 9, 10, 11, 12, 13, 14, 0x8f,  //
             2, 0, 0, 0, 'a', 'b', 0xee});

TEST(ByteWriter, GoldenBytes) {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writeSample(writer);
  EXPECT_TRUE(writer.finish("sample").isOk());
  EXPECT_EQ(out, kSample);
  EXPECT_EQ(writer.size(), kSample.size());
}

TEST(ByteWriter, AppendsAndCountsFromItsOwnStart) {
  auto out = bytesOf({0xaa, 0xbb});
  ByteWriter writer(out);
  writer.u32(5);
  writer.u8(7);
  EXPECT_TRUE(writer.ok());
  EXPECT_EQ(writer.size(), 5u);
  EXPECT_EQ(out, bytesOf({0xaa, 0xbb, 5, 0, 0, 0, 7}));
}

TEST(ByteWriter, FixedSpanTakesExactlyItsSize) {
  std::vector<std::byte> room(kSample.size());
  ByteWriter exact{std::span<std::byte>(room)};
  writeSample(exact);
  EXPECT_TRUE(exact.ok());
  EXPECT_EQ(room, kSample);
}

TEST(ByteWriter, FullSpanFailsAtTheFieldAndStaysFailed) {
  for (std::size_t size = 0; size < kSample.size(); ++size) {
    std::vector<std::byte> room(size + 4, std::byte{0x55});  // four guard bytes
    ByteWriter writer(std::span<std::byte>(room).first(size));
    writeSample(writer);
    writer.u8(1);  // might fit again; must not be taken
    EXPECT_FALSE(writer.ok()) << size;
    EXPECT_EQ(writer.finish("sample").code(), Code::kInvalidArgument);
    for (std::size_t i = writer.size(); i < room.size(); ++i)
      EXPECT_EQ(room[i], std::byte{0x55}) << size;
  }
}

TEST(ByteWriter, FieldAboveItsMaximumIsRefused) {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.string("abc", 2);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(writer.finish("name").message(),
            "name: a field is longer than its maximum at offset 0");
}

TEST(ByteReader, ReadsWhatWasWritten) {
  ByteReader reader(kSample);
  EXPECT_EQ(reader.u8(), 0x01);
  EXPECT_EQ(reader.u16(), 0x0302);
  EXPECT_EQ(reader.u32(), 0x07060504u);
  EXPECT_EQ(reader.u64(), 0x8f0e0d0c0b0a0908u);
  EXPECT_EQ(reader.string(2), "ab");
  EXPECT_EQ(reader.remaining(), 1u);
  EXPECT_TRUE(reader.finish("sample", Trailing::kAllow).isOk());
  EXPECT_EQ(reader.finish("sample").code(), Code::kCorrupt);
  EXPECT_EQ(reader.finish("sample").message(),
            "sample: bytes after the last field (offset 21, input 22 bytes)");
  std::array<std::byte, 1> last{};
  reader.rawInto(last);
  EXPECT_EQ(last[0], std::byte{0xee});
  EXPECT_TRUE(reader.finish("sample").isOk());
}

TEST(ByteReader, EveryTruncationFailsAndIsSticky) {
  for (std::size_t size = 0; size < kSample.size(); ++size) {
    const std::span<const std::byte> whole(kSample);
    ByteReader reader(whole.first(size));
    (void)reader.u8();
    (void)reader.u16();
    (void)reader.u32();
    (void)reader.u64();
    (void)reader.string(2);
    (void)reader.raw(1);
    EXPECT_FALSE(reader.ok()) << size;
    const std::size_t stopped = reader.offset();
    EXPECT_EQ(reader.u8(), 0) << "a failed reader returns nothing, even if bytes are left";
    EXPECT_EQ(reader.offset(), stopped);
    EXPECT_EQ(reader.finish("sample", Trailing::kAllow).code(), Code::kCorrupt);
  }
}

TEST(ByteReader, HostileLengthsAreRefused) {
  auto huge = bytesOf({0xff, 0xff, 0xff, 0xff, 1, 2});
  ByteReader limited(huge);
  EXPECT_TRUE(limited.bytes(100).empty());
  EXPECT_EQ(limited.finish("ticket").message(),
            "ticket: a length is above its maximum (offset 4, wanted 4294967295, input 6 bytes)");
  ByteReader unlimited(huge);
  EXPECT_TRUE(unlimited.bytes(0xffffffff).empty());
  EXPECT_EQ(unlimited.finish("ticket").message(),
            "ticket: the input ends inside a field (offset 4, wanted 4294967295, input 6 bytes)");
  ByteReader count(huge);
  count.skip(static_cast<std::size_t>(-1));
  EXPECT_FALSE(count.ok());
  EXPECT_EQ(count.offset(), 0u);
}

TEST(ByteReader, FailedReadLeavesTheDestinationAlone) {
  auto input = bytesOf({1, 2});
  ByteReader reader(input);
  std::array<std::byte, 3> out{std::byte{9}, std::byte{9}, std::byte{9}};
  reader.rawInto(out);
  EXPECT_FALSE(reader.ok());
  for (std::byte value : out) EXPECT_EQ(value, std::byte{9});
}

TEST(ByteReader, CallersCheckFailsTheReader) {
  auto input = bytesOf({4, 0});
  ByteReader reader(input);
  reader.require(reader.u8() == 4, "unused");
  EXPECT_TRUE(reader.ok());
  reader.require(reader.u8() == 1, "the version is not 1");
  reader.require(false, "a later reason");
  EXPECT_EQ(reader.finish("hello").message(),
            "hello: the version is not 1 (offset 2, input 2 bytes)");
}

TEST(ByteReader, EmptyFieldsAndEmptyInput) {
  auto input = bytesOf({0, 0, 0, 0});
  ByteReader reader(input);
  EXPECT_EQ(reader.string(0), "");
  EXPECT_TRUE(reader.raw(0).empty());
  EXPECT_TRUE(reader.finish("empty").isOk());
  ByteReader none{std::span<const std::byte>()};
  EXPECT_TRUE(none.finish("none").isOk());
  EXPECT_EQ(none.u8(), 0);
  EXPECT_FALSE(none.ok());
}

}  // namespace
}  // namespace peerlane
