// SPDX-License-Identifier: Apache-2.0
//
// Link: a wire to one peer, and the only thing that knows how bytes get there. A link is either
// *mapped* (it gives addresses, and the program's own loads and stores are the transfer) or an
// *agent* (it performs mailbox entries), and may be both, region by region.
//
// Two processes, one put: the owner registers memory, and grant() of its link returns everything
// that a peer must know to reach it. attach() of the importer's link turns this grant into a
// RemoteMemory. If the RemoteMemory is mapped, the executor copies; if not, the executor fills a
// mailbox entry and serve() performs it. detach() ends the RemoteMemory.
//
// Threads: only the progress thread calls grant(), attach() and close(). Only the thread that has
// the turn of the progress engine (a waiting user thread or the progress thread, never two at once)
// calls poll(), which may run at the same time as the other calls, close() included. Any thread may
// call serve(), health() and traits() at any time, and detach() once per region: while the peer is
// connected the progress thread calls detach(); after that, the thread that drops the last handle
// does, and it may destroy the link as well. Links take locks of their own where these calls meet,
// and hold none of them when they call `workArrived`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/memory/remote_memory.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/fd.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/model/waker.h"

namespace peerlane {

struct LinkTraits {
  bool mapsRegions = false;  // shareable memory is mapped and needs no agent
  // Once a region was granted, the peer writes to this side's memory by itself: the memory is free
  // only when the peer has confirmed that it no longer uses it, or the peer's end is proven. False:
  // only agents of this side write.
  bool peerWritesAlone = true;
  std::string transport;  // "self", "shm", "tcp"
  std::string
      agentEngine;      // the agent for mailbox entries: "cma", "ring", "socket"; empty: no agent
  std::string wordsBy;  // "mapped" or "agent": how counters of the peer are written
  std::string
      rightsEnforcedBy;  // "owner" or "initiator": the side that enforces a region's access rights
  std::vector<std::string>
      refused;  // alternatives not taken, each with the reason ("cma: EPERM (...)")
  // Memory of GPUs: why this side cannot open cudaMalloc memory of the peer although it can open
  // other kinds. Empty: it can open all kinds.
  std::string legacyRefused{};
  std::string fabricRefused{};  // the same of memory that travels by fabric handle
  bool isFallback = false;      // a refused one would have been better, and no setting excluded it
  std::string readOnlyEnforcedBy{};  // for memory sealed against writers, where it differs
  Waker waker;          // of the peer: to be rung after a store to its mapped words; may be empty
  Waker signalWaker{};  // the same after a store to one of its signals
};

// The owner's answer to an import of one region. `fd` is set when a descriptor must travel in
// addition.
struct Grant {
  RegionGrant region;
  Fd fd;
};

class Link : public Agent {
 public:
  virtual const LinkTraits& traits() const = 0;

  // Owner's side. Completes `region` with everything that the peer needs to reach [base, base +
  // bytes). `backing` is the descriptor of the memory, or an invalid Fd for private memory;
  // fdOffset says where the region starts in it.
  virtual Result<Grant> grant(RegionGrant region, const Fd& backing) = 0;

  // Owner's side, for memory in chunks alone (memory_kind.h), whose handles do not travel with the
  // grant: the handles of `count` chunks from `first` on. Errors: kNotSupported (no such memory
  // here), kClosed (a chunk was freed), kSystem, kUnavailable.
  virtual Result<std::vector<VmmHandle>> exportChunks(const RegionGrant& /*region*/,
                                                      uint64_t /*first*/, uint32_t /*count*/) {
    return Status(Code::kNotSupported, "memory in chunks, which this link does not carry");
  }

  // Importer's side. Checks and maps (or merely notes) a granted region. Touches no memory of the
  // peer yet.
  virtual Result<RemoteMemory> attach(Grant grant) = 0;
  // Ends the mapping of `memory`. Requires: `memory` has no user any more.
  virtual void detach(RemoteMemory& memory) = 0;

  // Moves bytes that arrived or that wait to be sent, without blocking. True when bytes moved.
  virtual bool poll() = 0;

  // OK while the wire works. The first failure is sticky.
  virtual Status health() const = 0;

  // Ends all works taken with `code`, once each; later serve() calls fail with it. Idempotent.
  virtual void close(Code code) = 0;
};

}  // namespace peerlane
