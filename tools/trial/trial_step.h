// SPDX-License-Identifier: Apache-2.0
//
// The messages between the two sides of a trial, as bytes of one program on one host: both sides
// are the same executable, so the structs travel as they are. Plain values.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "peerlane/session/peer/peer.h"
#include "tools/memory/content_hash.h"
#include "tools/trial/trial_shape.h"

namespace peerlane {

inline constexpr uint32_t kTrialStepChannel = 1;
inline constexpr uint32_t kTrialReplyChannel = 2;
// The signal that each put adds 1 to.
inline constexpr uint32_t kTrialSignal = 0;

enum class TrialVerb : uint32_t {
  kRegion,   // make memory of `memory` with at least `bytes`; the reply carries its reference
  kReceive,  // fill it with pattern `old`, reply, await the signal, check the bytes, reply again
  kProvide,  // fill it with pattern `seed`
  kJoin,     // make a communicator of the two sides
  kMessage,  // as kReceive, by one receive of the communicator
  kHash,     // await the signal, hash its first `bytes`
  kEnd,
};

struct TrialStep {
  TrialVerb verb = TrialVerb::kEnd;
  TrialMemory memory = TrialMemory::kShared;
  uint64_t bytes = 0;
  TrialShape shape{};
  uint64_t seed = 0;
  uint64_t old = 0;
  uint64_t signal = 0;  // the value that says "arrived"
};

struct TrialReply {
  uint8_t failed = 0;
  std::array<char, 240> failure{};  // text, ends with a zero
  int64_t seenAt = 0;  // steady clock, nanoseconds: one clock for all processes of a host
  uint64_t wrong = 0;
  RegionReference::Encoded reference{};
  ContentHash::Value hash{};
};

inline int64_t trialClock() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

template <typename T>
Status sendStruct(const Peer& peer, uint32_t channel, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return peer.sendMessage(channel, std::as_bytes(std::span(&value, 1)));
}

template <typename T>
Result<T> receiveStruct(const Peer& peer, uint32_t channel, std::chrono::nanoseconds timeout) {
  static_assert(std::is_trivially_copyable_v<T>);
  PEERLANE_ASSIGN(const auto content, peer.receiveMessage(channel, timeout));
  if (content.size() != sizeof(T))
    return Status(Code::kCorrupt, "a message of " + std::to_string(content.size()) +
                                      " bytes; expected " + std::to_string(sizeof(T)));
  T value;
  std::memcpy(&value, content.data(), sizeof(T));
  return value;
}

}  // namespace peerlane
