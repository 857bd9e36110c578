// SPDX-License-Identifier: Apache-2.0
//
// JoinedLines: the two ends of a line between links that a test joins by hand. What one end says,
// the other's loop lets it hear.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/os/event_loop.h"
#include "peerlane/transport/link_line.h"

namespace peerlane {

class JoinedLine final : public LinkLine, public std::enable_shared_from_this<JoinedLine> {
 public:
  explicit JoinedLine(EventLoop& loop) : loop_(loop) {}

  void say(std::vector<std::byte> words) override {
    if (const auto other = other_.lock())
      other->loop_.post([other, words = std::move(words)] { other->take(words); });
  }
  void listen(Heard heard) override {
    heard_ = std::move(heard);
    while (heard_ && !kept_.empty()) {
      loop_.post([self = shared_from_this(), words = kept_.front()] { self->take(words); });
      kept_.pop_front();
    }
  }
  void stopListening() override { heard_ = nullptr; }

 private:
  friend std::array<std::shared_ptr<LinkLine>, 2> joinedLines(EventLoop& a, EventLoop& b);
  void take(const std::vector<std::byte>& words) {
    if (const Heard heard = heard_)
      heard(words);
    else
      kept_.push_back(words);
  }

  EventLoop& loop_;
  std::weak_ptr<JoinedLine> other_;
  Heard heard_;
  std::deque<std::vector<std::byte>> kept_;
};

inline std::array<std::shared_ptr<LinkLine>, 2> joinedLines(EventLoop& a, EventLoop& b) {
  const auto first = std::make_shared<JoinedLine>(a), second = std::make_shared<JoinedLine>(b);
  first->other_ = second;
  second->other_ = first;
  return {first, second};
}

}  // namespace peerlane
