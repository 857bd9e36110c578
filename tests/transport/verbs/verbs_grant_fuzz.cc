// SPDX-License-Identifier: Apache-2.0
//
// What comes from a peer of a verbs link once it is joined: numbers of news, mails, and the words
// that it writes into the control block. The first byte says how many regions there are; then come
// mails, each behind its number.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "peerlane/transport/verbs/device/control_block.h"
#include "peerlane/transport/verbs/request/word_mail.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

constexpr uint32_t kSlots = 4;

// Never more than the window, whatever the peer claims to have taken.
void checkCredits(uint64_t taken) {
  NewsCredits credits;
  std::array<std::byte, 8> word{};
  credits.begin(word.data(), kSlots);
  for (int i = 0; credits.mayAnswer() && i < 100; ++i) credits.use();
  PEERLANE_CHECK(credits.sent() == kSlots);
  std::memcpy(word.data(), &taken, sizeof taken);
  for (int i = 0; credits.mayAnswer() && i < 100; ++i) credits.use();
  PEERLANE_CHECK(credits.sent() <= 2 * kSlots || taken > kSlots);
}

}  // namespace
}  // namespace peerlane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace peerlane;
  constexpr size_t kStep = sizeof(uint32_t) + control_block::kMailBytes;
  if (size == 0) return 0;
  FakeRegions regions;
  alignas(8) std::array<std::byte, 64> memory{};
  for (int i = 0; i < bytes[0] % 4; ++i)
    (void)regions.add(memory, i == 1 ? Access::kRemoteRead : Access::kRemoteReadWrite);
  std::array<std::byte, kSlots * control_block::kMailBytes> slots{};
  WordMail mail(regions, slots);
  for (size_t at = 1; at + kStep <= size; at += kStep) {
    uint32_t number = 0;
    std::memcpy(&number, bytes + at, sizeof number);
    News news;
    if (!News::decode(number, news)) continue;
    PEERLANE_CHECK(news.encode() == number);
    std::memcpy(slots.data() + news.slot % kSlots * control_block::kMailBytes,
                bytes + at + sizeof number, control_block::kMailBytes);
    const Status status = mail.apply(news);
    PEERLANE_CHECK((status.code() == Code::kCorrupt) == (news.slot >= kSlots));
    PEERLANE_CHECK(regions.pins() == 0);
    uint64_t taken = 0;
    std::memcpy(&taken, bytes + at + kStep - 8, sizeof taken);
    checkCredits(taken);
  }
  return 0;
}
