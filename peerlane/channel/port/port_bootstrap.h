// SPDX-License-Identifier: Apache-2.0
//
// PortBootstrap: how semaphores of two services find each other by tag, over the connection of
// their contexts. One per peer, shared by all services of this side. Set-up path. Thread-safe.
//
// A side's hello stands until that side takes it back, and several attempts of the other side may
// answer it, one after the other. A side that runs out of time takes back its own hello alone, and
// a side that waits goes on waiting. Else two sides that come and go would end each other's
// attempts for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "peerlane/channel/port/port_note.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/mutex.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PortBootstrap {
 public:
  using Clock = std::chrono::steady_clock;
  static std::shared_ptr<PortBootstrap> of(PeerCore& peer);

  // Reserves the tag for one semaphore of this side and returns its serial; kUnavailable.
  Result<uint64_t> begin(uint32_t tag);
  // Frees the tag. A hello of the peer for its next use stays. `gone` is called once, here or on
  // the progress thread, when no thread of the peer can signal this use's line any more; at once
  // where none ever could; not at all if the peer is lost before.
  void end(uint32_t tag, std::function<void()> gone);
  // Sent also to a peer that is silent: it may come back, and must not miss an end that came
  // meanwhile.
  static Status sendNote(PeerCore& peer, PortNote note) {
    note.code = peer.toldAs(note.code);
    return peer.messages().send(kPortChannel, note.encode(), true);
  }
  // The peer's hello, as soon as there is one. Errors of this and awaitReady(): kTimeout, the
  // reason with which the peer ended its semaphore, or the reason why the peer is gone.
  Result<PortNote> awaitHello(PeerCore& peer, uint32_t tag, Clock::time_point deadline);
  // Whether the peer has not taken back that hello.
  bool isStanding(uint32_t tag, uint64_t serial);
  // Answers the hello that was taken with kReady.
  Status answer(PeerCore& peer, const PortNote& ready);
  // The peer's kReady; nullopt when it has taken back its hello, and another one may come.
  Result<std::optional<PortNote>> awaitReady(PeerCore& peer, uint32_t tag,
                                             Clock::time_point deadline);
  // Calls `call` once, on the progress thread or here, when the peer has ended the semaphore that
  // was met.
  void onEnded(uint32_t tag, const std::function<void(const Status&)>& call);

 private:
  struct Entry {
    bool isActive = false;
    bool isMet = false;
    uint64_t ownSerial = 0;
    uint64_t peerSerial = 0;        // of the hello that was taken
    uint64_t answered = 0;          // the peer's serial whose threads may signal this use's line
    std::optional<PortNote> hello;  // stands, and is not another use's
    std::optional<PortNote> ready;  // of the hello that stands
    std::optional<Status> ended;
    std::function<void(const Status&)> onEnded;
    bool isHelloTaken() const { return hello && hello->serial == peerSerial; }
    void dropHello();
  };
  // A semaphore that is over here; the peer's may still signal its line.
  struct LingeringLine {
    uint64_t ownSerial = 0;
    std::function<void()> gone;
  };
  using Calls = std::vector<std::function<void()>>;
  void take(const std::vector<std::byte>& bytes);
  void takeReady(Entry& entry, const PortNote& note, Calls& calls) PEERLANE_REQUIRES(mutex_);
  void takeEnded(Entry& entry, const PortNote& note, Calls& calls);
  void takeGone(Entry& entry, uint64_t serial, Calls& calls) PEERLANE_REQUIRES(mutex_);
  Status await(PeerCore& peer, uint32_t tag, Clock::time_point deadline,
               const std::function<bool(const Entry&)>& isThere);

  std::atomic<bool> subscribed_{false};
  Mutex mutex_;
  std::map<uint32_t, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
  std::multimap<uint64_t, LingeringLine> lingering_
      PEERLANE_GUARDED_BY(mutex_);  // by the peer's serial
  uint64_t nextSerial_ PEERLANE_GUARDED_BY(mutex_) = 1;
  Status broken_ PEERLANE_GUARDED_BY(mutex_);
  LogLimit lines_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
