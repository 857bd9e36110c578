// SPDX-License-Identifier: Apache-2.0
//
// Link: a wire to one peer, and the only thing that knows how bytes get there. A link is either
// *mapped* (it gives addresses, and the program's own loads and stores are the transfer) or an
// *agent* (it performs mailbox entries), and may be both, region by region.
//
// Two processes, one put: the owner registers memory, and its link says with grant() what a peer
// must know to reach it. The importer's link turns that into a RemoteMemory with attach(). If that
// is mapped, the executor copies; if not, the executor fills a mailbox entry and serve() performs
// it. detach() ends it.
//
// Threads: grant, attach and close are the progress thread's. poll() belongs to whoever holds the
// progress turn, a user thread that waits or the progress thread, never two at once; it may run
// beside the others, close() included. serve(), health() and traits() may be called by any thread
// at any time. So may detach(), once per region: while the peer is there it is the progress thread
// that calls it, afterwards whoever drops the last handle, who may destroy the link as well. Links
// take locks of their own where these meet, and call `workArrived` under none.
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
  bool mapsRegions = false;  // memory that can be shared is mapped, and no agent is needed for it
  // The peer writes memory of this side by itself, once it was granted some: that is free when the
  // peer has said so, or its end is proven. False: only agents of this side write.
  bool peerWritesAlone = true;
  std::string transport;  // "self", "shm", "tcp"
  std::string
      agentEngine;  // who performs mailbox entries here: "cma", "ring", "socket"; empty if nobody
  std::string wordsBy;  // "mapped" or "agent": how counters of the peer are written
  std::string
      rightsEnforcedBy;  // "owner" or "initiator": what really guards a region's access rights
  std::vector<std::string>
      refused;  // alternatives not taken, each with the reason ("cma: EPERM (...)")
  // Memory of GPUs: why cudaMalloc memory of the peer cannot be opened here, where only others of
  // its kinds can; empty where all can.
  std::string legacyRefused{};
  std::string fabricRefused{};  // the same of memory that travels by fabric handle
  bool isFallback = false;      // one of these would have been better, and nobody had excluded it
  std::string readOnlyEnforcedBy{};  // of memory sealed against writers, where it differs
  Waker waker;  // of the peer: to be rung after a mapped word was stored there; may be empty
};

// What an owner gives out for one region; `fd` is set when the descriptor must travel beside the
// grant.
struct Grant {
  RegionGrant region;
  Fd fd;
};

class Link : public Agent {
 public:
  virtual const LinkTraits& traits() const = 0;

  // Owner's side. What the peer needs to reach [base, base + bytes). `backing` is the descriptor
  // behind the memory, or an invalid Fd for private memory; fdOffset says where the region starts
  // in it.
  virtual Result<Grant> grant(RegionGrant region, const Fd& backing) = 0;

  // Owner's side, for memory in chunks alone (memory_kind.h), whose handles do not travel with the
  // grant: those of `count` chunks from `first` on. Errors: kNotSupported (no such memory here),
  // kClosed (a chunk was freed), kSystem, kUnavailable.
  virtual Result<std::vector<VmmHandle>> exportChunks(const RegionGrant& /*region*/,
                                                      uint64_t /*first*/, uint32_t /*count*/) {
    return Status(Code::kNotSupported, "memory in chunks, which this link does not carry");
  }

  // Importer's side. Checks and maps (or merely notes) a granted region. Nothing of the peer is
  // touched yet.
  virtual Result<RemoteMemory> attach(Grant grant) = 0;
  // Nobody uses `memory` any more; its mapping goes.
  virtual void detach(RemoteMemory& memory) = 0;

  // Moves what arrived or waits to leave, without blocking. True when something moved.
  virtual bool poll() = 0;

  // OK while the wire works. The first failure is sticky.
  virtual Status health() const = 0;

  // Ends everything handed out with `code`, once each; later serve() calls fail with it.
  // Idempotent.
  virtual void close(Code code) = 0;
};

}  // namespace peerlane
