// SPDX-License-Identifier: Apache-2.0
//
// PostedWork: one operation that was posted to a triggered queue, until its commit has ended: the
// regions that it keeps in use, and the pieces that its mailbox entry names. The commit owns it;
// afterwards the batch uses it again, for its room. External synchronization required.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PostedWork {
 public:
  explicit PostedWork(std::shared_ptr<PeerCore> peer) : peer_(std::move(peer)) {}
  ~PostedWork() { leave(); }
  PostedWork(const PostedWork&) = delete;
  PostedWork& operator=(const PostedWork&) = delete;

  // Checks, imports (waits for it until the deadline) and lowers blocks, and goes through their
  // gates. Errors: as put() and get(); kNotSupported for memory that neither the executor nor an
  // agent reaches. `executor`: of a queue of a device; null: threads of the CPU run its programs.
  Status take(Direction direction, std::span<const Block> blocks,
              Progress::Clock::time_point deadline, DeviceExecutor* executor);
  // For words in the peer's slab: goes through its gate.
  Status takeSlab();
  // The same for the 64-bit word at `offset` of a region of the peer, which is imported by then.
  // kNotSupported where neither stores of this side nor the link's agent add to it.
  Result<const RemoteMemory*> takeWord(const RemoteRegion& region, uint64_t offset,
                                       Progress::Clock::time_point deadline);
  // It was performed: adds its bytes to those of its link. Before leave().
  void count() const;
  // Lets go of the regions, and forgets the operation: another one may be taken.
  void leave();

  const Program& program() const { return program_; }
  const Binding& binding() const { return binding_; }
  // The first target that only an agent reaches; null: loads and stores reach all.
  const BoundTarget* agentTarget() const;
  bool mayBeCut() const;  // some of its memory (BoundTarget::mayBeCut)
  // While it is inside: kRevoked where memory was taken back meanwhile; OK else.
  Status whyRevoked() const;
  // Of one that a link ended with kRevoked or kPermissionDenied: the region; OK: it cannot be told.
  Status whyRefused(Code code) const;

  // Of entries.
  std::vector<std::vector<Piece>>& pieces() { return pieces_; }

 private:
  const std::shared_ptr<PeerCore> peer_;
  BlockProgram blocks_;
  Program program_;
  Binding binding_;
  std::vector<std::vector<Piece>> pieces_;
  std::shared_ptr<ImportedRegion> word_;  // whose gate it went through
  bool entered_ = false;
  bool slabEntered_ = false;
};

using PostedWorks = std::vector<std::unique_ptr<PostedWork>>;

}  // namespace peerlane
