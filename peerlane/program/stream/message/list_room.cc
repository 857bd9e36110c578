// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/list_room.h"

#include <cstring>
#include <utility>

namespace peerlane::stream {

Result<ListRoom> ListRoom::make(const StepCall& call, PinnedPool& pool, DescriptorArena& arena) {
  if (!call.words.empty()) {
    PEERLANE_ASSIGN(const PinnedBlock pinned, pool.take(call.words.size_bytes()));
    std::memcpy(pinned.data, call.words.data(), call.words.size_bytes());
    return ListRoom(pool, pinned);
  }
  const size_t count = call.pieces.size();
  const size_t listed = count * sizeof(kernel::LocalPiece);
  const size_t roomBytes = count * kernel::ListTable::kPieceBytes;
  // tryTake() never asks the driver for memory, because that could block the posting thread.
  std::unique_ptr<DescriptorMemory> device = arena.tryTake(roomBytes);
  PEERLANE_ASSIGN(const PinnedBlock pinned, pool.take(listed + (device ? 0 : roomBytes)));
  ListRoom room(pool, pinned);
  room.device_ = std::move(device);
  auto* const pieces = reinterpret_cast<kernel::LocalPiece*>(pinned.data);
  for (size_t i = 0; i < count; ++i) {
    room.tiles_ += copyTiles(call.pieces[i].bytes);
    pieces[i] = {call.pieces[i].from, call.pieces[i].bytes, room.tiles_};
  }
  std::byte* const at = room.device_ ? room.device_->data() : pinned.data + listed;
  room.table_ = {.pieces = reinterpret_cast<kernel::CopyPiece*>(at),
                 .tileEnds = reinterpret_cast<uint64_t*>(at + count * sizeof(kernel::CopyPiece)),
                 .isFar = !room.device_};
  return room;
}

ListRoom::ListRoom(ListRoom&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pinned_(other.pinned_),
      device_(std::move(other.device_)),
      tiles_(other.tiles_),
      table_(other.table_) {}

ListRoom::~ListRoom() {
  if (pool_ != nullptr) pool_->giveBack(pinned_);
}

}  // namespace peerlane::stream
