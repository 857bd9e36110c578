// SPDX-License-Identifier: Apache-2.0
//
// StripeCutter: shares the requests of one large put or get among all pairs of a link. Nothing
// orders the writes of different pairs, and an acknowledgement only says that the peer's device has
// the bytes: so after its share each pair gets a READ, whose answer says that all writes before it
// over that pair stand in memory; where the devices place nothing in order, it is posted when those
// were acknowledged. The work has ended when all of them are answered, and the next
// entry of its mailbox waits for that. External synchronization.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/transport/verbs/request/pair_lanes.h"
#include "peerlane/transport/verbs/request/request_cutter.h"

namespace peerlane {

class StripeCutter {
 public:
  // A smaller one is not worth the trip that its end costs: at 50 GB/s it moves in 80 us.
  static constexpr uint64_t kLeastBytes = 4 << 20;
  static constexpr uint32_t kMostPairs = 8;  // WorkState has a bit for each

  explicit StripeCutter(RequestCutter& cutter) : cutter_(cutter) {}

  // Of a work that may be shared: a put or get of so many bytes.
  static bool isLarge(const MailboxEntry& entry);

  // Posts requests for `work` over the lanes as long as there is room. kWhole: there is nothing
  // more to post. kStalled: there is no room, or no slot. A pair that takes no request: `failure`,
  // and the answer means nothing.
  RequestCutter::Cut cut(AgentWork& work, std::vector<std::unique_ptr<PairLane>>& lanes,
                         Status& failure);

 private:
  static constexpr uint64_t kBatchBytes = 2 << 20;  // of one post

  bool prove(AgentWork& work, PairLane& lane);

  RequestCutter& cutter_;
};

}  // namespace peerlane
