// SPDX-License-Identifier: Apache-2.0
//
// Rival: NCCL, loaded when it is there, doing the same as p2p_blocks does: one group of sends or
// receives. Confined to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace peerlane::blocks {

using RivalId = std::array<char, 128>;

class Rival {
 public:
  Rival();
  bool isThere() const { return comm_ != nullptr; }
  const std::string& whyNot() const { return whyNot_; }
  // Zeros where there is none.
  RivalId makeId();
  // Both call it. `rank` is 0 or 1.
  bool join(const RivalId& id, int rank);
  void transfer(bool isSend, const std::vector<void*>& blocks, size_t bytes, void* stream);

 private:
  void* library_ = nullptr;
  void* comm_ = nullptr;
  int other_ = 0;
  std::string whyNot_;
};

}  // namespace peerlane::blocks
