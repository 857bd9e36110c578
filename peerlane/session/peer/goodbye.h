// SPDX-License-Identifier: Apache-2.0
//
// Goodbye: how a connection ends after the peer is lost or closed: until when messages are read,
// when this side says goodbye, and when the peer is forgotten. A goodbye says: nothing of this side
// touches your memory any more. So a copy that another thread is in the middle of delays it, and so
// does memory that has to be freed here before its owner frees it, though the owner may have said
// goodbye itself. And the regions that the peer imported are free only when its own goodbye, or its
// end, has come. Owned by PeerCore; confined to the progress thread, but for hasSaidAll().
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

#include "peerlane/os/event_loop.h"
#include "peerlane/session/peer/grants.h"
#include "peerlane/session/peer/imports.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/peer/revoked_imports.h"
#include "peerlane/session/peer/slab_pair.h"
#include "peerlane/session/peer/user_messages.h"

namespace peerlane {

class Goodbye {
 public:
  // The objects that end with the connection.
  struct Parts {
    RemoteProcess& process;
    const LinkSet& links;
    const SlabPair& slabs;
    const Imports& imports;
    RevokedImports& revoked;
    Grants& grants;
    UserMessages& messages;
  };
  // `gone` is called once, when the peer is forgotten and the kernel has all that was said to it.
  Goodbye(PeerEnvironment& env, Parts parts, std::function<void()> gone)
      : env_(env), parts_(parts), gone_(std::move(gone)) {}

  // Any thread. Closed, and the peer's kernel has all that was said; no transfer that was posted is
  // under way, and for 100 ms the goodbye was kept back by memory in use: it is lent, as to a port.
  bool hasSaidAll() const { return hasSaidAll_.load(std::memory_order_acquire); }

  // Nothing of the peer touches this side's memory any more: its goodbye came, or its end.
  void setLeft() { hasLeft_ = true; }
  bool hasLeft() const { return hasLeft_; }
  // Without a goodbye: the end of the control connection proves that nothing of the peer touches
  // this side's memory. It does not where the peer's process lives and writes by itself.
  bool isProven() const;

  // The peer is about to be lost or closed, which `state` says, for this reason. Messages end,
  // unless some may still come.
  void begin(PeerState state, const Status& reason);
  // All that was pending has ended: says goodbye once that is true, unless messages may still come.
  void go(const Status& reason) {
    if (!lastWords_.pending()) sendBye(reason);
  }
  // No message comes any more.
  void endMessages();
  // Neither side says any more: forgets the peer, unless this side's goodbye is still delayed.
  void end() {
    if (!delay_.pending()) forget();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void sendBye(const Status& reason);
  bool isMemoryInUse() const;
  void sendByeLater(const Status& reason);
  void forget();
  bool hasToWrite() const;
  void leave();
  void endRevocations();

  PeerEnvironment& env_;
  const Parts parts_;
  std::function<void()> gone_;
  Timer delay_;                    // of this side's goodbye, or of the end of what it wrote
  Timer lastWords_;                // messages of a peer whose link has ended may come until then
  Status reason_;                  // for its goodbye after that, without this side's number for it
  Clock::time_point busySince_{};  // the goodbye is kept back from then on
  Clock::time_point leaveBy_{};    // though the peer does not take what this side wrote
  bool hasLeft_ = false;
  bool isForgotten_ = false;
  std::atomic<bool> hasSaidAll_{false};  // written by the progress thread
};

}  // namespace peerlane
