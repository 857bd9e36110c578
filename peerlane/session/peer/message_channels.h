// SPDX-License-Identifier: Apache-2.0
//
// MessageChannels: the numbered channels of small messages on one connection: messages that came
// and were not taken yet, and how many more this side may send. Channels below 2^31 are the
// program's, the others the library's, and the two have room of their own. The sender counts the
// messages that the peer has not taken; the receiver says which it has taken. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "peerlane/core/limits.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/readiness.h"

namespace peerlane {

class MessageChannels {
 public:
  static constexpr uint32_t kFirstOfLibrary = 0x8000'0000u;
  static constexpr bool isProgram(uint32_t channel) { return channel < kFirstOfLibrary; }

  // --- Messages that this side sends ---
  // Counts one message more; kTryAgain where the peer has not taken as many as may wait.
  Status claim(uint32_t channel);
  bool hasRoom(uint32_t channel) const;
  // The peer has taken `count` of the channel; kCorrupt where there were not so many.
  Status taken(uint32_t channel, uint32_t count);

  // --- Messages that came ---
  // kCorrupt: its sender did not count.
  Status push(uint32_t channel, std::vector<std::byte> content);
  // False when there is none.
  bool pop(uint32_t channel, std::vector<std::byte>& content);
  bool has(uint32_t channel) const;
  bool hasForProgram() const;
  // Channels with messages, and how many.
  std::vector<std::pair<uint32_t, size_t>> waiting() const;
  // Messages popped since the last call: channel and how many.
  std::vector<std::pair<uint32_t, uint32_t>> unreported();

  // A descriptor that is readable while the channel has a message, or none is to be expected.
  Result<int> fd(uint32_t channel);
  void setEnded(bool ended);

 private:
  struct Room {
    std::map<uint32_t, uint32_t> byChannel;  // only those above 0
    uint32_t all = 0;
  };
  Room& sentTo(uint32_t channel) PEERLANE_REQUIRES(mutex_) {
    return sent_[isProgram(channel) ? 0 : 1];
  }
  Status roomOf(uint32_t channel) const PEERLANE_REQUIRES(mutex_);
  void updateReadiness(uint32_t channel) PEERLANE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // Not taken by the peer: the program's, the library's.
  Room sent_[2] PEERLANE_GUARDED_BY(mutex_);
  // None of them is empty.
  std::map<uint32_t, std::deque<std::vector<std::byte>>> arrived_ PEERLANE_GUARDED_BY(mutex_);
  size_t waiting_[2] PEERLANE_GUARDED_BY(mutex_) = {0, 0};  // in arrived_
  std::map<uint32_t, uint32_t> unreported_ PEERLANE_GUARDED_BY(mutex_);
  std::map<uint32_t, Readiness> readiness_ PEERLANE_GUARDED_BY(mutex_);
  bool ended_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
