// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: the peers that connected to a context and that nobody has accepted yet, for who waits
// for something else as well (Context::arrivals). Not public. Thread-safe. Lifetime: the context's.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "peerlane/session/context/context.h"

namespace peerlane {

class Progress;

class Arrivals {
 public:
  // Takes no lock; whoever waits with Progress::wait is told of changes.
  bool any() const;
  std::optional<Peer> take();
  // It was for somebody else: accept() gives it again.
  void giveBack(const Peer& peer);
  // Called on the progress thread with each peer that connects from now on, before anybody can take
  // it; null: for none. The last one counts.
  void onEach(std::function<void(const Peer&)> callback);
  Progress& progress() const;
  // "; it can be reached at ...", and why the last guest was turned away: for timeouts.
  std::string whereInWords() const;

 private:
  friend class Context;
  explicit Arrivals(std::shared_ptr<Context::State> state) : state_(std::move(state)) {}
  std::shared_ptr<Context::State> state_;
};

}  // namespace peerlane
