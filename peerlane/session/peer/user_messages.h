// SPDX-License-Identifier: Apache-2.0
//
// UserMessages: small messages over the control connection, between the two programs and between
// the higher floors of the two sides. Those of the program's channels wait in MessageChannels until
// they are received; those of the library's go to a receiver. Owned by PeerCore; thread-safe, but
// for the functions that are named as the progress thread's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "peerlane/session/peer/message_channels.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class UserMessages {
 public:
  using Receiver = std::function<void(std::vector<std::byte>)>;

  explicit UserMessages(PeerEnvironment& env) : env_(env) {}

  // A silent peer is refused like a lost one, unless `alsoToSilent`: it hears of it if it comes
  // back. kTryAgain on a channel of the program's whose messages the peer does not take; messages
  // of the library wait here for that.
  Status send(uint32_t channel, std::vector<std::byte> content, bool alsoToSilent = false);
  // Messages of a channel of the library's go to `receive`, on the progress thread, also those that
  // came before. Empty: no longer.
  void onMessage(uint32_t channel, Receiver receive);

  MessageChannels& channels() { return channels_; }
  const MessageChannels& channels() const { return channels_; }
  // Some were received: the peer may send as many more.
  void sendTaken();
  // No message comes any more. Messages that came before the peer's end may be read
  // after that is known.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // --- Progress thread ---
  Status handle(control::UserMessage& message);
  Status handle(control::MessagesTaken& message);
  void end();
  bool allSent() const { return unsent_.empty(); }

 private:
  void sendUnsent();

  PeerEnvironment& env_;
  MessageChannels channels_;
  std::atomic<bool> ended_{false};           // release after the last one; acquire by receivers
  std::atomic<bool> isSendingTaken_{false};  // the progress thread will look what was taken
  std::map<uint32_t, Receiver> receivers_;   // progress thread, as the next
  // The library's messages that the peer has no room for yet; none of them is empty.
  std::map<uint32_t, std::deque<std::vector<std::byte>>> unsent_;
};

}  // namespace peerlane
