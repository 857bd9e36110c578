// SPDX-License-Identifier: Apache-2.0
//
// Transport: makes links of one kind. The two sides exchange one offer each over the authenticated
// control connection; descriptors travel with the offer where that connection is a Unix socket.
// Confined to the progress thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/key_bytes.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/host_identity.h"
#include "peerlane/os/readiness_set.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/program/model/bell.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/link.h"

namespace peerlane::cpu {
class CopyTeam;
}

namespace peerlane {

class LinkLine;

// The facts that a transport may know about the other side before it makes an offer or a link. All
// of it comes from the operating system or the authenticated handshake, nothing from a message of
// the peer.
struct PeerFacts {
  bool sameProcess = false;
  bool unixSocket =
      false;  // the control connection is a Unix socket: credentials hold, descriptors travel
  HostRelation host = HostRelation::kUnknown;  // by the handshake; for words alone, never for trust
  bool initiator = false;                      // this side dialled
  PeerCredentials credentials;                 // valid if unixSocket
  uint64_t life = 0;                           // of the peer's context: a random number
  int pidFd = -1;               // of the peer's process, -1 if none; borrowed, outlives the link
  SocketAddress localAddress;   // of the control connection, this end
  SocketAddress remoteAddress;  // and the other
  // From the handshake: both sides have it and nobody else, and no other connection has the same.
  KeyBytes linkKey;
};

// Every link gets these from the context that makes it. All references outlive the link. The line
// is the one of the link that prepare() is called for.
struct LinkSurroundings {
  const Config& config;
  EventLoop& loop;
  ReadinessSet& readiness;            // for the descriptors over which its links receive data
  const Bell& bell;                   // of this context; peers ring it
  RegionDirectory& regions;           // for agents that serve the peer's requests
  std::function<void()> workArrived;  // to be called when serve() of some mailbox may go on
  std::function<void()> woken{};      // to be called when a peer's wake has come
  cpu::CopyTeam* copyTeam = nullptr;  // threads that help with large copies; null: none
  FrameFeatures peerKnows{};          // of what frames may say
  // To the other end of this link; null: the peer is of an earlier version that knows none, so
  // whatever needs one is done without.
  std::shared_ptr<LinkLine> line{};
};

struct Offer {
  std::vector<std::byte> blob;  // at most 4 KiB, opaque to everybody else
  std::vector<Fd> fds;          // at most 4
};

// One side of a link under construction: it has made its offer and waits for the peer's.
class PendingLink {
 public:
  virtual ~PendingLink() = default;
  virtual Offer takeOffer() = 0;
  // Requires: called once. The error says why this transport cannot be used between the two.
  // kInvalidArgument: by a setting of one of them, and the sentence says whose, and the cure.
  virtual Result<std::unique_ptr<Link>> complete(Offer peerOffer) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // The name by which settings allow it. Transports of one family share it: each makes links over
  // another device (link_rails.h).
  virtual std::string_view family() const { return name(); }
  virtual LinkScope scope() const = 0;
  // All abilities that a link of it may have. A link is not made where others, which fail only with
  // the peer's process, attach all that it attaches.
  virtual LinkAbilities abilities() const = 0;
  // Called twice a second: the transport may release resources that it keeps for later connections
  // and that none has used.
  virtual void sweep() {}
  // kNotSupported with the reason when the facts alone exclude it (unix_reach.h has one).
  // kInvalidArgument, kOutOfMemory: a setting asks for what is not there, or memory is short, which
  // PEERLANE_STRICT makes an error. kUnavailable: a shortage that passes.
  virtual Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                                       const LinkSurroundings& surroundings) = 0;
};

}  // namespace peerlane
