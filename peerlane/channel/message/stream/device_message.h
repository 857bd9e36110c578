// SPDX-License-Identifier: Apache-2.0
//
// DeviceMessage: the operation of messages that were posted together on one stream of a GPU, with
// one rank or several. It ends when the stream has passed them or, on a stream that is being
// captured, when the graph is gone. Advanced by turns.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/transfer/transfer.h"

namespace peerlane {

struct PostedMessage {
  DeviceLane* lane = nullptr;                  // the owner's
  const DeviceLane::Runner* runner = nullptr;  // of the GPU whose stream it is
  DeviceLane::Item item;
  RegionRecord* region = nullptr;            // there as long as its gate is held
  std::shared_ptr<const PostedList> list{};  // the item's, if it is one; else null
  uint64_t place = 0;                        // in its direction, once it is posted, live
};

// Posts all messages on `stream`, or on an error none. `owner`, which keeps their lanes, lives as
// long as they do. `timeout`: after it their lanes are ended with kTimeout. Errors:
// kPermissionDenied, kClosed, kInvalidArgument, kPeerLost, kPeerSilent, and those of
// DeviceExecutor::postSteps.
Result<Transfer> postMessages(std::shared_ptr<void> owner, std::span<const PostedMessage> messages,
                              DeviceStream stream, std::chrono::nanoseconds timeout);

}  // namespace peerlane
