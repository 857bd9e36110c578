// SPDX-License-Identifier: Apache-2.0
//
// Link: a wire to one peer, and the only thing that knows how bytes get there. A link is either
// *mapped* (it gives addresses, and the program's own loads and stores are the transfer) or an
// *agent* (it performs mailbox entries), and may be both, region by region.
//
// Two processes, one put: the owner registers memory, and grant() of its link returns the part of
// the grant that only the same link of the peer can read. attach() of the importer's link turns the
// grant into a RemoteMemory. If the RemoteMemory is mapped, the executor copies; if not, the
// executor fills a mailbox entry and serve() performs it. detach() ends the RemoteMemory.
//
// Threads: only the progress thread calls grant(), attach() and close(). Only the thread that has
// the turn of the progress engine (a waiting user thread or the progress thread, never two at once)
// calls poll(), which may run at the same time as the other calls, close() included. Any thread may
// call serve(), health() and traits() at any time, and detach() once per region: while the peer is
// connected the progress thread calls detach(); after that, the thread that drops the last handle
// does, and it may destroy the link as well. Links take locks of their own where these calls meet,
// and hold none of them when they call `workArrived`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/memory/region_table.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/fd.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/model/waker.h"
#include "peerlane/transport/link_abilities.h"
#include "peerlane/transport/link_rails.h"

namespace peerlane {

struct LinkTraits {
  std::string transport;  // its name, for people and for the messages between the two sides
  LinkScope scope = LinkScope::kHost;
  LinkAbilities abilities{};
  // Once a region was granted, the peer writes to this side's memory by itself: the memory is free
  // only when the peer has confirmed that it no longer uses it, or the peer's end is proven. False:
  // only agents of this side write.
  bool peerWritesAlone = true;
  std::string agentEngine{};  // the agent for mailbox entries, for people; empty: no agent
  // What protects bytes between the hosts, for people; empty: they leave no host.
  std::string protection{};
  uint32_t sockets = 0;  // to the peer's host, that may share a large transfer; 0: none
  // From where to where bytes go, for people: devices with ports and addresses; empty: nothing to
  // tell.
  std::string path{};
  // One of several links that only the distance of their devices from memory tells apart: `rail` is
  // its place in the table. Null: it is no such link.
  std::shared_ptr<const LinkRails> rails{};
  uint32_t rail = 0;
  // How memory is made known to the device, best first, for people, and why not in other ways; one
  // text for each kind of memory and way. Empty: it need not be.
  std::vector<std::string> registrations{};
  // Whether the agent copies to and from this memory of this side, of a kind that the abilities
  // name. Asked before a transfer; any thread. Errors: kNotSupported with the reason. Empty: it
  // does.
  std::function<Status(const RegionRecord&)> takes{};
  // Alternatives not taken, each with the reason ("cma: EPERM (...)").
  std::vector<std::string> refused{};
  bool isFallback = false;  // a refused one would have been better, and no setting excluded it
  // Of memory sealed against writers, where it differs.
  std::optional<Enforcer> readOnlyEnforcer{};
  Waker waker{};        // of the peer: to be rung after a store to its mapped words; may be empty
  Waker signalWaker{};  // the same after a store to one of its signals

  // Whether counters and other words of the peer are written over this link, and how.
  bool mapsWords() const { return abilities.can(MemoryKind::kShared, Ability::kMapsWords); }
  bool sendsWords() const { return abilities.can(MemoryKind::kShared, Ability::kSendsWords); }
  bool carriesWords() const { return mapsWords() || sendsWords(); }
};

class Link : public Agent {
 public:
  virtual const LinkTraits& traits() const = 0;

  // Owner's side: the part of a grant by which the peer's link reaches the region. Keys and
  // registrations are made once for all connections over the same wire (RegionRecord::exports).
  virtual Result<LinkPart> grant(const RegionRecord& region) = 0;

  // Owner's side, for memory in chunks alone (memory_kind.h), whose handles do not travel with the
  // grant: the handles of `count` chunks from `first` on. Errors: kNotSupported (no such memory
  // here), kClosed (a chunk was freed), kSystem, kUnavailable.
  virtual Result<std::vector<VmmHandle>> exportChunks(const RegionRecord& /*region*/,
                                                      uint64_t /*first*/, uint32_t /*count*/) {
    return Status(Code::kNotSupported, "memory in chunks, which this link does not carry");
  }

  // Importer's side. Checks and maps (or merely notes) a granted region. Touches no memory of the
  // peer yet. The caller sets RemoteMemory::agent.
  virtual Result<RemoteMemory> attach(Grant grant) = 0;
  // Ends the mapping of `memory`. Requires: `memory` has no user any more.
  virtual void detach(RemoteMemory& memory) = 0;

  // Moves bytes that arrived or that wait to be sent, without blocking. True when bytes moved.
  virtual bool poll() = 0;

  // OK while the wire works. kTryAgain: it is still being made, and `workArrived` is called when
  // that is over. kPeerSilent: the peer has taken nothing for PEERLANE_PEER_TIMEOUT, and may again.
  // Any other is a failure, and the first one is sticky.
  virtual Status health() const = 0;

  // Ends all works taken with `code`, once each; later serve() calls fail with it. Idempotent.
  virtual void close(Code code) = 0;
};

}  // namespace peerlane
