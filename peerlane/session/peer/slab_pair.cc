// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/slab_pair.h"

#include <utility>

#include "peerlane/memory/library_memory.h"
#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/wire/grant_message.h"

namespace peerlane {

Result<const RegionRecord*> SlabPair::make() {
  PEERLANE_ASSIGN(own_, makeLibraryMemory(env_.around.regions, slab::kBytes));
  return own_.get();
}

Status SlabPair::adopt(const control::ImportReply& message) {
  if (peers_ || !links_.isMade()) return Status(Code::kCorrupt, "the peer's slab came out of turn");
  if (message.bytes < slab::kBytes)
    return Status(Code::kCorrupt, "the peer's slab has " + std::to_string(message.bytes) +
                                      " bytes; need " + std::to_string(slab::kBytes));
  PEERLANE_ASSIGN(Grant grant, grantIn(message, *env_.connection));
  if (isCuda(grant.region.kind))
    return Status(Code::kCorrupt, "the peer's slab lies in GPU memory");
  if (!env_.around.devices.empty() && grant.fd) {
    PEERLANE_ASSIGN(peersFd_, grant.fd.dup());
    peersOffset_ = grant.region.fdOffset;
  }
  PEERLANE_ASSIGN(RemoteMemory memory, links_.host().attach(std::move(grant)));
  peers_ = std::make_shared<ImportedRegion>();
  peers_->memory = std::move(memory);
  return Status::ok();
}

void SlabPair::end() {
  if (own_) env_.around.regions.remove(own_->allocation);
  if (peers_ && links_.isMade()) links_.host().detach(peers_->memory);
}

std::string SlabPair::untaken() const {
  uint64_t notifications = inboxCounts_.waiting.load(std::memory_order_relaxed);
  const uint64_t passed = inboxCounts_.passed.load(std::memory_order_acquire);
  uint64_t inSlab = 0;
  for (; inSlab < slab::kNotifySlots; ++inSlab) {
    const std::byte* slot = own() + slab::kInboxOffset +
                            (passed + inSlab) % slab::kNotifySlots * slab::kInboxStrideBytes;
    if (loadWord(slot, Width::k64) != passed + inSlab + 1) break;
  }
  notifications += inSlab;
  if (notifications == 0) return {};
  return std::to_string(notifications) +
         " notifications not taken (pollNotification, waitNotification)" +
         (inSlab == slab::kNotifySlots ? "; the peer's next one waits" : "");
}

}  // namespace peerlane
