// SPDX-License-Identifier: Apache-2.0
//
// SlabPair: the slab that this side keeps for the peer, and the one that the peer keeps for this
// side (peer_slab.h). Owned by PeerCore. The progress thread makes the first and adopts the second;
// both are constant once the peer is ready, and may then be used by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/memory/import_cache.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/os/fd.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class SlabPair {
 public:
  // Of notifications: written by their inbox, which is not made before somebody asks for one.
  struct InboxCounts {
    std::atomic<uint64_t> passed{0};   // numbers that have left the slab
    std::atomic<uint64_t> waiting{0};  // of them, not yet given to the user
  };

  SlabPair(PeerEnvironment& env, LinkSet& links) : env_(env), links_(links) {}

  // Any thread, once the peer was ready.
  std::byte* own() const { return own_->base; }
  // The peer's: its gate, whatever link reaches it.
  const std::shared_ptr<ImportedRegion>& peers() const { return peers_; }
  // The peer's over the link that carries words now.
  const RemoteMemory& peersMemory() const { return *current_.load(std::memory_order_acquire); }
  InboxCounts& inboxCounts() { return inboxCounts_; }
  // One line for the notifications that came and nobody took; empty where there are none.
  std::string untaken() const;

  // The descriptor of a slab's memory and the offset of the slab in it; -1 where the slab is not
  // mapped.
  struct Backing {
    int fd;
    uint64_t offset;
  };
  Backing ownBacking() const { return {own_->memory.backing.get(), own_->memory.fdOffset}; }
  // Kept where this side has devices.
  Backing peersBacking() const { return {peersFd_.get(), peersOffset_}; }

  // --- Progress thread ---
  // The peer's has come over each link that carries words, and this side's was made.
  bool areThere() const;
  // This side's, once.
  Status make();
  // Grants it to the peer over a link that carries words, for takeGranted(). Errors: the link's,
  // which is then not to be used. Requires: make().
  Status grantOver(Link& link);
  const RegionRecord& ownRecord() const { return *own_; }
  std::vector<std::pair<Link*, LinkPart>> takeGranted() { return std::exchange(granted_, {}); }
  Status adopt(const control::ImportReply& message);
  // Another link carries words from now on.
  void changeLink();
  // No transfer that begins from now on uses the peer's.
  void closeGate() {
    if (peers_) peers_->gate.close();
  }
  // Nobody uses them any more. Any thread; before the link that made the mapping goes.
  void end();

 private:
  PeerEnvironment& env_;
  LinkSet& links_;
  std::shared_ptr<RegionRecord> own_;
  std::shared_ptr<ImportedRegion> peers_;
  std::vector<std::pair<Link*, LinkPart>> granted_;      // of this side's, not sent yet
  std::vector<std::unique_ptr<RemoteMemory>> memories_;  // over each link that carries words
  // The one of LinkSet::words(): release by the progress thread, acquire by all.
  std::atomic<const RemoteMemory*> current_{nullptr};
  Fd peersFd_;
  uint64_t peersOffset_ = 0;
  InboxCounts inboxCounts_;
};

}  // namespace peerlane
