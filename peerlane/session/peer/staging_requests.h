// SPDX-License-Identifier: Apache-2.0
//
// StagingRequests: what the two sides of a connection ask of each other for bytes that cannot go
// straight: staging memory, and copies between that and regions of GPUs. A poster asks for the
// peer's staging memory, moves the bytes between that and its own side by any link, and has the
// peer copy the rest of the way. Owned by PeerCore; confined to the progress thread, but for the
// functions that are named as any thread's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "peerlane/memory/region_reference.h"
#include "peerlane/memory/staging_memory.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class StagingRequests {
 public:
  StagingRequests(PeerEnvironment& env, const RemoteProcess& process, const LinkSet& links)
      : env_(env), process_(process), links_(links) {}

  // --- Any thread ---
  // Staging memory of the peer's, to be imported. `done` is called once, on the progress thread.
  void askForMemory(uint64_t bytes, std::function<void(Result<RegionReference>)> done);
  // Has the peer copy between that and regions of its GPUs. `done`: as above, when nothing of it
  // touches memory any more, or the peer is lost. `move.request` is filled in.
  void askForMove(control::StagedMove move, std::function<void(Status)> done);
  // Staging memory of this side, for the life of this peer.
  Result<std::shared_ptr<StagingMemory>> makeMemory(uint64_t bytes) const;

  // --- Progress thread ---
  Status handle(control::StagingRequest& message);
  Status handle(control::StagingReply& message);
  Status handle(control::StagedMove& message);
  Status handle(control::StagedMoveDone& message);
  // The peer is lost or closed: requests end with its failure.
  void fail();

 private:
  Status makeMemoryForPeer(uint64_t bytes);
  Status sendDone(uint64_t request, const Status& status);

  PeerEnvironment& env_;
  const RemoteProcess& process_;
  const LinkSet& links_;
  std::shared_ptr<StagingMemory> forPeer_;
  // Asked of the peer, by request.
  std::map<uint64_t, std::function<void(Result<RegionReference>)>> memoryAsked_;
  std::map<uint64_t, std::function<void(Status)>> movesAsked_;
};

}  // namespace peerlane
