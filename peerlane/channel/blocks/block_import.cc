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

// Of the regions whose chunks are not all mapped, each run of bytes that the blocks touch: one walk
// over the blocks, however many regions there are, and none where all chunks are mapped.
template <typename Visit>
void BlockImport::eachInChunks(const BlockList& blocks, const Visit& visit) const {
  std::vector<ChunkMap*> maps;  // by remote region; null: all of it is mapped
  for (size_t i = 0; const RemoteRegion& remote : blocks.remotes) {
    ChunkMap* const chunks = remote.slot()->region->memory.chunks.get();
    if (chunks != nullptr && !chunks->complete()) {
      maps.resize(blocks.remotes.size());
      maps[i] = chunks;
    }
    ++i;
  }
  if (maps.empty()) return;
  eachTouched(blocks, [&](const Touched& touched) {
    Steps::add(1);
    if (ChunkMap* const chunks = maps[touched.remote]; chunks != nullptr) visit(*chunks, touched);
  });
}

bool BlockImport::areReady(const BlockList& blocks) const {
  const size_t all = blocks.remotes.size();
  size_t ready = ready_.get();
  while (ready < all && stateOf(blocks.remotes[ready]) == ImportSlot::State::kReady) ++ready;
  ready_.set(ready);
  return ready == all;
}

// Chunks that are mapped stay so, so that a true answer needs no lock to last.
bool BlockImport::reaches(const BlockList& blocks) const {
  bool all = areReady(blocks);
  if (!all) return false;
  eachInChunks(blocks, [&all](const ChunkMap& chunks, const Touched& touched) {
    all = all && chunks.covers(touched.offset, touched.bytes);
  });
  return all;
}

void BlockImport::keepTouched(const BlockList& blocks) {
  std::vector<Touched> touched;
  if (isList(blocks.layout))
    eachTouched(blocks, [&](const Touched& one) { touched.push_back(one); });
  kept_ = std::move(touched);
}

bool BlockImport::request(const BlockList& blocks, PeerCore& peer) {
  if (!std::exchange(hasRequested_, true))
    for (const RemoteRegion& remote : blocks.remotes)
      if (stateOf(remote) == ImportSlot::State::kNone)
        peer.imports().request(remote.reference(), remote.slot());
  // Which chunks a region has is known only after its import.
  if (!areReady(blocks)) return false;
  if (reaches(blocks)) return true;
  if (!std::exchange(hasAsked_, true)) askForChunks(blocks, peer);
  return false;
}

void BlockImport::askForChunks(const BlockList& blocks, PeerCore& peer) {
  std::vector<std::vector<ChunkMap::Range>> wanted(blocks.remotes.size());
  eachInChunks(blocks, [&wanted](ChunkMap& chunks, const Touched& touched) {
    const auto missing = chunks.ask(touched.offset, touched.bytes);
    auto& ofRegion = wanted[touched.remote];
    ofRegion.insert(ofRegion.end(), missing.begin(), missing.end());
  });
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!wanted[i].empty())
      peer.imports().requestChunks(blocks.remotes[i].slot()->region, std::move(wanted[i]));
}

Status BlockImport::failure(const BlockList& blocks) const {
  if (!areReady(blocks)) {
    const RemoteRegion& first = blocks.remotes[ready_.get()];
    return stateOf(first) == ImportSlot::State::kFailed ? first.slot()->failure : Status::ok();
  }
  Status failed;
  eachInChunks(blocks, [&failed](const ChunkMap& chunks, const Touched& touched) {
    if (failed.isOk() && chunks.failed()) failed = chunks.failure(touched.offset, touched.bytes);
  });
  return failed;
}

}  // namespace peerlane
