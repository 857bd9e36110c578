// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/owned_notify.h"

#include <string>
#include <utility>

#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/program/model/op.h"
#include "peerlane/session/peer/peer_slab.h"

namespace peerlane {
Result<OwnedNotify> ownNotify(const Notify& notify) {
  OwnedNotify owned;
  if (notify.message) {
    if (notify.message->size() > kNotifyMaxMessageBytes)
      return Status(Code::kInvalidArgument,
                    "notification message of " + std::to_string(notify.message->size()) +
                        " bytes; at most " + std::to_string(kNotifyMaxMessageBytes));
    owned.hasMessage = true;
    owned.message.assign(notify.message->begin(), notify.message->end());
    owned.header[0] = static_cast<uint32_t>(owned.message.size());
    owned.header[1] = notify.tag;
  }
  if (notify.signal) {
    if (*notify.signal >= slab::kSignals)
      return Status(Code::kInvalidArgument, "signal " + std::to_string(*notify.signal) +
                                                "; there are 0 to " +
                                                std::to_string(slab::kSignals - 1));
    if (notify.signalAdd >= kPoison)
      return Status(Code::kInvalidArgument, "signal addition " + std::to_string(notify.signalAdd) +
                                                "; counters stay below 2^62");
    owned.signal = notify.signal;
    owned.signalAdd = notify.signalAdd;
  }
  return owned;
}

}  // namespace peerlane
