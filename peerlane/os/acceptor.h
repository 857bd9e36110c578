// SPDX-License-Identifier: Apache-2.0
//
// Acceptor: takes the connections of a listening socket for as long as it lives. Not who decides
// about them. In a process that has no descriptor left it gives up one that it keeps for that case,
// so that who comes is told and not left waiting; whatever else goes wrong, it pauses, because the
// queue stays ready. Confined to the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "peerlane/core/log_limit.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class Acceptor {
 public:
  // Neither may destroy the acceptor.
  struct Events {
    std::function<void(Fd)> connection;
    // Somebody who cannot be kept, and is closed when this returns: a last chance to say why. May
    // be null.
    std::function<void(int)> turnedAway{};
  };

  // `name`: the listener, for the log. `loop` outlives the acceptor.
  static Result<std::unique_ptr<Acceptor>> create(EventLoop& loop, Fd listener, std::string name,
                                                  Events events);
  int socket() const { return listener_.get(); }

 private:
  // Bounded, so that those who come do not starve those who are there.
  static constexpr int kAtOnce = 64;
  static constexpr std::chrono::milliseconds kPause{100};

  Acceptor(EventLoop& loop, Fd listener, std::string name, Events events);
  void onReady();
  // Takes the next one by the descriptor kept back, and lets him go. Errors: kTryAgain (nobody
  // waits), kUnavailable (no descriptor all the same).
  Status turnAway();
  void pause();

  EventLoop& loop_;
  Fd listener_;
  const std::string name_;
  const Events events_;
  Fd reserve_;  // any open file
  LogLimit lines_;
  Timer pause_;
  Watch watch_;
};

}  // namespace peerlane
