// SPDX-License-Identifier: Apache-2.0
//
// WordMail: words that the peer has this side write, because its device does not place writes in
// order (control_block.h). Rights and range are checked as by any agent that serves a peer.
// External synchronization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/transport/verbs/request/news.h"

namespace peerlane {

class WordMail {
 public:
  // `slots`: of the control block. Both outlive it.
  WordMail(RegionDirectory& regions, std::span<const std::byte> slots)
      : regions_(regions), slots_(slots) {}

  // Writes the word of a mail. Errors: kCorrupt (no such slot), which ends the link; those of
  // RegionDirectory::pin(), and kInvalidArgument for a word that is not aligned: it alone is
  // refused.
  Status apply(const News& news);

 private:
  RegionDirectory& regions_;
  const std::span<const std::byte> slots_;
};

}  // namespace peerlane
