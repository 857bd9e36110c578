// SPDX-License-Identifier: Apache-2.0
//
// CmaAgent: one copy between private memories of two processes by process_vm_readv/writev. The pid
// comes from the socket's credentials; a check of the pidfd around each call makes sure that the
// pid still means the peer, and the nonce that the peer still runs the same program: a process that
// calls exec keeps its pid. An entry that is one piece of a page or less goes through the peer's
// /proc/PID/mem, which stays bound to the memory that held the nonce: one system call, where a put
// takes three and a get two. serve() is thread-safe: it keeps no state between calls.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/core/shared_log_limit.h"
#include "peerlane/os/process.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/program/model/mailbox.h"

namespace peerlane {

class CmaAgent final : public Agent {
 public:
  // The most bytes between two looks at cancellation: of one thread, and of several together, which
  // may all be busy elsewhere.
  static constexpr uint64_t kSliceBytes = 4 << 20;
  static constexpr uint64_t kMostTogether = 16 << 20;

  // Proves that this process may read the peer's memory: it reads there a nonce that the peer sent
  // over the authenticated connection. Errors give the reason (kPermissionDenied, kPeerLost,
  // kCorrupt: another process).
  // `team`: threads that help; it outlives the agent. Null: none.
  static Result<std::unique_ptr<CmaAgent>> probe(ProcessHandle peer, uint64_t nonceAddress,
                                                 std::span<const std::byte> nonce,
                                                 cpu::CopyTeam* team = nullptr);

  Served serve(AgentWork& work) override;

 private:
  static constexpr size_t kMostNonceBytes = 64;
  static constexpr uint64_t kFewBytes = 4096;
  // On the stack, and enough to make the fixed cost of a call vanish; below the kernel's 1024.
  static constexpr uint32_t kVectors = 256;

  // A place in the pieces of an entry.
  struct Position {
    uint32_t piece = 0;
    uint64_t offset = 0;
    bool operator==(const Position&) const = default;
  };

  CmaAgent(ProcessHandle peer, std::optional<AddressSpace> memory, uint64_t nonceAddress,
           std::span<const std::byte> nonce, cpu::CopyTeam* team)
      : peer_(std::move(peer)),
        memory_(std::move(memory)),
        nonceAddress_(nonceAddress),
        nonce_(nonce.begin(), nonce.end()),
        team_(team) {}
  static void advance(const MailboxEntry& entry, Position& at, uint64_t bytes);
  // True when the entry, one short piece, was moved whole.
  bool moveFew(const MailboxEntry& entry, Position at) const;
  // Moves at least one of the next `most` bytes. Returns how many.
  Result<uint64_t> moveSome(const MailboxEntry& entry, Position at, uint64_t most) const;
  // The same, and `at` over them.
  Status moveSlice(const MailboxEntry& entry, Position& at, uint64_t most) const;
  // Moves a slice for each thread, or less, and `at` over it.
  Status moveTogether(const MailboxEntry& entry, Position& at) const;
  // Returns the bytes moved. Errors: kPeerLost where the process runs another program.
  Result<size_t> get(std::span<IoSlice> local, std::span<IoSlice> remote) const;
  // The same; 0 where only the nonce could be read.
  Result<size_t> getOnce(std::span<IoSlice> local, std::span<IoSlice> remote) const;
  Result<size_t> put(std::span<const IoSlice> local, std::span<const IoSlice> remote) const;

  const ProcessHandle peer_;
  const std::optional<AddressSpace> memory_;  // none where it may not be opened
  const uint64_t nonceAddress_;
  const std::vector<std::byte> nonce_;
  cpu::CopyTeam* const team_;
  SharedLogLimit lines_;
};

}  // namespace peerlane
