// SPDX-License-Identifier: Apache-2.0
//
// RequestLedger: the requests of one pair that are under way, in the order in which they were
// posted, and for which works. Only some are answered by a completion, which stands for all before
// it. Asks for no memory once made. External synchronization.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/transport/verbs/device/bounce_slots.h"
#include "peerlane/transport/verbs/request/request_chain.h"
#include "peerlane/transport/verbs/request/work_list.h"

namespace peerlane {

class RequestLedger {
 public:
  struct Request {
    AgentWork* work = nullptr;
    std::byte* to = nullptr;  // of a get through a slot: where its bytes belong
    uint32_t bytes = 0;
    uint32_t slot = BounceSlots::kNone;
    bool isQuiet = false;  // a word without news, because the peer polled when it was posted
    uint64_t news = 0;     // which news of this side it carries, counted from 1; 0: none
  };

  // `requests`: that the pair takes.
  explicit RequestLedger(uint32_t requests)
      : most_(requests),
        mostUnsignalled_(std::min(kMostUnsignalled, requests / 2)),
        serial_(lastSerial_.fetch_add(1, std::memory_order_relaxed) & kSerialBits),
        ring_(std::bit_ceil(requests)) {}

  bool isIdle() const { return underWay() == 0; }
  uint32_t underWay() const { return posted_ - retired_; }
  bool hasRoom(const RequestChain& chain, uint32_t requests) const {
    return chain.count() + requests <= RequestChain::kRequests && underWay() + requests <= most_;
  }
  uint32_t ever() const { return posted_; }
  // The answer to what is under way for a work will not come by itself.
  bool owesAnswer() const { return owesAnswer_; }

  // The oldest one that is under way has the index 0. Requires: less than underWay().
  Request& at(uint32_t index) { return ring_[place(retired_ + index)]; }

  // Remembers the last request of the chain; `work` may be null. Each mostUnsignalled_-th is
  // answered, so that the room of those before it comes back.
  Request& note(RequestChain& chain, AgentWork* work) {
    Request& request = ring_[place(posted_)];
    request = {.work = work};
    chain.last().wr_id = serial_ << 32 | posted_;
    ++posted_;
    owesAnswer_ |= work != nullptr;
    if (++unsignalled_ >= mostUnsignalled_) sign(chain);
    if (work == nullptr) return request;
    WorkState state(*work);
    state.began();
    if (state.isFenced()) chain.last().send_flags |= IBV_SEND_FENCE;
    state.clearFenced();
    return request;
  }
  // The last request is answered by a completion.
  void sign(RequestChain& chain) {
    chain.last().send_flags |= IBV_SEND_SIGNALED;
    unsignalled_ = 0;
    owesAnswer_ = false;
  }

  // The request of a completion; null: none that is under way, so it is of an earlier pair that had
  // this pair's number.
  const Request* find(uint64_t id) const {
    const auto index = static_cast<uint32_t>(id);
    return id >> 32 == serial_ && index - retired_ < underWay() ? &ring_[place(index)] : nullptr;
  }
  // Takes the oldest one out; null: none is under way. The pointer is valid until the next note().
  const Request* takeOldest() { return isIdle() ? nullptr : &ring_[place(retired_++)]; }
  // The same, as long as it is the one of the completion or before it. Requires: find(id) was not
  // null.
  const Request* takeUntil(uint64_t id) {
    return retired_ == static_cast<uint32_t>(id) + 1 ? nullptr : takeOldest();
  }
  // The same without the one of the completion.
  const Request* takeBefore(uint64_t id) {
    return retired_ == static_cast<uint32_t>(id) ? nullptr : takeOldest();
  }

 private:
  static constexpr uint32_t kMostUnsignalled = 32;
  static constexpr uint64_t kSerialBits = 0x7fffffff;  // SharedQueues::kReceiveBit stays free
  static inline std::atomic<uint64_t> lastSerial_{0};

  size_t place(uint32_t number) const { return number & (ring_.size() - 1); }

  const uint32_t most_;
  const uint32_t mostUnsignalled_;
  const uint64_t serial_;
  std::vector<Request> ring_;  // a power of two, so that no request costs a division
  uint32_t posted_ = 0;        // ever
  uint32_t retired_ = 0;       // of them
  uint32_t unsignalled_ = 0;
  bool owesAnswer_ = false;
};

}  // namespace peerlane
