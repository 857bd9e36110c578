// SPDX-License-Identifier: Apache-2.0
//
// Heartbeat: how one side of a connection notices that nothing is heard of the other, or that it
// takes nothing over a link, and that this is over. Changes the peer's status to silent and back.
// Owned by PeerConnection; confined to the progress thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "peerlane/os/event_loop.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/user_messages.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class Heartbeat {
 public:
  Heartbeat(PeerEnvironment& env, UserMessages& messages, const LinkSet& links)
      : env_(env), messages_(messages), links_(links) {}

  // Goes on while the peer is ready or silent.
  void start();
  void stop() { timer_.cancel(); }
  Status handle(control::Heartbeat& message);
  // A message came, of whatever kind.
  void heard();

 private:
  using Clock = std::chrono::steady_clock;
  void beat();
  void setSilent(const std::string& why);
  void endSilence();

  PeerEnvironment& env_;
  UserMessages& messages_;
  const LinkSet& links_;
  Timer timer_;
  uint64_t sequence_ = 0;
  Clock::time_point lastBeat_{};
  Clock::time_point attentiveSince_{};  // before that, nothing heard means nothing
};

}  // namespace peerlane
