// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/cma_agent.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

namespace {

// Both sides' memory was there when it was registered.
Status asGone(const Status& status) {
  if (status.code() != Code::kInvalidArgument) return status;
  return Status(Code::kRevoked, std::string(status.message()));
}

// The memory that holds the nonce; none where it may not be opened for writing.
std::optional<AddressSpace> memoryOf(pid_t pid, uint64_t nonceAddress,
                                     std::span<const std::byte> nonce) {
  auto memory = AddressSpace::openForWriting(pid);
  if (!memory.isOk()) return std::nullopt;
  std::vector<std::byte> seen(nonce.size());
  if (memory->read(nonceAddress, seen) != seen.size() ||
      !std::equal(seen.begin(), seen.end(), nonce.begin()))
    return std::nullopt;
  return std::move(*memory);
}

}  // namespace

Result<std::unique_ptr<CmaAgent>> CmaAgent::probe(ProcessHandle peer, uint64_t nonceAddress,
                                                  std::span<const std::byte> nonce,
                                                  cpu::CopyTeam* team) {
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
  auto memory = memoryOf(peer.pid(), nonceAddress, nonce);
  if (!peer.alive())
    return Status(Code::kPeerLost, "process " + std::to_string(peer.pid()) + " ended");
  return std::unique_ptr<CmaAgent>(
      new CmaAgent(std::move(peer), std::move(memory), nonceAddress, nonce, team));
}

// Steps over bytes, and over empty pieces after them.
void CmaAgent::advance(const MailboxEntry& entry, Position& at, uint64_t bytes) {
  while (at.piece < entry.pieceCount && bytes >= entry.pieces[at.piece].bytes - at.offset) {
    bytes -= entry.pieces[at.piece].bytes - at.offset;
    at = {at.piece + 1, 0};
  }
  at.offset += bytes;
}

Served CmaAgent::serve(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Position at{work.piece, work.offset};
  advance(entry, at, 0);
  if (at.piece == entry.pieceCount) return Served::kDone;
  if (moveFew(entry, at)) return Served::kDone;
  const Status status =
      team_ != nullptr ? moveTogether(entry, at) : moveSlice(entry, at, kSliceBytes);
  work.piece = at.piece;
  work.offset = at.offset;
  if (status.isOk()) return at.piece == entry.pieceCount ? Served::kDone : Served::kMore;
  // The session judges that the other process has ended, once for all transfers; who posted this
  // one is told of memory that is gone.
  if (status.code() == Code::kPeerLost || status.code() == Code::kRevoked)
    PEERLANE_LOG_DEBUG("cma: {}", status.toString());
  else if (const auto leftOut = lines_.take())
    PEERLANE_LOG_WARN("cma: {}{}", status.toString(), *leftOut);
  work.code.store(status.code(), std::memory_order_relaxed);
  return Served::kDone;
}

Result<size_t> CmaAgent::get(std::span<IoSlice> local, std::span<IoSlice> remote) const {
  auto moved = getOnce(local, remote);
  if (!moved.isOk() || *moved != 0) return moved;
  // The first page cannot be reached, and a call for it alone fails with the reason. What such a
  // call reads may be another program's: it goes nowhere.
  std::byte nowhere;
  const IoSlice to{&nowhere, 1};
  const IoSlice from{remote[1].base, 1};
  if (const auto why = readProcess(peer_.pid(), {&to, 1}, {&from, 1}); !why.isOk())
    return asGone(why.status());
  // It can be reached now, or the memory of this side is what cannot.
  moved = getOnce(local, remote);
  if (!moved.isOk() || *moved != 0) return moved;
  return Status(Code::kRevoked, "process_vm_readv from process " + std::to_string(peer_.pid()) +
                                    ": the local memory is not mapped for writing");
}

// One call reads the memory of one program: if it read the peer's nonce first, the bytes after it
// are the peer's.
Result<size_t> CmaAgent::getOnce(std::span<IoSlice> local, std::span<IoSlice> remote) const {
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
  const auto written = writeProcess(peer_.pid(), local, remote);
  return written.isOk() ? written : asGone(written.status());
}

// What does not move here goes the long way, which says why.
bool CmaAgent::moveFew(const MailboxEntry& entry, Position at) const {
  if (!memory_ || entry.pieceCount != 1 || at.offset != 0) return false;
  const Piece& piece = entry.pieces[0];
  if (piece.bytes > kFewBytes) return false;
  const uint64_t address = piece.remote->linkKey + piece.remoteOffset;
  const std::span<std::byte> local(piece.local, piece.bytes);
  return (entry.verb == Verb::kPut ? memory_->write(address, local)
                                   : memory_->read(address, local)) == piece.bytes;
}

