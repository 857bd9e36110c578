// SPDX-License-Identifier: Apache-2.0
//
// ListRoom: the memory that one launch of a list kernel reads and writes in addition to its
// parameters: a copy of the call's pieces or words, in pinned host memory, and room for the list of
// pieces, in the device's memory, or in the host's when the device has no more. Its owner must keep
// it as long as the stream, or the graph, may run the launch.
#pragma once

#include <memory>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/kernel/message/list_kernel.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

class ListRoom {
 public:
  static bool isNeeded(const StepCall& call) { return !call.pieces.empty() || !call.words.empty(); }
  // With the GPU current. `pool` and `arena` must outlive it. Errors: those of PinnedPool::take.
  static Result<ListRoom> make(const StepCall& call, PinnedPool& pool, DescriptorArena& arena);
  ~ListRoom();
  ListRoom(ListRoom&& other) noexcept;
  ListRoom& operator=(ListRoom&&) = delete;

  const uint64_t* words() const { return reinterpret_cast<const uint64_t*>(pinned_.data); }
  const kernel::LocalPiece* pieces() const {
    return reinterpret_cast<const kernel::LocalPiece*>(pinned_.data);
  }
  uint64_t tiles() const { return tiles_; }
  const kernel::ListTable& table() const { return table_; }

 private:
  ListRoom(PinnedPool& pool, const PinnedBlock& pinned) : pool_(&pool), pinned_(pinned) {}

  PinnedPool* pool_;  // null: moved from
  PinnedBlock pinned_;
  std::unique_ptr<DescriptorMemory> device_;
  uint64_t tiles_ = 0;
  kernel::ListTable table_;
};

}  // namespace peerlane::stream
