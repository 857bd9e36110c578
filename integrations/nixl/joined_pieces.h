// SPDX-License-Identifier: Apache-2.0
//
// JoinedPieces: makes one message of the pieces in which it travels over one connection. A sender
// begins its messages in the order of their numbers, and begins none before all pieces of the last
// one are sent: so there is one unfinished message, a piece of a later one ends it, and pieces of
// earlier ones are left out, as no such message can be had whole any more. External
// synchronization required.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace peerlane::nixl {

class JoinedPieces {
 public:
  // In a tag, beside the number of the message: further pieces of it follow.
  static constexpr uint32_t kMore = 1u << 31;
  static constexpr uint32_t kMostNumber = kMore - 1;  // 1 follows
  // A sender may go on for ever: a message that becomes longer is dropped.
  static constexpr size_t kMostBytes = 64 << 20;

  JoinedPieces() = default;
  explicit JoinedPieces(size_t mostBytes) : mostBytes_(mostBytes) {}

  // The whole message, where this was its last piece. `number` is not 0.
  std::optional<std::string> add(uint32_t number, bool hasMore, std::string_view piece) {
    if (number != number_) {
      // Later by less than half of all numbers; they go round.
      const uint32_t ahead = (number - number_) & (kMore - 1);
      if (number_ != 0 && ahead >= kMore / 2) return std::nullopt;
      number_ = number;
      text_.clear();
      isOver_ = false;
    }
    if (isOver_) return std::nullopt;
    const bool fits = piece.size() <= mostBytes_ - text_.size();
    if (fits) text_ += piece;
    isOver_ = !hasMore || !fits;
    if (!isOver_) return std::nullopt;
    std::string all = std::exchange(text_, {});
    if (!fits) return std::nullopt;
    return all;
  }

 private:
  size_t mostBytes_ = kMostBytes;
  uint32_t number_ = 0;  // of the message that began last; 0: none has
  bool isOver_ = false;  // it was given out, or dropped
  std::string text_;
};

}  // namespace peerlane::nixl
