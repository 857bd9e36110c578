// SPDX-License-Identifier: Apache-2.0
//
// AgentMail: the notifications of an agent, in both directions. Those that arrive are taken out of
// the library's bounded inboxes by a thread that looks 50 times a second, and whenever the agent
// asks, so that no sender ever waits for an agent that does not ask; beyond kMostArrivedBytes they
// stay where they are. Those that find no room at the peer wait here, without a limit, and that
// thread sends them. Thread-safe.
//
// A message is [u16 length of the sender's name][name][text]. One that is longer than the library's
// notifications travels in several: their tags hold the number of the message, and
// JoinedPieces::kMore in all but the last.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "integrations/nixl/joined_pieces.h"
#include "integrations/nixl/nixl_abi.h"
#include "integrations/nixl/nixl_answer.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane::nixl {

class AgentMail {
 public:
  static constexpr size_t kLongestName = 1024;
  // The most bytes of notifications that wait for the agent to ask, before the last one of them.
  static constexpr size_t kMostArrivedBytes = 64 << 20;

  // `tick`: called by the thread each time that it has looked. Another limit than the default is
  // for tests.
  AgentMail(std::string agent, std::function<void()> tick,
            size_t mostArrivedBytes = kMostArrivedBytes);
  // Messages that still wait for room are lost, and the log says how many.
  ~AgentMail();
  AgentMail(const AgentMail&) = delete;
  AgentMail& operator=(const AgentMail&) = delete;

  // Ends the thread. Idempotent.
  void stop();
  // Sends what waits for room, as far as there is some by then. Whether nothing waits any more.
  bool sendWaitingUntil(std::chrono::steady_clock::time_point deadline);

  // Any context's peers that connected to this agent: they may send.
  void listenTo(Peer peer);
  // Appends what has arrived. Order: that of each sender's connection.
  void take(abi::Notifications& out);

  // The message as one notification, where it fits.
  std::optional<std::vector<std::byte>> inOnePiece(const std::string& text) const;
  // Sends it now, or puts it after those that wait already. Errors: of a peer that is lost, silent
  // or closed (a part of it may have been sent, and the peer drops that); kInvalidArgument where it
  // is longer than JoinedPieces::kMostBytes, with the agent's name.
  Status send(const Peer& peer, const std::string& text);

 private:
  struct Piece {
    uint32_t tag = 0;
    std::vector<std::byte> bytes;
  };
  struct Outbox {
    Peer peer;
    std::deque<Piece> waiting;
  };
  struct Sender {
    Peer peer;
    JoinedPieces pieces;
  };
  void run();
  void collect();
  void collectFrom(Sender& sender, bool& isGone);
  void sendWaiting();
  void deliver(std::string_view message);
  std::deque<Piece> cut(const std::string& text);
  Status sendFrom(Outbox& outbox) const;

  const std::string agent_;
  const std::function<void()> tick_;
  const size_t mostArrivedBytes_;
  LimitedLines foreign_;
  // Of the ends of notifications, which may come after this object's.
  const std::shared_ptr<LimitedLines> lost_ = std::make_shared<LimitedLines>();
  std::mutex inboxMutex_;
  std::vector<Sender> senders_;
  abi::Notifications arrived_;
  size_t arrivedBytes_ = 0;

  std::mutex outboxMutex_;
  std::map<const PeerCore*, Outbox> outboxes_;  // only of peers that had no room
  uint32_t lastNumber_ = 0;

  std::mutex stopMutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace peerlane::nixl
