// SPDX-License-Identifier: Apache-2.0
//
// Peer: one other context, connected. A cheap handle; copies name the same connection, which lasts
// until close(), the peer's end, or the end of the context. RemoteRegion: one region of a peer.
// Thread-safe. put, get, plans and signals on peers are in peerlane/channel.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/session/peer/route.h"

namespace peerlane {

class PeerCore;
struct ImportSlot;

// What a RegionReference (Region::share) becomes on the other side. Nothing is asked of the owner
// before first use or prepare(); then the region is imported once, however many handles name it,
// and released with the last one.
class RemoteRegion {
 public:
  RemoteRegion() = default;

  explicit operator bool() const { return slot_ != nullptr; }
  uint64_t bytes() const { return reference_.bytes; }
  Access access() const { return reference_.access; }

  // Imports now, all of it, so that no later post has to wait for it. Errors: kInvalidArgument (the
  // owner does not know the region any more), kPermissionDenied, kPeerLost, kPeerSilent (once it is
  // heard again the region can be imported), kTimeout.
  Status prepare(std::chrono::nanoseconds timeout = std::chrono::seconds(10)) const;
  // "mapped", "cma", "ring", "socket": who copies; empty before it is imported.
  std::string engine() const;
  // What guards the rights that the owner gave: "owner" (its descriptors, or its own copying) or
  // "initiator" (nothing but this library, here); empty before it is imported.
  std::string rightsEnforcedBy() const;
  // For people: the engine, and of GPU memory in several chunks, how many are mapped here.
  std::string description() const;

  const RegionReference& reference() const { return reference_; }
  const std::shared_ptr<PeerCore>& peer() const { return peer_; }
  const std::shared_ptr<ImportSlot>& slot() const { return slot_; }

 private:
  friend class Peer;
  RegionReference reference_;
  std::shared_ptr<PeerCore> peer_;
  std::shared_ptr<ImportSlot> slot_;
};

class Peer {
 public:
  Peer() = default;
  explicit Peer(std::shared_ptr<PeerCore> core) : core_(std::move(core)) {}

  // An empty handle names nobody: calls that return a status refuse it with kInvalidArgument, the
  // rest answer "", 0 or an empty Route.
  explicit operator bool() const { return core_ != nullptr; }
  // 32 hexadecimal digits; the same in every process.
  std::string contextId() const;
  // "connecting", "ready", "silent", "lost" or "closed".
  std::string state() const;
  // OK while transfers can be posted; else kPeerLost, kPeerSilent or kClosed with the reason.
  Status status() const;
  // Since when nothing has been heard of it; an idle peer says something every PEERLANE_HEARTBEAT.
  // None: it is lost or closed.
  std::optional<std::chrono::nanoseconds> silentFor() const;
  // The process at the other end, 0 when it is on another host or in an unrelated PID namespace.
  int processId() const;
  Route route() const;

  // Checks `reference` (the 64 bytes of Region::share) and that this peer owns the region.
  // kCorrupt, kInvalidArgument. Asks nothing of the peer yet.
  Result<RemoteRegion> importRegion(std::span<const std::byte> reference) const;

  // Small messages between the two programs, for set-up (region references and the like): at most
  // limits::kMessageBytes (4 KiB), ordered per channel, numbers below 2^31 are the user's. They
  // pass through the progress threads: not a data path.
  //
  // Of one channel limits::kMessagesPerChannel (64) wait until the peer's program receives them, of
  // all channels limits::kMessagesPerPeer (1024). Beyond: kTryAgain, or, where a timeout is given,
  // kTimeout when there is no room by then. Once it returned OK the peer can receive the message
  // also when this side has closed the connection, destroyed its context or called exit(), which
  // wait up to 2 s for that (Peer::close does not wait); of a process that was killed, what the
  // kernel had taken.
  Status sendMessage(uint32_t channel, std::span<const std::byte> content,
                     std::chrono::nanoseconds timeout = std::chrono::nanoseconds(0)) const;
  // The next one. Those that came are handed out first, whatever has become of the peer: then
  // kPeerLost, kPeerSilent, kClosed; kTimeout.
  Result<std::vector<std::byte>> receiveMessage(uint32_t channel,
                                                std::chrono::nanoseconds timeout) const;
  // A descriptor that is readable while a message waits on `channel`, or the peer is silent or
  // gone; read nothing from it, receive with a timeout of 0 until that fails. Lifetime: the
  // connection's.
  Result<int> messageFd(uint32_t channel) const;

  // Ends the connection; everything pending ends with kClosed, at the peer with kPeerLost.
  void close() const;

  const std::shared_ptr<PeerCore>& core() const { return core_; }

 private:
  std::shared_ptr<PeerCore> core_;
};

}  // namespace peerlane
