// SPDX-License-Identifier: Apache-2.0
//
// CmaAgent: one copy between private memories of two processes by process_vm_readv/writev. The pid
// comes from the socket's credentials; a pidfd looked at around each call makes sure that it still
// means the peer, and the nonce that it still runs the same program: what calls exec keeps its pid.
// serve() is thread-safe: it keeps no state between calls.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "peerlane/os/process.h"
#include "peerlane/program/model/mailbox.h"

namespace peerlane {

class CmaAgent final : public Agent {
 public:
  // Bytes between two looks at the peer and at cancellation.
  static constexpr uint64_t kSliceBytes = 4 << 20;

  // Proves that this process may read the peer's memory, by fetching a nonce the peer told us over
  // the authenticated connection. Errors say why not (kPermissionDenied, kPeerLost, kCorrupt:
  // another process).
  static Result<std::unique_ptr<CmaAgent>> probe(ProcessHandle peer, uint64_t nonceAddress,
                                                 std::span<const std::byte> nonce);

  Served serve(AgentWork& work) override;

 private:
  static constexpr size_t kMostNonceBytes = 64;

  CmaAgent(ProcessHandle peer, uint64_t nonceAddress, std::span<const std::byte> nonce)
      : peer_(std::move(peer)), nonceAddress_(nonceAddress), nonce_(nonce.begin(), nonce.end()) {}
  Code moveSlice(AgentWork& work);
  // OK and the bytes moved; kPeerLost where another program is there.
  Result<size_t> get(std::span<IoSlice> local, std::span<IoSlice> remote) const;
  Result<size_t> put(std::span<const IoSlice> local, std::span<const IoSlice> remote) const;

  const ProcessHandle peer_;
  const uint64_t nonceAddress_;
  const std::vector<std::byte> nonce_;
};

}  // namespace peerlane
