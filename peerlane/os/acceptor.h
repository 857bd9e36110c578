// SPDX-License-Identifier: Apache-2.0
//
// Acceptor: takes the connections of a listening socket for as long as it lives. It does not decide
// which of them may stay. In a process that has no descriptor left it gives up one that it keeps
// for that case, so that a client is told and not left waiting. After any other error it pauses,
// because the queue stays ready. Confined to the loop's thread.
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
    // A connection that cannot be kept. The acceptor closes it after this call, so this is the last
    // chance to write the reason. May be null.
    std::function<void(int)> turnedAway{};
  };

  // `name`: the listener, for the log. `loop` outlives the acceptor.
  static Result<std::unique_ptr<Acceptor>> create(EventLoop& loop, Fd listener, std::string name,
                                                  Events events);
  int socket() const { return listener_.get(); }

 private:
  // Bounded, so that new connections do not starve the existing ones.
  static constexpr int kAtOnce = 64;
  static constexpr std::chrono::milliseconds kPause{100};

  Acceptor(EventLoop& loop, Fd listener, std::string name, Events events);
  void onReady();
  // Takes the next connection by the reserve descriptor, and closes it. Errors: kTryAgain (no
  // connection waits), kUnavailable (there is no descriptor even so).
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
