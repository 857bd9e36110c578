// SPDX-License-Identifier: Apache-2.0
//
// RemoteProcess: the process at the other end of a connection: its identity from the handshake, the
// facts that the operating system knows of it, and the proof of its end. Owned by PeerCore. The
// progress thread changes it; identity and facts are constant once the peer is ready, and may then
// be read by any thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>

#include "peerlane/memory/region_reference.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/session/peer/absentees.h"
#include "peerlane/session/wire/control_connection.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class RemoteProcess {
 public:
  const PeerIdentity& identity() const { return identity_; }
  const PeerFacts& facts() const { return facts_; }
  FrameFeatures knownOfFrames() const {
    return {.revoked = (identity_.features & feature::kRevoked) != 0,
            .trailers = (identity_.features & feature::kTrailers) != 0,
            .lending = (identity_.features & feature::kLending) != 0};
  }
  bool knowsLinkMessages() const { return (identity_.features & feature::kLinkMessages) != 0; }
  bool knowsHeard() const { return (identity_.features & feature::kHeard) != 0; }
  pid_t id() const { return facts_.credentials.pid; }
  // The peer says that it is on this host. A hint for finding a better way, never for trusting it.
  bool sameHostByClaim() const { return facts_.host == HostRelation::kSameNetwork; }
  // A reference to a region of this peer for Imports::request(), with all rights; no more is
  // checked here.
  RegionReference referenceTo(uint64_t allocation, uint64_t generation, uint64_t bytes) const;
  // " (process 1234)", " (10.0.0.2:4000)", or nothing where neither is known.
  std::string place() const;

  // --- Progress thread ---
  void meet(const PeerIdentity& identity, ControlConnection& connection, bool initiator);
  // Links have made their keys of it.
  void forgetLinkKey() { facts_.linkKey = KeyBytes(); }
  // Over a Unix socket: asks the kernel for the process, and watches it; `ended` is called when it
  // has ended. Errors: kPermissionDenied (another user), kPeerLost (it ended already), kUnavailable
  // (its end would not be noticed).
  Status watch(EventLoop& loop, const ControlConnection& connection, std::function<void()> ended);
  void stopWatching() { watch_ = Watch(); }
  // Once both sides have let each other in: looks at the memory of the process as well, which ends
  // earlier where that calls exec.
  void watchMemory();
  // Its end is proven.
  bool hasEnded() const { return proof_.given(); }
  ProofOfEnd takeProof() { return std::move(proof_); }

 private:
  Status watchProcess(EventLoop& loop, int socket, std::function<void()> ended);

  PeerIdentity identity_;
  PeerFacts facts_;
  ProofOfEnd proof_;
  Watch watch_;
};

}  // namespace peerlane
