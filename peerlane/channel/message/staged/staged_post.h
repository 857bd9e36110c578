// SPDX-License-Identifier: Apache-2.0
//
// StagedPost: the operation of messages that were posted together on one stream, with one rank or
// several, and are staged through host memory (StagedLane). Everything is on the stream when the
// post returns: for each chunk a wait for a word that a turn stores, and a copy. Advanced by turns.
#pragma once

#include <chrono>
#include <memory>
#include <span>

#include "peerlane/channel/message/staged/staged_lane.h"
#include "peerlane/channel/transfer/transfer.h"

namespace peerlane {

struct MessageToStage {
  StagedLane* lane = nullptr;  // the owner's
  bool isSend = false;
  std::shared_ptr<RegionRecord> region;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Part part{};
};

// Posts all messages, or on an error none. `owner`, which keeps their lanes, lives as long as they
// do. `timeout`: after it their lanes are ended with kTimeout. Errors: kNotSupported (the stream is
// being captured; more chunks than a stream takes at once), kClosed, kPeerLost, kPeerSilent,
// kOutOfMemory, and those of DeviceExecutor::postHeld.
Result<Transfer> postStagedMessages(std::shared_ptr<void> owner,
                                    std::span<const MessageToStage> messages,
                                    DeviceExecutor& executor, DeviceStream stream,
                                    std::chrono::nanoseconds timeout);

}  // namespace peerlane
