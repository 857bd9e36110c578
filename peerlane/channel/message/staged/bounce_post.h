// SPDX-License-Identifier: Apache-2.0
//
// BouncePost: messages that were posted together on one stream and are staged through host memory
// (BounceLane), with one rank or several: what their Transfer stands for. Everything is on the
// stream when the post returns: for each chunk a wait for a word that a turn stores, and a copy.
// Advanced by turns.
#pragma once

#include <chrono>
#include <memory>
#include <span>

#include "peerlane/channel/message/staged/bounce_lane.h"
#include "peerlane/channel/transfer/transfer.h"

namespace peerlane {

struct BouncedMessage {
  BounceLane* lane = nullptr;  // the owner's
  bool isSend = false;
  std::shared_ptr<RegionRecord> region;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Part part{};
};

// Posts all of them, or on an error nothing. `owner`, and with it their lanes, lives as long as
// they do. `timeout`: afterwards their lanes are ended with kTimeout. Errors: kNotSupported (the
// stream is being captured; more chunks than a stream takes at once), kClosed, kPeerLost,
// kPeerSilent, kOutOfMemory; what DeviceExecutor::postHeld says.
Result<Transfer> postBounced(std::shared_ptr<void> owner, std::span<const BouncedMessage> messages,
                             DeviceExecutor& executor, DeviceStream stream,
                             std::chrono::nanoseconds timeout);

}  // namespace peerlane
