// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/index_check.h"

#include <algorithm>

namespace peerlane {

Status IndexCheck::counts(size_t local, size_t remote) const {
  if (local == remote && local != 0 && local <= most_) return Status::ok();
  return Status(Code::kInvalidArgument,
                std::to_string(local) + " local and " + std::to_string(remote) +
                    " remote block numbers; need as many of each, 1 to " + std::to_string(most_));
}

Status IndexCheck::check(std::span<const uint32_t> to, std::span<const uint32_t> from) {
  if (++posts_ == 0) {  // once in 2^32 posts
    std::fill(namedIn_.begin(), namedIn_.end(), 0);
    posts_ = 1;
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] >= toLimit_ || from[i] >= fromLimit_) [[unlikely]]
      return Status(Code::kInvalidArgument,
                    "block " + std::to_string(i) + ": numbers " + std::to_string(to[i]) +
                        " (destination) and " + std::to_string(from[i]) +
                        " (source); they must be below " + std::to_string(toLimit_) + " and " +
                        std::to_string(fromLimit_));
    if (namedIn_[to[i]] == posts_) [[unlikely]]
      return Status(Code::kInvalidArgument,
                    "destination block " + std::to_string(to[i]) + " is named twice in one post");
    namedIn_[to[i]] = posts_;
  }
  return Status::ok();
}

}  // namespace peerlane
