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
  if (nonce.empty() || nonce.size() > kMostNonceBytes)
    return Status(Code::kInvalidArgument, "a nonce of " + std::to_string(nonce.size()) +
                                              " bytes; accepted are 1 to " +
                                              std::to_string(kMostNonceBytes));
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
  return std::unique_ptr<CmaAgent>(new CmaAgent(std::move(peer), nonceAddress, nonce));
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

// One call reads the memory of one program: if it read the peer's nonce first, the bytes after it
// are the peer's.
Result<size_t> CmaAgent::get(std::span<IoSlice> local, std::span<IoSlice> remote) const {
  std::array<std::byte, kMostNonceBytes> seen;
  local[0] = {seen.data(), nonce_.size()};
  remote[0] = {std::bit_cast<void*>(nonceAddress_), nonce_.size()};
  const auto read = readProcess(peer_.pid(), local, remote);
  // No byte was moved: even the nonce could not be read.
  const bool isElsewhere = !read.isOk() && read.status().code() == Code::kInvalidArgument;
  if (!read.isOk() && !isElsewhere) return read.status();
  const size_t moved = isElsewhere ? 0 : *read;
  if (moved < nonce_.size() || !std::equal(nonce_.begin(), nonce_.end(), seen.begin()))
    return Status(Code::kPeerLost,
                  "process " + std::to_string(peer_.pid()) + " runs another program now");
  // The first page of the wanted bytes cannot be reached: a call for it alone fails with the
  // reason.
  if (moved == nonce_.size()) return readProcess(peer_.pid(), local.subspan(1), remote.subspan(1));
  return moved - nonce_.size();
}

// Some microseconds remain between the check and the write.
Result<size_t> CmaAgent::put(std::span<const IoSlice> local,
                             std::span<const IoSlice> remote) const {
  std::array<std::byte, kMostNonceBytes> seen;
  const IoSlice to{seen.data(), nonce_.size()};
  const IoSlice from{std::bit_cast<void*>(nonceAddress_), nonce_.size()};
  const auto moved = readProcess(peer_.pid(), {&to, 1}, {&from, 1});
  const bool isElsewhere = !moved.isOk() && moved.status().code() == Code::kInvalidArgument;
  if (!moved.isOk() && !isElsewhere) return moved.status();
  if (isElsewhere || *moved != nonce_.size() ||
      !std::equal(nonce_.begin(), nonce_.end(), seen.begin()))
    return Status(Code::kPeerLost,
                  "process " + std::to_string(peer_.pid()) + " runs another program now");
  return writeProcess(peer_.pid(), local, remote);
}

Code CmaAgent::moveSlice(AgentWork& work) {
  // 256 vectors on the stack are enough to make the call's fixed cost vanish, below the kernel's
  // 1024.
  constexpr size_t kVectors = 256;
  // The first of each is for the nonce.
  std::array<IoSlice, 1 + kVectors> local;
  std::array<IoSlice, 1 + kVectors> remote;
  size_t count = 1;
  uint64_t wanted = 0;
  uint64_t offset = work.offset;
  for (uint32_t i = work.piece;
       i < work.entry->pieceCount && count <= kVectors && wanted < kSliceBytes; ++i) {
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
  // A put checks the nonce by a call of its own.
  const bool isPut = work.entry->verb == Verb::kPut;
  if (!isPut && !peer_.alive()) return Code::kPeerLost;
  const std::span locals(local.data(), count);
  const std::span remotes(remote.data(), count);
  const auto moved = isPut ? put(locals.subspan(1), remotes.subspan(1)) : get(locals, remotes);
  // If the peer died in between, the pid may have meant another process: then the bytes read do not
  // count.
  if (isPut && !peer_.alive()) return Code::kPeerLost;
  if (!moved.isOk()) {
    // The session judges that the other process has ended, once for all transfers.
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
