// SPDX-License-Identifier: Apache-2.0
//
// CpuProgram: a program made ready for CPU threads; CpuRun: one execution of it, resumable. The
// reference executor: its behaviour defines what a program means. Posting path: a run of a prepared
// program allocates nothing, takes no lock and enters the kernel only to wake a sleeper,
// or to copy what may be cut off its file (BoundTarget::mayBeCut).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/cpu/host_copier.h"
#include "peerlane/program/cpu/mapped_copies.h"
#include "peerlane/program/cpu/open_puts.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"

namespace peerlane::cpu {

// Block numbers for the program's one indexed list; both spans have the same length.
struct Indices {
  std::span<const uint32_t> to;
  std::span<const uint32_t> from;
};

// Immutable after prepare(), but for clear().
class CpuProgram {
 public:
  CpuProgram() = default;

  // Checks the program against the binding: every op inside its target, every target reachable, a
  // mailbox where an agent is needed. Keeps capacity when used again, so that a pooled object stops
  // allocating. `copier`: makes the large copies; it outlives the runs. Null: memcpy makes them.
  Status prepare(Program program, Binding binding, const HostCopier* copier = nullptr);
  void clear();

  const Program& program() const { return program_; }
  const Binding& binding() const { return binding_; }

  // True when the program never waits, needs no agent, touches no memory that may be cut and has
  // one form only: then one call of runStraight() executes it, and the caller needs no CpuRun.
  bool isStraight() const { return isStraight_; }
  // Requires: isStraight(). Thread-safe as far as the memory it touches is.
  void runStraight() const;
  // The pieces that runStraight() copies, for tests and dumps.
  std::span<const MappedPiece> mappedPieces() const { return mapped_; }

 private:
  friend class CpuRun;
  // The pieces of one op: in `mapped_` or in `pieces_`, never in both.
  struct Extent {
    uint32_t first = 0;
    uint32_t count = 0;
    bool agent = false;
    bool isPut = false;
    bool isOurs = false;    // a put of the library's memory (BoundTarget::isOurs) to one region
    bool deferred = false;  // late or ring places, indexed lists: made when the run reaches the op
    bool mayBeCut = false;  // some of its mapped memory (BoundTarget::mayBeCut)
    uint64_t bytes = 0;     // of all pieces
  };
  // A word op with its address, value and order found out.
  struct StraightWord {
    OpCode code = OpCode::kStore;
    Width width = Width::k64;
    std::memory_order order = std::memory_order_relaxed;
    std::byte* at = nullptr;
    uint64_t value = 0;
    const Waker* waker = nullptr;
  };
  // The pieces up to `endPiece`, then the word, if there is one.
  struct StraightStep {
    uint32_t endPiece = 0;
    bool hasWord = false;
    uint64_t bytes = 0;  // of the pieces
    StraightWord word;
  };
  Status prepareOp(const Op& op, Extent& extent);
  bool addStraight(const Op& op, const Extent& extent);
  Status addPiece(const Segment& segment, Extent& extent);
  Status checkFixed(const Segment& segment) const;
  Status checkRange(TargetId target, uint64_t offset, uint64_t bytes) const;
  bool isFixed(TargetId target) const;

  Program program_;
  Binding binding_;
  std::vector<Extent> extents_;  // one per op
  std::vector<MappedPiece> mapped_;
  std::vector<Piece> pieces_;
  std::vector<StraightStep> straight_;
  const HostCopier* copier_ = nullptr;
  bool isStraight_ = false;
};

enum class Step : uint8_t {
  kEnded,    // passed its last op, or ended early: see CpuRun::code()
  kBlocked,  // waits for a word or an agent
  kMore,     // the byte budget is used up
};

// External synchronization: one thread at a time calls advance(). cancel() may come from anywhere.
class CpuRun {
 public:
  static constexpr uint32_t kMaxLateTargets = 12;
  static constexpr uint32_t kMaxCursors = 4;

  // Requires: prepared outlives the run. `cursors`: one per cursor of the program, claimed by the
  // caller.
  // `mayLinger`: what the run puts and stores at the peer (MailboxEntry::mayLinger).
  void start(const CpuProgram& prepared, std::span<const uint64_t> cursors, Indices indices = {},
             LateBinder* late = nullptr, bool mayLinger = false);

  // Runs ops until blocked, ended, or about `budgetBytes` were copied.
  Step advance(uint64_t budgetBytes);

  // Asks the run to end with `code` at the next op or slice. The run first waits for an entry that
  // an agent has already sent, because the agent uses its memory until then.
  void cancel(Code code) { cancel_.store(code, std::memory_order_release); }

  bool ended() const { return ended_; }
  Code code() const { return code_; }
  // The index of the op that the run has reached, for dumps; the program's size when it has ended.
  size_t opIndex() const { return pc_; }
  // The word of the current Wait and the value that it must reach; false when the run is not at a
  // Wait.
  bool awaited(const std::byte*& word, uint64_t& operand) const;
  uint64_t bytesMoved() const { return bytesMoved_; }

 private:
  enum class OpStep : uint8_t { kNext, kBlocked, kMore, kEnd };
  OpStep runOp(const Op& op, uint64_t& budget);
  OpStep runWait(const Op& op);
  OpStep runWord(const Op& op);
  OpStep runCopy(const Op& op, uint64_t& budget);
  // `bytes`: of all pieces.
  OpStep runMapped(std::span<const MappedPiece> pieces, uint64_t bytes, bool mayBeCut,
                   uint64_t& budget);
  OpStep runIndexed(const CopyLayout& list, uint64_t& budget);
  // `isOurs`: Extent::isOurs.
  OpStep sendPieces(std::span<const Piece> pieces, bool isPut, bool isOurs);
  bool drained();
  bool isAgentOp(const Op& op) const;
  Status resolve(TargetId id);
  const BoundTarget& bound(TargetId id) const;
  BoundTarget placed(const Place& place) const;
  uint64_t operandValue(const Operand& operand) const;
  MailboxEntry* claimEntry();
  Step settle();
  void makeIndexedPieces(const CopyLayout& list, bool isPut);
  void makeIndexedMapped(const CopyLayout& list);

  const CpuProgram* prepared_ = nullptr;
  LateBinder* late_ = nullptr;
  Indices indices_;
  std::array<uint64_t, kMaxCursors> cursors_{};
  std::array<BoundTarget, kMaxLateTargets> lateTargets_{};  // resolved late targets only
  uint32_t lateResolved_ = 0;                               // bit per target
  size_t pc_ = 0;
  size_t piece_ = 0;  // of an indexed list, inside the current op
  MappedCopies mapped_;
  bool posted_ = false;  // entries rung and not yet seen complete
  bool ended_ = true;
  Code code_ = Code::kOk;
  uint64_t bytesMoved_ = 0;
  OpenPuts puts_;
  bool mayLinger_ = false;
  bool patient_ = false;  // the caller of advance() has no budget
  bool ending_ = false;   // has its end code; waits for the mailbox to drain
  uint32_t runPieceCount_ = 0;
  std::array<Piece, Mailbox::kSlots> runPieces_{};  // agent copies of this op, until drained
  std::vector<MappedPiece> indexedMapped_;  // large copies of an indexed list; capacity is kept
  std::vector<Piece> indexedPieces_;        // agent pieces of an indexed list; capacity is kept
  std::atomic<Code> cancel_{Code::kOk};
};

}  // namespace peerlane::cpu
