// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/slab_pair.h"

#include <algorithm>
#include <utility>

#include "peerlane/memory/library_memory.h"
#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/wire/grant_message.h"

namespace peerlane {

Status SlabPair::make() {
  if (own_) return Status::ok();
  PEERLANE_ASSIGN(own_, makeLibraryMemory(env_.around.regions, slab::kBytes));
  return Status::ok();
}

Status SlabPair::grantOver(Link& link) {
  PEERLANE_ASSIGN(LinkPart part, link.grant(*own_));
  granted_.emplace_back(&link, std::move(part));
  return Status::ok();
}

Status SlabPair::adopt(const control::ImportReply& message) {
  const Link* const link = links_.named(message.link);
  if (!links_.isMade() || (link == nullptr && !links_.isRefused(message.link)))
    return Status(Code::kCorrupt, "the peer's slab came out of turn");
  if (message.bytes < slab::kBytes)
    return Status(Code::kCorrupt, "the peer's slab has " + std::to_string(message.bytes) +
                                      " bytes; need " + std::to_string(slab::kBytes));
  PEERLANE_ASSIGN(Grant grant, grantIn(message, *env_.connection));
  // This side could not make that link, or has given it up.
  if (link == nullptr || !links_.isLive(*link)) return Status::ok();
  for (const auto& known : memories_)
    if (known->agent == link) return Status(Code::kCorrupt, "the peer's slab came twice");
  if (grant.region.kind.place != MemoryPlace::kHost)
    return Status(Code::kCorrupt, "the peer's slab is " + grant.region.kind.name());
  PEERLANE_ASSIGN(RemoteMemory memory, links_.attach(message.link, std::move(grant)));
  if (!env_.around.devices.empty() && memory.file && !peersFd_) {
    PEERLANE_ASSIGN(peersFd_, memory.file->dup());
    peersOffset_ = memory.fileOffset;
  }
  if (!peers_) {
    peers_ = std::make_shared<ImportedRegion>();
    peers_->memory.grant = memory.grant;
  }
  memories_.push_back(std::make_unique<RemoteMemory>(std::move(memory)));
  changeLink();
  return Status::ok();
}

bool SlabPair::areThere() const {
  if (!own_) return false;
  const auto live = links_.live();
  return std::all_of(live.begin(), live.end(), [this](const Link* link) {
    return !link->traits().carriesWords() ||
           std::any_of(memories_.begin(), memories_.end(),
                       [&](const auto& memory) { return memory->agent == link; });
  });
}

void SlabPair::changeLink() {
  for (const auto& memory : memories_)
    if (memory->agent == &links_.words()) current_.store(memory.get(), std::memory_order_release);
}

void SlabPair::end() {
  if (own_) env_.around.regions.remove(own_->allocation);
  for (const auto& memory : memories_) links_.of(*memory).detach(*memory);
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