namespace {

// Of several threads, one failure: the end of the peer tells more than what else it brings about.
class Failure {
 public:
  void add(const Status& status) {
    const MutexLock lock(mutex_);
    if (isThere() && status.code() != Code::kPeerLost) return;
    status_ = status;
    isThere_.store(true, std::memory_order_relaxed);
  }
  bool isThere() const { return isThere_.load(std::memory_order_relaxed); }
  // Once no other thread adds any more.
  Status status() {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  Status status_ PEERLANE_GUARDED_BY(mutex_);
  std::atomic<bool> isThere_{false};
};

}  // namespace

Status CmaAgent::moveTogether(const MailboxEntry& entry, Position& at) const {
  // As one slice takes, by as many threads: in bytes, and in pieces where these are small.
  const uint64_t most = std::min<uint64_t>((team_->threads() + 1) * kSliceBytes, kMostTogether);
  const uint32_t mostPieces = cpu::CopyTeam::kPartsPerThread * (team_->threads() + 1) * kVectors;
  uint64_t bytes = 0;
  for (uint32_t i = at.piece; i < entry.pieceCount && i - at.piece < mostPieces && bytes < most;
       ++i)
    bytes += entry.pieces[i].bytes - (i == at.piece ? at.offset : 0);
  bytes = std::min(bytes, most);
  const uint32_t parts = team_->partsOf(bytes);
  if (parts == 1) return moveSlice(entry, at, kSliceBytes);
  const auto bytesOf = [&](uint32_t part) {
    return bytes / parts + (part + 1 == parts ? bytes % parts : 0);
  };
  std::array<Position, cpu::CopyTeam::kMostParts + 1> borders;
  borders[0] = at;
  for (uint32_t part = 0; part < parts; ++part) {
    borders[part + 1] = borders[part];
    advance(entry, borders[part + 1], bytesOf(part));
  }
  Failure failure;
  team_->share(parts, entry.pieces[at.piece].local + at.offset, [&](uint32_t part) {
    Position from = borders[part];
    for (uint64_t left = bytesOf(part); left != 0 && !failure.isThere();) {
      const Result<uint64_t> moved = moveSome(entry, from, left);
      if (!moved.isOk()) return failure.add(moved.status());
      left -= *moved;
      advance(entry, from, *moved);
    }
  });
  if (!failure.isThere()) at = borders[parts];
  return failure.status();
}

Status CmaAgent::moveSlice(const MailboxEntry& entry, Position& at, uint64_t most) const {
  PEERLANE_ASSIGN(const uint64_t moved, moveSome(entry, at, most));
  advance(entry, at, moved);
  return Status::ok();
}

Result<uint64_t> CmaAgent::moveSome(const MailboxEntry& entry, Position at, uint64_t most) const {
  // The first of each is for the nonce.
  std::array<IoSlice, 1 + kVectors> local;
  std::array<IoSlice, 1 + kVectors> remote;
  size_t count = 1;
  uint64_t wanted = 0;
  for (; at.piece < entry.pieceCount && count <= kVectors && wanted < most;
       at = {at.piece + 1, 0}) {
    const Piece& piece = entry.pieces[at.piece];
    if (piece.bytes == 0) continue;
    const uint64_t bytes = std::min(piece.bytes - at.offset, most - wanted);
    local[count] = {piece.local + at.offset, bytes};
    remote[count] = {
        std::bit_cast<std::byte*>(piece.remote->linkKey) + piece.remoteOffset + at.offset, bytes};
    ++count;
    wanted += bytes;
  }
  // A put checks the nonce by a call of its own.
  const bool isPut = entry.verb == Verb::kPut;
  const auto gone = [this] {
    return Status(Code::kPeerLost, "process " + std::to_string(peer_.pid()) + " ended");
  };
  if (!isPut && !peer_.alive()) return gone();
  const std::span locals(local.data(), count);
  const std::span remotes(remote.data(), count);
  auto moved = isPut ? put(locals.subspan(1), remotes.subspan(1)) : get(locals, remotes);
  // If the peer died in between, the pid may have meant another process: then the bytes read do not
  // count.
  if (isPut && !peer_.alive()) return gone();
  return moved;
}

}  // namespace peerlane
