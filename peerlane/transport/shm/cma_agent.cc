// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/cma_agent.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "peerlane/core/log.h"

namespace peerlane {

Result<std::unique_ptr<CmaAgent>> CmaAgent::probe(ProcessHandle peer, uint64_t nonceAddress,
                                                  std::span<const std::byte> nonce) {
  std::vector<std::byte> seen(nonce.size());
  const IoSlice local{seen.data(), seen.size()};
  const IoSlice remote{std::bit_cast<void*>(nonceAddress), seen.size()};
  PEERLANE_ASSIGN(const size_t moved, readProcess(peer.pid(), {&local, 1}, {&remote, 1}));
  if (moved != seen.size() || !std::equal(seen.begin(), seen.end(), nonce.begin()))
    return Status(Code::kCorrupt,
                  "process " + std::to_string(peer.pid()) +
                      " does not hold the nonce: the pid means another process here");
  if (!peer.alive())
    return Status(Code::kPeerLost, "process " + std::to_string(peer.pid()) + " ended");
  return std::unique_ptr<CmaAgent>(new CmaAgent(std::move(peer)));
}

namespace {

// True when nothing is left.
bool skipEmpty(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  while (work.piece < entry.pieceCount && entry.pieces[work.piece].bytes == 0) ++work.piece;
  return work.piece == entry.pieceCount;
}

}  // namespace

Served CmaAgent::serve(AgentWork& work) {
  if (skipEmpty(work)) return Served::kDone;
  const Code code = moveSlice(work);
  if (code != Code::kOk) {
    work.code.store(code, std::memory_order_relaxed);
    return Served::kDone;
  }
  return skipEmpty(work) ? Served::kDone : Served::kMore;
}

Code CmaAgent::moveSlice(AgentWork& work) {
  // 256 vectors on the stack are enough to make the call's fixed cost vanish, below the kernel's
  // 1024.
  constexpr size_t kVectors = 256;
  std::array<IoSlice, kVectors> local;
  std::array<IoSlice, kVectors> remote;
  size_t count = 0;
  uint64_t wanted = 0;
  uint64_t offset = work.offset;
  for (uint32_t i = work.piece;
       i < work.entry->pieceCount && count < kVectors && wanted < kSliceBytes; ++i) {
    const Piece& piece = work.entry->pieces[i];
    if (piece.bytes == 0) continue;
    const uint64_t bytes = std::min(piece.bytes - offset, kSliceBytes - wanted);
    local[count] = {piece.local + offset, bytes};
    remote[count] = {
        std::bit_cast<std::byte*>(piece.remote->grant.base) + piece.remoteOffset + offset, bytes};
    ++count;
    wanted += bytes;
    offset = 0;
  }
  if (!peer_.alive()) return Code::kPeerLost;
  const std::span<const IoSlice> locals(local.data(), count);
  const std::span<const IoSlice> remotes(remote.data(), count);
  const auto moved = work.entry->verb == Verb::kPut ? writeProcess(peer_.pid(), locals, remotes)
                                                    : readProcess(peer_.pid(), locals, remotes);
  // Had the peer died in between, the pid might have meant somebody else: then nothing that came
  // back counts.
  if (!peer_.alive()) return Code::kPeerLost;
  if (!moved.isOk()) {
    // That the other process has ended is the session's to judge, once for all transfers.
    if (moved.status().code() == Code::kPeerLost)
      PEERLANE_LOG_DEBUG("cma: {}", moved.status().toString());
    else
      PEERLANE_LOG_WARN("cma: {}", moved.status().toString());
    return moved.status().code();
  }
  uint64_t left = *moved;
  while (left > 0) {
    const uint64_t rest = work.entry->pieces[work.piece].bytes - work.offset;
    const uint64_t step = std::min(rest, left);
    work.offset += step;
    left -= step;
    if (step == rest) {
      ++work.piece;
      work.offset = 0;
    }
  }
  return Code::kOk;
}

}  // namespace peerlane
