// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: messages that the receiver copies from the sender's memory.
#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/protocol/device_get_protocol.h"

namespace peerlane {

Status DeviceLane::makeGets(Runner& runner, std::byte* mine, std::byte* theirs) {
  using Area = DeviceArea;
  const auto place = [](std::byte* area, uint64_t offset) {
    return BoundTarget{.address = area + offset, .bytes = Area::kBytes - offset};
  };
  const BoundTarget late;
  PEERLANE_ASSIGN(
      runner.getHead,
      runner.executor->prepareSteps(
          streamGetHead(),
          {.targets = {place(theirs, Area::kOfferedOffset), place(mine, Area::kTakenOffset)}}, {}));
  PEERLANE_ASSIGN(runner.getTail,
                  runner.executor->prepareSteps(
                      streamGetTail(), {.targets = {place(mine, Area::kTakenOffset)}},
                      {.accepted = {.target = GetTailOps::kTaken, .offset = Area::kAcceptedAt}}));
  PEERLANE_ASSIGN(runner.getRecv,
                  runner.executor->prepareSteps(
                      streamGetRecv(),
                      {.targets = {late, late, place(mine, Area::kOfferedOffset),
                                   place(theirs, Area::kTakenOffset)}},
                      {.expected = {{{.target = GetRecvOps::kOffered, .offset = Area::kBytesAt}}},
                       .lookup = {.slot = {.target = GetRecvOps::kOffered},
                                  .allocationAt = Area::kOfferedAllocationAt,
                                  .generationAt = Area::kOfferedGenerationAt,
                                  .offsetAt = Area::kOfferedOffsetAt,
                                  .names = runner.names.get()},
                       .acceptingStore = GetRecvOps::kAccept}));
  return Status::ok();
}

void DeviceLane::addGet(const Item& item, const Runner& runner, uint64_t number, bool captured,
                        Part part, std::atomic<uint64_t>* fault, std::vector<StepCall>& calls) {
  const auto word = [](uint64_t value) { return static_cast<int64_t>(value); };
  const auto call = [&](const std::unique_ptr<StepList>& steps) -> StepCall& {
    calls.push_back(callOf(steps, number, captured, sequenceOf(item)));
    return calls.back();
  };
  if (part == Part::kHead && item.isSend) {
    StepCall& head = call(runner.getHead);
    head.patch({.op = GetHeadOps::kBytes, .value = word(item.bytes)});
    head.patch({.op = GetHeadOps::kAllocation,
                .value = word(item.region->allocation | DeviceArea::kToRead)});
    head.patch({.op = GetHeadOps::kGeneration, .value = word(item.region->generation)});
    head.patch({.op = GetHeadOps::kOffset,
                .value = static_cast<int64_t>(item.address - item.region->base)});
  } else if (part == Part::kReceive && !item.isSend) {
    StepCall& receive = call(runner.getRecv);
    receive.patch({.op = GetRecvOps::kCopy, .address = item.address, .bytes = item.bytes});
    receive.patch({.op = GetRecvOps::kExpectedBytes, .value = word(item.bytes)});
    receive.fault = fault;
  } else if (part == Part::kTail && item.isSend) {
    call(runner.getTail).fault = fault;
  }
}

}  // namespace peerlane
