// SPDX-License-Identifier: Apache-2.0
//
// OwnedNotify: what a put tells its peer (Notify in blocks.h), checked, with a copy of the message,
// because the caller's may go when the post has returned. A value; the transfer or plan that
// delivers it owns it. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/core/status.h"

namespace peerlane {

struct OwnedNotify {
  // Stands in the header in place of a length when a claimed slot is given up: the receiver skips
  // the slot.
  static constexpr uint32_t kVoid = 0xffff'ffffu;

  bool hasMessage = false;
  uint32_t header[2] = {0, 0};  // bytes or kVoid, tag
  std::vector<std::byte> message;
  std::optional<uint32_t> signal;
  uint64_t signalAdd = 0;
};

// kInvalidArgument for a message that is too long or a signal that does not exist.
Result<OwnedNotify> ownNotify(const Notify& notify);

}  // namespace peerlane
