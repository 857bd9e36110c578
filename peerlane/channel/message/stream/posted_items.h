// SPDX-License-Identifier: Apache-2.0
//
// PostedItems: the messages that a direction of a lane has posted lately, in their order whatever
// their kind. From it this side answers when the other side asks about a message that is not met.
// One writer at a time, any number of readers, no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace peerlane {

class PostedItems {
 public:
  // As many posts as a stream takes while its first one waits.
  static constexpr uint64_t kKept = 1024;

  struct Item {
    uint64_t bytes = 0;
    bool byGet = false;
  };
  // Adds the message of the next number.
  void add(uint64_t number, const Item& item) {
    words_[number % kKept].store(wordOf(number, item), std::memory_order_relaxed);
    count_.store(number + 1, std::memory_order_release);
  }
  // Takes back the numbers from `count` on: nothing was posted for them after all.
  void rewind(uint64_t count) { count_.store(count, std::memory_order_release); }
  // From now on graphs post, and count their messages themselves.
  void setCaptured() { captured_.store(true, std::memory_order_release); }
  bool isCaptured() const { return captured_.load(std::memory_order_acquire); }
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  // Nothing: not posted yet, or too long ago.
  std::optional<Item> find(uint64_t number) const {
    const uint64_t count = this->count();
    if (number >= count || count - number > kKept) return std::nullopt;
    const uint64_t word = words_[number % kKept].load(std::memory_order_relaxed);
    const Item item{word & kBytesMask, (word >> kBytesBits & 1) != 0};
    // The writer may be storing a later item there.
    if (word != wordOf(number, item)) return std::nullopt;
    return item;
  }

 private:
  static constexpr uint32_t kBytesBits = 48;
  static constexpr uint64_t kBytesMask = (uint64_t{1} << kBytesBits) - 1;
  static uint64_t wordOf(uint64_t number, const Item& item) {
    const uint64_t bytes = item.bytes < kBytesMask ? item.bytes : kBytesMask;
    return number << (kBytesBits + 1) | uint64_t{item.byGet} << kBytesBits | bytes;
  }
  std::array<std::atomic<uint64_t>, kKept> words_{};
  std::atomic<uint64_t> count_{0};  // release after the word
  std::atomic<bool> captured_{false};
};

}  // namespace peerlane
