// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/stream_launch.h"

#include <cstring>

namespace peerlane::stream {

Status describeCopies(const StreamProgram& program, const DeviceIndices& given, uint64_t* fault,
                      uint64_t faultValue, PinnedPool& pool, kernel::CopyLaunch& launch,
                      PinnedBlock& held) {
  launch.ctas = program.ctas();
  launch.method = program.method();
  const std::span<const kernel::CopyPiece> pieces = program.pieces();
  if (program.blocks().blockBytes != 0) {
    launch.blocks = program.blocks();
    const DeviceIndices indices = program.isIndexed() ? given : program.numbers();
    if (indices.count == 0) return Status::ok();
    launch.blocks.count = indices.count;
    launch.blocks.toIndex = indices.to;
    launch.blocks.fromIndex = indices.from;
    launch.blocks.fault = fault;
    launch.blocks.faultValue = faultValue;
    if (indices.onDevice) return Status::ok();
    const size_t bytes = indices.count * sizeof(uint32_t);
    PEERLANE_ASSIGN(held, pool.take(2 * bytes));
    std::memcpy(held.data, indices.to, bytes);
    std::memcpy(held.data + bytes, indices.from, bytes);
    launch.blocks.toIndex = reinterpret_cast<const uint32_t*>(held.data);
    launch.blocks.fromIndex = reinterpret_cast<const uint32_t*>(held.data + bytes);
  } else if (program.isFar()) {
    launch.list = program.farList();
  } else if (program.uploaded().count != 0) {
    launch.list = program.uploaded();
  } else if (pieces.size() <= kernel::kInlinePieces) {
    launch.pieces = pieces.data();
    launch.pieceCount = static_cast<uint32_t>(pieces.size());
  } else {
    PEERLANE_ASSIGN(held, pool.take(program.descriptorBytes()));
    launch.list = program.writeDescriptors(held.data, held.data);
  }
  return Status::ok();
}

}  // namespace peerlane::stream
