// SPDX-License-Identifier: Apache-2.0
//
// News and mails as a peer may send them, good and bad.
#include "peerlane/transport/verbs/request/word_mail.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "peerlane/program/words/word.h"
#include "peerlane/transport/verbs/device/control_block.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

TEST(News, IsReadAsItWasWritten) {
  for (uint8_t kind = 0; kind < News::kKinds; ++kind)
    for (const bool asks : {false, true})
      for (const uint16_t slot : {0, 1, 0x8000, 0xffff}) {
        const News there{static_cast<News::Kind>(kind), asks, slot};
        News here;
        ASSERT_TRUE(News::decode(there.encode(), here));
        EXPECT_EQ(here.kind, there.kind);
        EXPECT_EQ(here.asks, asks);
        EXPECT_EQ(here.slot, slot);
      }
}

TEST(News, OfNoKnownKindIsRefused) {
  News news;
  for (uint32_t kind = News::kKinds; kind < 256; ++kind)
    EXPECT_FALSE(News::decode(kind << 24, news)) << kind;
  for (uint32_t bit = 17; bit < 24; ++bit) EXPECT_FALSE(News::decode(1u << bit, news)) << bit;
}

class WordMailTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 4;
  WordMailTest() {
    memory_.resize(8, 0);
    grant_ = regions_.add(std::as_writable_bytes(std::span(memory_)), Access::kRemoteReadWrite);
  }
  void mail(uint16_t slot, uint64_t allocation, uint64_t generation, uint64_t offset,
            uint64_t value) {
    const std::array<uint64_t, 4> mail{allocation, generation, offset, value};
    std::memcpy(slots_.data() + slot * control_block::kMailBytes, mail.data(), sizeof mail);
  }
  // Of a mail in slot 1 to the region.
  Status apply(News::Kind kind, uint64_t offset, uint64_t value) {
    mail(1, grant_.allocation, grant_.generation, offset, value);
    return mail_.apply({kind, false, 1});
  }

  FakeRegions regions_;
  std::vector<uint64_t> memory_;
  RegionGrant grant_;
  std::array<std::byte, kSlots * control_block::kMailBytes> slots_{};
  WordMail mail_{regions_, slots_};
};

TEST_F(WordMailTest, WordsAreStoredAndAddedTo) {
  EXPECT_OK(apply(News::Kind::kStore64, 8, 0x1122334455667788));
  EXPECT_EQ(memory_[1], 0x1122334455667788u);
  EXPECT_OK(apply(News::Kind::kStore32, 8, 0xaabbccdd));
  EXPECT_EQ(memory_[1], 0x11223344aabbccddu);
  EXPECT_OK(apply(News::Kind::kStore32, 12, 1));
  EXPECT_EQ(memory_[1], 0x00000001aabbccddu);
  EXPECT_OK(apply(News::Kind::kAdd64, 16, 5));
  EXPECT_OK(apply(News::Kind::kAdd64, 16, 6));
  EXPECT_EQ(memory_[2], 11u);
  EXPECT_OK(apply(News::Kind::kStore64, 56, 3));
  EXPECT_EQ(memory_[7], 3u);
  EXPECT_EQ(regions_.pins(), 0u);
}

TEST_F(WordMailTest, ASlotThatIsNotThereEndsTheLink) {
  for (const uint16_t slot : {kSlots, kSlots + 1, 0x8000u, 0xffffu}) {
    const Status status = mail_.apply({News::Kind::kStore64, false, slot});
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_NE(status.message().find(std::to_string(slot)), std::string::npos);
  }
}

TEST_F(WordMailTest, AWordOutsideOrAcrossIsRefused) {
  for (const auto& [kind, offset] :
       std::vector<std::pair<News::Kind, uint64_t>>{{News::Kind::kStore64, 4},
                                                    {News::Kind::kStore64, 7},
                                                    {News::Kind::kStore32, 2},
                                                    {News::Kind::kAdd64, 12},
                                                    {News::Kind::kStore64, 64},
                                                    {News::Kind::kStore32, 64},
                                                    {News::Kind::kAdd64, ~uint64_t{7}},
                                                    {News::Kind::kStore32, ~uint64_t{3}}})
    EXPECT_EQ(apply(kind, offset, 1).code(), Code::kInvalidArgument) << offset;
  EXPECT_EQ(memory_, std::vector<uint64_t>(8, 0));
  EXPECT_EQ(regions_.pins(), 0u);
}

TEST_F(WordMailTest, ARegionThatIsNotGrantedForWritingIsRefused) {
  const RegionGrant readable =
      regions_.add(std::as_writable_bytes(std::span(memory_)), Access::kRemoteRead);
  mail(0, readable.allocation, readable.generation, 0, 1);
  EXPECT_EQ(mail_.apply({News::Kind::kStore64, false, 0}).code(), Code::kPermissionDenied);
  mail(0, grant_.allocation + 100, grant_.generation, 0, 1);
  EXPECT_EQ(mail_.apply({News::Kind::kAdd64, false, 0}).code(), Code::kInvalidArgument);
  mail(0, grant_.allocation, grant_.generation + 1, 0, 1);
  EXPECT_EQ(mail_.apply({News::Kind::kStore64, false, 0}).code(), Code::kInvalidArgument);
  regions_.beginClosing(grant_.allocation);
  EXPECT_EQ(apply(News::Kind::kStore64, 0, 1).code(), Code::kClosed);
  EXPECT_EQ(memory_, std::vector<uint64_t>(8, 0));
}

}  // namespace
}  // namespace peerlane
