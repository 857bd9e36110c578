// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling/raw_team.h"

#include <sched.h>

#include <algorithm>

namespace peerlane::bench {
namespace {

// The thread that makes the team is pinned to one core, and its threads would be, too.
void runAnywhere() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  (void)::sched_setaffinity(0, sizeof all, &all);
}

RawPiece cutOf(const RawPiece& piece, size_t offset, size_t bytes) {
  return {piece.local + offset, piece.other == nullptr ? nullptr : piece.other + offset,
          piece.there + offset, bytes};
}

}  // namespace

RawTeam::RawTeam(uint32_t threads) : parts_(threads + 1), results_(threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

RawTeam::~RawTeam() {
  ends_ = true;
  begin();
  for (std::thread& thread : threads_) thread.join();
}

void RawTeam::work(size_t index) {
  runAnywhere();
  for (uint64_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);
    if (ends_) return;
    results_[index] = copyPieces(way_, owner_, parts_[index], isPut_);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void RawTeam::begin() {
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void RawTeam::cut(std::span<const RawPiece> pieces) {
  size_t total = 0;
  for (const RawPiece& piece : pieces) total += piece.bytes;
  size_t next = 0;
  size_t offset = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].clear();
    size_t left = total * (i + 1) / parts_.size() - total * i / parts_.size();
    while (left != 0) {
      const size_t bytes = std::min(left, pieces[next].bytes - offset);
      parts_[i].push_back(cutOf(pieces[next], offset, bytes));
      left -= bytes;
      offset += bytes;
      if (offset != pieces[next].bytes) continue;
      ++next;
      offset = 0;
    }
  }
}

Status RawTeam::copy(CopyWay way, pid_t owner, std::span<const RawPiece> pieces, bool isPut) {
  cut(pieces);
  way_ = way;
  owner_ = owner;
  isPut_ = isPut;
  done_.store(0, std::memory_order_relaxed);
  begin();
  Status mine = copyPieces(way, owner, parts_.back(), isPut);
  while (done_.load(std::memory_order_acquire) != threads_.size()) __builtin_ia32_pause();
  for (const Status& result : results_) PEERLANE_RETURN_IF_ERROR(result);
  return mine;
}

}  // namespace peerlane::bench
