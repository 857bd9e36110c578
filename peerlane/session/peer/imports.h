// SPDX-License-Identifier: Apache-2.0
//
// Imports: the regions of one peer that are imported here. Each is asked for once over the control
// connection, however many handles name it, and released with the last one; where links over
// several devices reach it, once for each of them that is of use. Owned by PeerCore.
// Thread-safe, but for the functions that are named as the
// progress thread's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "peerlane/core/counted_map.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/import_cache.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/session/peer/chunk_imports.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

// The place where an import ends up, shared by all handles on one remote region.
struct ImportSlot {
  enum class State : uint8_t { kNone, kPending, kReady, kFailed };
  uint64_t bytes = 0;  // what the reference says, 0: unknown; constant once shared, as the next
  // Its user asks for chunks (Imports::reaches). Else all are there when it is ready.
  bool inChunks = false;
  std::atomic<State> state{State::kNone};  // release by the progress thread, acquire by posters
  std::shared_ptr<ImportedRegion> region;  // written before kReady
  Status failure;                          // written before kFailed

  // The slot that counts: `slot`, or, where the link of its region has failed, the one in which the
  // region is imported anew. Any thread.
  static const std::shared_ptr<ImportSlot>& current(const std::shared_ptr<ImportSlot>& slot) {
    const std::shared_ptr<ImportSlot>* at = &slot;
    while ((*at)->state.load(std::memory_order_acquire) == State::kReady &&
           (*at)->region->isLeft.load(std::memory_order_acquire))
      [[unlikely]] at = &(*at)->successor();
    return *at;
  }
  // The same for `link`, which is one of several that only their devices tell apart, and each of
  // which has a slot of its own. Null: there are no such links.
  static const std::shared_ptr<ImportSlot>& current(const std::shared_ptr<ImportSlot>& slot,
                                                    const Link* link) {
    const std::shared_ptr<ImportSlot>* at = &current(slot);
    while (link != nullptr && !(*at)->isFor(*link)) at = &current((*at)->sister());
    return *at;
  }
  // The link over which it is to be imported, if that is there when it is asked for; null: the best
  // one, and constant otherwise.
  const Link* wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // Makes it `link`, where it is none yet.
  bool isFor(const Link& link) {
    const Link* known = wanted();
    return known == &link ||
           (known == nullptr && (wanted_.compare_exchange_strong(known, &link) || known == &link));
  }

 private:
  const std::shared_ptr<ImportSlot>& successor() { return made(next_); }
  const std::shared_ptr<ImportSlot>& sister() { return made(sister_); }
  const std::shared_ptr<ImportSlot>& made(std::shared_ptr<ImportSlot>& slot);

  std::atomic<const Link*> wanted_{nullptr};
  Mutex mutex_;
  // Each is made under the lock, and constant then.
  std::shared_ptr<ImportSlot> next_;
  std::shared_ptr<ImportSlot> sister_;
};

// Why a GPU's memory is not imported although the link's agent reaches others of its kind: the
// owner's device does not take it. Transfers are staged then. Empty: it is imported, or was not
// asked for, or failed otherwise.
std::string whyNotGranted(const RegionReference& reference, const ImportSlot& slot,
                          const LinkSet& links);

class Imports {
 public:
  Imports(PeerEnvironment& env, LinkSet& links);

  // Brings `slot` from kNone to kReady or kFailed, sooner or later: of a silent peer when it is
  // heard again, or gone. One call per slot does the work.
  void request(const RegionReference& reference, const std::shared_ptr<ImportSlot>& slot);
  // Asks for chunks of an imported region (RemoteMemory::chunks): those that ChunkMap::ask() gave
  // to the caller. Waiters are told when some have come or will not come.
  void requestChunks(const std::shared_ptr<ImportedRegion>& region,
                     std::vector<ChunkMap::Range> ranges) {
    chunks_.request(region, std::move(ranges));
  }
  // All of [offset, +bytes) of an imported region can be reached. Else the missing chunks are
  // asked for.
  bool reaches(const std::shared_ptr<ImportedRegion>& region, uint64_t offset, uint64_t bytes);

  // --- Progress thread ---
  // The links are made.
  void open();
  bool isOpen() const { return cache_ != nullptr; }
  // Of the next four: the region itself is looked up by any thread, once it is open. By each link
  // that attached it.
  std::vector<std::shared_ptr<ImportedRegion>> all(uint64_t allocation, uint64_t generation) const {
    return cache_->all(allocation, generation);
  }
  bool isDetaching(uint64_t allocation, uint64_t generation) const {
    return cache_->isDetaching(allocation, generation);
  }
  // A region whose owner must not go on before it is given back, and is not.
  bool isAnyHeldDetaching() const { return cache_->isAnyHeldDetaching(); }
  std::vector<std::shared_ptr<ImportedRegion>> all() const { return cache_->all(); }

  Status handle(control::ImportReply& message);
  Status handle(control::ChunkReply& message) { return chunks_.handle(message); }
  // The peer is lost or closed: no transfer that begins from now on uses an imported region, and
  // requests end with the peer's failure.
  void fail();
  // The link failed: its regions are imported anew, over another one, when they are used next.
  void leave(const Link& link) {
    if (cache_) cache_->leave(&link);
  }

 private:
  struct Asked {
    RegionReference reference;
    const Link* wanted;              // as the slots say
    std::vector<std::string> links;  // over which it may come, best first
    std::vector<std::shared_ptr<ImportSlot>> slots;
  };
  // Of what is asked for: allocation, generation, and the link as the slots say.
  using Key = std::tuple<uint64_t, uint64_t, const Link*>;
  static Key keyOf(const RegionReference& reference, const Link* wanted) {
    return {reference.allocation, reference.generation, wanted};
  }
  struct QueuedRequest {
    RegionReference reference;
    std::shared_ptr<ImportSlot> slot;
  };
  // Regions that wait for all of their chunks, and the slots that wait for them.
  struct WholeImport {
    std::shared_ptr<ImportedRegion> region;
    std::vector<std::shared_ptr<ImportSlot>> slots;
  };
  void startNew();
  void start(const RegionReference& reference, const std::shared_ptr<ImportSlot>& slot);
  std::vector<std::string> linksFor(const RegionReference& reference, const Link* wanted) const;
  void ask(Asked asked);
  Status answered(Asked asked, const control::ImportReply& message);
  Status release(const RegionReference& reference);
  void done(const std::shared_ptr<ImportSlot>& slot,
            Result<std::shared_ptr<ImportedRegion>> result);
  void settleWhole(const ImportedRegion* region);
  void drop(std::shared_ptr<ImportedRegion> region);
  void forgetDropped();
  void forget(ImportedRegion& region);

  PeerEnvironment& env_;
  LinkSet& links_;
  ChunkImports chunks_;
  std::unique_ptr<ImportCache> cache_;  // constant once the peer is ready
  // Of many that come together the progress thread is told once: when the first one comes.
  Mutex newMutex_;
  std::vector<QueuedRequest> new_ PEERLANE_GUARDED_BY(newMutex_);
  std::vector<std::shared_ptr<ImportedRegion>> dropped_ PEERLANE_GUARDED_BY(newMutex_);
  // Progress thread.
  CountedMap<uint64_t, Asked> asked_;   // by request
  CountedMap<Key, uint64_t> requests_;  // of asked_
  std::deque<QueuedRequest> queued_;    // not asked for yet: enough are under way
  CountedMap<const ImportedRegion*, WholeImport> whole_;
};

}  // namespace peerlane
