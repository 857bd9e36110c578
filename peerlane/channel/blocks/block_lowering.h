// SPDX-License-Identifier: Apache-2.0
//
// BlockLowering: makes of a checked list, and of what the peer is to be told after it, the program
// that moves the bytes and its binding. It knows the order of the three parts of a post: the
// payload, the addition to a signal, and the number that publishes a notification. Lives on the
// stack of one call. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/channel/blocks/block_import.h"
#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/channel/blocks/owned_notify.h"
#include "peerlane/channel/protocol/signal_protocol.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class BlockLowering {
 public:
  // `notify` must outlive the runs of the program, which read it. `slabWindow`: where a device
  // finds the peer's slab; null for programs that a CPU runs. `device`: which one runs it.
  BlockLowering(const PeerCore& peer, OwnedNotify& notify, std::byte* slabWindow, Device device)
      : peer_(peer), notify_(notify), slabWindow_(slabWindow), device_(device) {}

  // The first number of the payload's targets in the program.
  static TargetId firstTargetOf(const OwnedNotify& notify);

  // Once. The blocks of a list move into the program. Requires: imported. Or not
  // imported, wholly or in part: then the one remote region is bound to lateBase(). Errors:
  // kNotPrepared (several remote regions, not all imported), kPermissionDenied, kNotSupported for
  // memory that `device` does not reach, kInvalidArgument (source and destination overlap),
  // kTryAgain (memory came over a link that needs another executor).
  Status lower(BlockList& blocks, BlockImport& import, Program& program, Binding& binding);

 private:
  void bindLocal(const RegionRecord& region);
  Status bindRemotes(const BlockList& blocks, BlockImport& import);
  Status bindRemote(const RemoteRegion& remote, Access wanted);
  Status bindLate(const BlockList& blocks, BlockImport& import);
  void takeLayout(BlockList& blocks);
  void splitForAgent();

  BoundTarget slabTarget(uint64_t offset, uint64_t bytes) const;
  BoundTarget signalTarget() const;
  void emitNotify(Program& program, Binding& binding);
  void emitSignal(bool isEmpty, Program& program, Binding& binding);
  void emitPlain(const BlockList& blocks, Program& program, Binding& binding);

  const PeerCore& peer_;
  OwnedNotify& notify_;
  std::byte* const slabWindow_;
  const Device device_;
  // The payload's targets and their addresses: local regions, then remote ones. In the
  // program they have the numbers from base_ on.
  TargetId base_ = 0;
  PutPayload payload_;
  std::vector<BoundTarget> data_;
  bool hasLocalOfDevice_ = false;
};

}  // namespace peerlane
