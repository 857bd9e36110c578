// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_import.h"

#include <utility>

namespace peerlane {
namespace {

// Acquire in all looks at a slot: the progress thread wrote the region, or the failure, before the
// state that says so.
ImportSlot::State stateOf(const RemoteRegion& remote) {
  return remote.slot()->state.load(std::memory_order_acquire);
}

// Each block may lie anywhere.
bool isList(const CopyLayout& layout) {
  return layout.kind == CopyLayout::Kind::kScattered || layout.kind == CopyLayout::Kind::kNumbered;
}

}  // namespace

template <typename Visit>
void BlockImport::eachTouched(const BlockList& blocks, const Visit& visit) const {
  if (blocks.remotes.empty()) return;
  const CopyLayout& layout = blocks.layout;
  const bool isPut = blocks.isPut();
  if (isList(layout)) {
    for (const Touched& touched : kept_) visit(touched);
    layout.eachBlock([&](const Segment& block) {
      visit(
          Touched{blocks.remoteOf(block), isPut ? block.toOffset : block.fromOffset, block.bytes});
    });
    return;
  }
  const bool isIndexed = layout.kind == CopyLayout::Kind::kIndexed;
  const uint64_t stride = isPut ? layout.toStride : layout.fromStride;
  const uint64_t places = !isIndexed ? layout.count : (isPut ? layout.toLimit : layout.fromLimit);
  visit(Touched{0, isPut ? layout.first.toOffset : layout.first.fromOffset,
                (places - 1) * stride + layout.first.bytes});
}

// Chunks that are mapped stay so, so that a true answer needs no lock to last.
bool BlockImport::touchesOnlyMapped(const BlockList& blocks, size_t remote) const {
  const auto& chunks = blocks.remotes[remote].slot()->region->memory.chunks;
  if (!chunks || chunks->complete()) return true;
  bool all = true;
  eachTouched(blocks, [&](const Touched& touched) {
    all = all && (touched.remote != remote || chunks->covers(touched.offset, touched.bytes));
  });
  return all;
}

bool BlockImport::reaches(const BlockList& blocks, size_t remote) const {
  return stateOf(blocks.remotes[remote]) == ImportSlot::State::kReady &&
         touchesOnlyMapped(blocks, remote);
}

void BlockImport::keepTouched(const BlockList& blocks) {
  std::vector<Touched> touched;
  if (isList(blocks.layout))
    eachTouched(blocks, [&](const Touched& one) { touched.push_back(one); });
  kept_ = std::move(touched);
}

bool BlockImport::request(const BlockList& blocks, PeerCore& peer) {
  bool all = true;
  for (const RemoteRegion& remote : blocks.remotes) {
    const ImportSlot::State state = stateOf(remote);
    if (state == ImportSlot::State::kNone)
      peer.imports().request(remote.reference(), remote.slot());
    all = all && state == ImportSlot::State::kReady;
  }
  // Which chunks a region has is known only after its import.
  if (!all) return false;
  for (size_t i = 0; i < blocks.remotes.size(); ++i) {
    if (touchesOnlyMapped(blocks, i)) continue;
    all = false;
    if (asked_) continue;
    const std::shared_ptr<ImportedRegion>& region = blocks.remotes[i].slot()->region;
    std::vector<ChunkMap::Range> wanted;
    eachTouched(blocks, [&](const Touched& touched) {
      if (touched.remote != i) return;
      const auto missing = region->memory.chunks->ask(touched.offset, touched.bytes);
      wanted.insert(wanted.end(), missing.begin(), missing.end());
    });
    peer.imports().requestChunks(region, std::move(wanted));
  }
  asked_ = true;
  return all;
}

Status BlockImport::failure(const BlockList& blocks) const {
  for (const RemoteRegion& remote : blocks.remotes)
    if (stateOf(remote) == ImportSlot::State::kFailed) return remote.slot()->failure;
  Status failed;
  for (size_t i = 0; i < blocks.remotes.size(); ++i) {
    if (stateOf(blocks.remotes[i]) != ImportSlot::State::kReady) continue;
    const auto& chunks = blocks.remotes[i].slot()->region->memory.chunks;
    if (!chunks || !chunks->failed()) continue;
    eachTouched(blocks, [&](const Touched& touched) {
      if (touched.remote == i && failed.isOk())
        failed = chunks->failure(touched.offset, touched.bytes);
    });
  }
  return failed;
}

}  // namespace peerlane
