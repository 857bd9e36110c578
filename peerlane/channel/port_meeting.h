// SPDX-License-Identifier: Apache-2.0
//
// PortMeeting: how the semaphores of two services find each other over the connection of their
// contexts: by tag. One per peer, shared by all services of this side. Set-up path. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "peerlane/channel/port_note.h"
#include "peerlane/session/peer_core.h"

namespace peerlane {

class PortMeeting final : public Task {
 public:
  static std::shared_ptr<PortMeeting> of(PeerCore& peer);
  Turn turn() override { return Turn::kIdle; }

  // Reserves the tag for one semaphore of this side and returns its serial; kUnavailable.
  Result<uint64_t> begin(uint32_t tag);
  // The tag is free again. What the peer has said since for a next use stays. `gone` is called
  // once, here or on the progress thread, when the peer's semaphore of this use is gone as well; at
  // once where its hello was not heard. Not at all if the peer is lost before.
  void end(uint32_t tag, std::function<void()> gone);
  static Status say(PeerCore& peer, const PortNote& note) {
    return peer.sendUserMessage(kPortChannel, note.encode());
  }
  // The peer's kHello or kReady. Errors: kTimeout, what its kEnded says, why the peer is gone.
  Result<PortNote> hear(PeerCore& peer, uint32_t tag, PortNote::Kind kind,
                        std::chrono::steady_clock::time_point deadline);
  // Called once, on the progress thread or here, when the peer has ended the semaphore whose hello
  // was heard.
  void onEnded(uint32_t tag, const std::function<void(const Status&)>& call);

 private:
  struct Entry {
    bool isActive = false;
    bool isPeerGone = false;
    uint64_t ownSerial = 0;
    uint64_t peerSerial = 0;  // of the hello that was taken
    std::optional<PortNote> hello;
    std::optional<PortNote> ready;
    std::optional<Status> ended;
    std::function<void(const Status&)> onEnded;
    bool isReady() const { return ready && ready->serial == peerSerial; }
  };
  void take(const std::vector<std::byte>& bytes);
  void takeEnded(Entry& entry, const PortNote& note, std::function<void(const Status&)>& call);
  bool has(uint32_t tag, PortNote::Kind kind);

  std::atomic<bool> subscribed_{false};
  std::mutex mutex_;
  std::map<uint32_t, Entry> entries_;                  // under mutex_, as all below
  std::map<uint64_t, std::function<void()>> leaving_;  // by the peer's serial
  uint64_t nextSerial_ = 1;
  Status broken_;
};

}  // namespace peerlane
