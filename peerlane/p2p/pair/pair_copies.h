// SPDX-License-Identifier: Apache-2.0
//
// PairCopies: put and get between the two sides of a communicator, by addresses: finds the regions
// of both ends and posts the blocks. Thread-safe. Owner: PairCommunicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/p2p/pair/local_memory.h"
#include "peerlane/p2p/pair/remote_segment_cache.h"
#include "peerlane/p2p/segment/imported_segments.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

struct CopyPiece {
  std::byte* local = nullptr;
  uint64_t remote = 0;  // an address in the other process
  uint64_t bytes = 0;
};

class PairCopies {
 public:
  // `other`: the process of the peer. The references outlive it.
  PairCopies(Peer peer, const ProcessToken& other, const ImportedSegments& imports,
             RemoteSegmentCache& segments, LocalMemory& memory, PendingTransfers& pending);

  // All pieces, or nothing where it fails, as one transfer.
  Answer copy(Direction direction, std::span<const CopyPiece> pieces,
              const OperationStream& stream);

 private:
  // A segment of the other side, and how it is reached.
  struct Remote {
    SegmentName name;
    RemoteRegion region;
  };
  Answer copyOne(Direction direction, const CopyPiece& piece, const OperationStream& stream);
  Answer findRemote(Direction direction, const CopyPiece& piece, Remote& found);
  Result<Region> findLocal(Direction direction, const LocalPiece& piece, bool forGpu);
  Status post(Direction direction, std::span<const Block> blocks, const OperationStream& stream);

  const Peer peer_;
  const ProcessToken other_;
  const ImportedSegments& imports_;
  RemoteSegmentCache& segments_;
  LocalMemory& memory_;
  PendingTransfers& pending_;
  std::atomic<uint64_t> puts_{0}, gets_{0};  // calls so far, which number their names
};

}  // namespace peerlane::p2p
