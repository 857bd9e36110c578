// SPDX-License-Identifier: Apache-2.0
//
// News: the number that comes with a write and takes up a receive of the peer, which it wakes.
// docs/wire.md. NewsCredits: how many this side may still send. Plain values.
#pragma once

#include <atomic>
#include <cstdint>

namespace peerlane {

struct News {
  enum class Kind : uint8_t {
    kWord = 0,     // a word was written, or added to
    kStore64 = 1,  // a mail: store its value
    kStore32 = 2,
    kAdd64 = 3,
    kTaken = 4,  // the peer has taken news of this side: its control block says how many
  };
  static constexpr uint8_t kKinds = 5;
  Kind kind = Kind::kWord;
  bool asks = false;  // the sender waits to hear how many were taken
  uint16_t slot = 0;  // of a mail

  uint32_t encode() const {
    return static_cast<uint32_t>(kind) << 24 | (asks ? uint32_t{1} << 16 : 0) | slot;
  }
  // False: no news of this version.
  static bool decode(uint32_t number, News& news) {
    const uint32_t kind = number >> 24;
    if (kind >= kKinds || (number & 0xfe0000) != 0) return false;
    news = {static_cast<Kind>(kind), (number & 0x10000) != 0, static_cast<uint16_t>(number)};
    return true;
  }
};

// Of one direction, on the side that sends news. The last credit is kept for the answer to a peer
// that asks, so that two sides that have used up theirs get on. explore/news_protocol.h.
class NewsCredits {
 public:
  // Of fewer, two sides would ask each other for ever.
  static constexpr uint32_t kLeastWindow = 4;

  // `taken`: the word that the peer writes. Once more after the word was cleared.
  void begin(const std::byte* taken, uint32_t window) {
    taken_ = reinterpret_cast<const uint64_t*>(taken);
    window_ = window;
    sent_ = 0;
  }
  uint64_t sent() const { return sent_; }
  uint32_t window() const { return window_; }
  // The number of them that the peer has taken, as far as it said so.
  uint64_t taken() const {
    // The device writes it: partner is its write of the peer's count.
    const uint64_t taken = std::atomic_ref<const uint64_t>(*taken_).load(std::memory_order_acquire);
    // A peer that writes more than there were gets nothing by it.
    return taken <= sent_ ? taken : sent_;
  }
  // For words, and for an answer.
  bool maySend() const { return left() > 1; }
  bool mayAnswer() const { return left() > 0; }
  // The next one uses up the last but that one: it should ask.
  bool isNextLast() const { return left() == 2; }
  void use() { ++sent_; }

 private:
  uint64_t left() const {
    const uint64_t underWay = sent_ - taken();
    return underWay >= window_ ? 0 : window_ - underWay;
  }
  const uint64_t* taken_ = nullptr;
  uint32_t window_ = 0;
  uint64_t sent_ = 0;
};

}  // namespace peerlane
