// SPDX-License-Identifier: Apache-2.0
//
// IndexCheck: whether the block numbers of one post of an indexed plan are in range, and each
// destination named once. Linear, without sorting or clearing. External synchronization required.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

class IndexCheck {
 public:
  IndexCheck() = default;
  explicit IndexCheck(const CopyLayout& layout)
      : toLimit_(layout.toLimit), fromLimit_(layout.fromLimit), most_(layout.count) {
    namedIn_.assign(toLimit_, 0);
  }

  // As many of each as a post may name.
  Status counts(size_t local, size_t remote) const;
  // Requires: counts() was OK.
  Status check(std::span<const uint32_t> to, std::span<const uint32_t> from);

 private:
  uint64_t toLimit_ = 0;
  uint64_t fromLimit_ = 0;
  uint64_t most_ = 0;
  // The post in which a destination block was last named.
  std::vector<uint32_t> namedIn_;
  uint32_t posts_ = 0;
};

}  // namespace peerlane
