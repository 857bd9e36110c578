// SPDX-License-Identifier: Apache-2.0
//
// Peer: one other context, connected. A cheap handle; copies name the same connection, which lasts
// until close(), the peer's end, or the end of the context. RemoteRegion: a handle of one region of
// a peer. Thread-safe. put, get, plans and signals on peers are in peerlane/channel.
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
#include "peerlane/memory/region.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/session/peer/route.h"

namespace peerlane {

class PeerCore;
struct ImportedRegion;
struct ImportSlot;

// A region of a peer, named by the region reference (remote key) that Region::share returned there.
// The library does not ask the owner before first use or prepare(). Then it imports the region
// once, however many handles name it, and releases the import with the last handle.
class RemoteRegion {
 public:
  RemoteRegion() = default;

  explicit operator bool() const { return slot_ != nullptr; }
  // Region::number() at its owner, by which errors name it: "region 7 of the peer". Regions of two
  // peers may have the same. 0 for an empty handle.
  uint64_t number() const { return reference_.allocation; }
  uint64_t bytes() const { return reference_.bytes; }
  Access access() const { return reference_.access; }

  // Imports all of the region now, so that no later post has to wait for that. Errors:
  // kInvalidArgument (the owner does not know the region any more), kPermissionDenied, kPeerLost,
  // kPeerSilent (call again once the peer is heard again), kTimeout.
  Status prepare(std::chrono::nanoseconds timeout = std::chrono::seconds(10)) const;
  // The engine that copies: "mapped", "cma", "ring" or "socket"; empty before the import.
  std::string engine() const;
  // The side that enforces the rights which the owner gave: "owner" (by its descriptors, or because
  // it copies itself) or "initiator" (only this library, in this process); empty before the import.
  std::string rightsEnforcedBy() const;
  // For people: the engine and, for GPU memory in several chunks, how many are mapped here.
  std::string description() const;

  const RegionReference& reference() const { return reference_; }
  const std::shared_ptr<PeerCore>& peer() const { return peer_; }
  // Where the import of this handle ends up. A post keeps the slot that it began with.
  const std::shared_ptr<ImportSlot>& slot() const { return slot_; }
  // The same region, to be used by what begins now: imported anew if the link of the import failed.
  RemoteRegion current() const;
  // The same for memory of this side: over the nearest of several NICs.
  RemoteRegion nearTo(const RegionRecord& local) const;
  // The import that a new post would use; null where there is none yet, or the region is staged.
  std::shared_ptr<ImportedRegion> imported() const;

 private:
  friend class Peer;
  friend Status prepareAll(std::span<const RemoteRegion> regions, std::chrono::nanoseconds timeout);
  void request() const;
  RegionReference reference_;
  std::shared_ptr<PeerCore> peer_;
  std::shared_ptr<ImportSlot> slot_;
};

// The same as RemoteRegion::prepare() for several regions, of one peer or more, all of which their
// owners are asked for before one is waited for. Errors: the first region's that has one; the
// others are imported nevertheless. kTimeout: some are not, and go on.
Status prepareAll(std::span<const RemoteRegion> regions,
                  std::chrono::nanoseconds timeout = std::chrono::seconds(10));

class Peer {
 public:
  Peer() = default;
  explicit Peer(std::shared_ptr<PeerCore> core) : core_(std::move(core)) {}

  // An empty handle names no peer: calls that return a status fail with kInvalidArgument, the
  // others return "", 0 or an empty Route.
  explicit operator bool() const { return core_ != nullptr; }
  // By which errors, the log and Context::dump() of this side name it: "peer 3". The other side has
  // a number of its own for this one.
  uint64_t number() const;
  // 32 hexadecimal digits; the same in every process.
  std::string contextId() const;
  // "connecting", "ready", "silent", "lost" or "closed".
  std::string state() const;
  // OK while transfers can be posted; else kPeerLost, kPeerSilent or kClosed with the number and
  // the reason.
  Status status() const;
  // How long ago this side last heard from the peer; an idle peer sends a heartbeat every
  // PEERLANE_HEARTBEAT. Empty: the peer is lost or closed.
  std::optional<std::chrono::nanoseconds> silentFor() const;
  // The process at the other end, 0 when it is on another host or in an unrelated PID namespace.
  int processId() const;
  Route route() const;
  // How bytes get between these two: as far as is known, before the region is imported, and as its
  // owner granted it afterwards. Empty for empty handles.
  MemoryRoute routeOf(const RemoteRegion& remote, const Region& local) const;

  // Checks `reference` (the 64 bytes of Region::share) and that this peer owns the region. Sends
  // nothing to the peer yet. Errors: kCorrupt, kInvalidArgument.
  Result<RemoteRegion> importRegion(std::span<const std::byte> reference) const;

  // Small messages between the two programs, for set-up (region references and the like): at most
  // limits::kMessageBytes (4 KiB), ordered per channel, channel numbers below 2^31 are the user's.
  // Messages pass through the progress threads: they are no data path.
  //
  // At most limits::kMessagesPerChannel (64) messages of one channel, and limits::kMessagesPerPeer
  // (1024) of all channels, may wait until the peer's program receives them. Beyond: kTryAgain or,
  // with a timeout, kTimeout if no room became free before its end. After OK the peer can receive
  // the message even if this side then closes the connection, destroys its context or calls exit();
  // the last two wait up to 2 s for that, Peer::close does not wait. If this process is killed, the
  // peer can receive the messages that the kernel had already taken.
  Status sendMessage(uint32_t channel, std::span<const std::byte> content,
                     std::chrono::nanoseconds timeout = std::chrono::nanoseconds(0)) const;
  // The next message. Messages that arrived are returned first, in any state of the peer; after
  // them kPeerLost, kPeerSilent or kClosed. Otherwise kTimeout.
  Result<std::vector<std::byte>> receiveMessage(uint32_t channel,
                                                std::chrono::nanoseconds timeout) const;
  // A descriptor that is readable while a message waits on `channel`, or while the peer is silent,
  // lost or closed. Do not read from it: call receiveMessage with a timeout of 0 until that fails.
  // Lifetime: the connection's.
  Result<int> messageFd(uint32_t channel) const;

  // Ends the connection. All pending operations end with kClosed, at the peer with kPeerLost.
  void close() const;

  const std::shared_ptr<PeerCore>& core() const { return core_; }

 private:
  std::shared_ptr<PeerCore> core_;
};

}  // namespace peerlane
