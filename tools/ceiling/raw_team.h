// SPDX-License-Identifier: Apache-2.0
//
// RawTeam: the raw limit of copying with several threads. They sleep between copies, because the
// library is measured in turns with them. Confined to the thread that made it, but for its threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "tools/ceiling/ceiling_copy.h"

namespace peerlane::bench {

class RawTeam {
 public:
  // Besides the calling thread, which copies as well.
  explicit RawTeam(uint32_t threads);
  ~RawTeam();
  RawTeam(const RawTeam&) = delete;
  RawTeam& operator=(const RawTeam&) = delete;

  // As copyPieces(), each thread an equal part of the bytes. Requires: the same pieces may be cut.
  Status copy(CopyWay way, pid_t owner, std::span<const RawPiece> pieces, bool isPut);

 private:
  void work(size_t index);
  void begin();
  void cut(std::span<const RawPiece> pieces);

  CopyWay way_ = CopyWay::kMemcpy;
  pid_t owner_ = 0;
  bool isPut_ = false;
  bool ends_ = false;
  std::vector<std::vector<RawPiece>> parts_;  // of each thread, the caller's last
  std::vector<Status> results_;
  std::atomic<uint64_t> round_{0};  // release: the fields above
  std::atomic<uint32_t> done_{0};   // release: the bytes
  std::vector<std::thread> threads_;
};

}  // namespace peerlane::bench
