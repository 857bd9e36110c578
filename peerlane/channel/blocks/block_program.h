// SPDX-License-Identifier: Apache-2.0
//
// BlockProgram: what a user asked to move, checked, and made into a program with its binding.
// Shared by put/get and plans. External synchronization required.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// A Notify that owns its message.
struct OwnedNotify {
  // What the header says instead of a length when a claimed slot is given up: the receiver skips
  // it.
  static constexpr uint32_t kVoid = 0xffff'ffffu;

  bool hasMessage = false;
  uint32_t header[2] = {0, 0};  // bytes or kVoid, tag
  std::vector<std::byte> message;
  std::optional<uint32_t> signal;
  uint64_t signalAdd = 0;
};
// kInvalidArgument for a message that is too long or a signal that does not exist.
Result<OwnedNotify> ownNotify(const Notify& notify);

class BlockProgram {
 public:
  // Takes the blocks of one post: rights, ranges, overlaps and owners are checked, nothing is
  // imported.
  Status take(const PeerCore& peer, Direction direction, std::span<const Block> blocks);
  Status take(const PeerCore& peer, Direction direction, const StridedBlocks& blocks);
  Status take(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks);

  // Asks for what is not imported: regions, and of those in chunks what these blocks touch. True
  // when all is, so that enter() may be called, and stays so.
  bool imported(PeerCore& peer);
  // The first import of those that failed; OK else.
  Status importFailure() const;

  // Goes through the gates of every region. Balanced by leave() if it returned OK.
  Status enter();
  void leave();

  // The program with its binding; once, for a list of blocks goes into it. Requires: imported.
  // Or not imported, wholly or in part: then the one remote region is bound to lateBase(). `notify`
  // must outlive the run. `slabWindow`: where a device finds the peer's slab; null for programs
  // that a CPU runs. `device`: who runs it. kNotSupported for memory that this one does not reach.
  Status lower(const PeerCore& peer, OwnedNotify& notify, Program& program, Binding& binding,
               std::byte* slabWindow = nullptr, Device device = {});

  // Who moves the bytes: null when all of it is host memory; else the GPU where local memory lies;
  // else, where only the peer's is a GPU's, the one of `stream`, or this context's first. Errors:
  // kNotSupported for local memory of two GPUs in one post, and for memory of a peer's GPU where
  // this context has none.
  Result<DeviceExecutor*> executor(const PeerCore& peer, DeviceStream stream) const;
  // Makes what is host memory reachable for that device, for as long as it is registered. Requires:
  // imported and entered. Errors: kNotSupported for a peer's memory that is not mapped here.
  Status pin(DeviceExecutor& executor) const;
  // GPU memory that was freed, or freed and allocated anew, since it was registered.
  Status checkIdentity() const;

  // --- For transfers that are staged, instead of lower() ---
  // Why the blocks cannot go straight, empty when they can.
  std::string whyStaged(const PeerCore& peer) const;
  // One run of bytes, by the numbers of locals() and remotes().
  struct Piece {
    size_t local = 0;
    uint64_t localOffset = 0;
    size_t remote = 0;
    uint64_t remoteOffset = 0;
    uint64_t bytes = 0;
  };
  // All blocks in their order; indexed ones with their numbers, which were checked.
  std::vector<Piece> pieces(std::span<const uint32_t> localIndex = {},
                            std::span<const uint32_t> remoteIndex = {}) const;
  // The gates of this side's regions alone, as enter().
  Status enterLocals();
  void leaveLocals();

  Direction direction() const { return direction_; }
  uint64_t bytes() const { return bytes_; }
  // Without the segments of a list once that was lowered.
  const CopyLayout& layout() const { return layout_; }
  bool empty() const { return locals_.empty(); }
  const char* engine() const;
  const std::vector<std::shared_ptr<RegionRecord>>& locals() const { return locals_; }
  const std::vector<RemoteRegion>& remotes() const { return remotes_; }

 private:
  // Bytes of the peer's regions that the blocks touch; of strided and indexed ones, also what lies
  // between them.
  struct Touched {
    size_t remote;
    uint64_t offset;
    uint64_t bytes;
  };
  template <typename Visit>
  void eachTouched(const Visit& visit) const;
  bool isReached(size_t remote) const;

  Result<TargetId> localTarget(const Region* region);
  Result<TargetId> remoteTarget(const PeerCore& peer, const RemoteRegion* region);
  // Where a list writes.
  struct Grid {
    explicit Grid(const Segment& segment)
        : to(segment.to), block(segment.bytes), first(segment.toOffset), last(first) {}
    void add(const Segment& segment) {
      isUniform = isUniform && segment.to == to && segment.bytes == block;
      first = std::min(first, segment.toOffset);
      last = std::max(last, segment.toOffset);
    }

    TargetId to;
    uint64_t block;
    uint64_t first, last;   // offsets of blocks
    bool isUniform = true;  // one target, one size
  };
  Status checkOverlap(const Grid& grid) const;
  std::optional<bool> overlapOnGrid(const Grid& grid) const;
  Status whichOverlap(const Segment& first, const Segment& second) const;
  Status checkOverlapWithSource() const;
  Status begin(Direction direction);

  Direction direction_ = Direction::kPut;
  uint64_t bytes_ = 0;
  // Targets before numbering: local i is i, remote j is kRemoteBit + j.
  static constexpr TargetId kRemoteBit = 0x4000;
  std::vector<std::shared_ptr<RegionRecord>> locals_;
  std::vector<RemoteRegion> remotes_;
  CopyLayout layout_;
  std::vector<Touched> lateTouched_;  // of a list that was lowered before all of it was imported
  bool asked_ = false;                // for all chunks that are touched
};

}  // namespace peerlane
