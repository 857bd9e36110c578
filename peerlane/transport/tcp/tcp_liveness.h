// SPDX-License-Identifier: Apache-2.0
//
// TcpLiveness: judges from one look after another whether the other end of a data connection takes
// what was sent to it. Not TCP_USER_TIMEOUT: that ends the connection of a living peer that does
// not read. External synchronization required.
#pragma once

#include <chrono>
#include <cstdint>

#include "peerlane/os/socket.h"

namespace peerlane {

class TcpLiveness {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Verdict : uint8_t {
    kFlows,  // nothing waits, or it moves
    kStuck,  // for the whole patience the other host has answered, and taken nothing
    kDead,   // for the whole patience the other host has not answered
  };

  explicit TcpLiveness(std::chrono::nanoseconds patience) : patience_(patience) {}

  Verdict judge(const TcpFlow& flow, Clock::time_point now);

 private:
  const std::chrono::nanoseconds patience_;
  bool wasWaiting_ = false;
  uint64_t taken_ = 0;
  Clock::time_point since_{};  // something waits, and `taken_` has not changed
};

}  // namespace peerlane
