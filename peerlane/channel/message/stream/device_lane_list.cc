// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: messages in many pieces, which the sender copies to where the receiver says.
#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/protocol/device_list_protocol.h"

namespace peerlane {

Status DeviceLane::makeLists(Runner& runner, std::byte* mine, std::byte* theirs) {
  using Area = DeviceArea;
  const auto place = [](std::byte* area, uint64_t offset) {
    return BoundTarget{.address = area + offset, .bytes = Area::kBytes - offset};
  };
  const BoundTarget late;
  PEERLANE_ASSIGN(runner.listHead,
                  runner.executor->prepareSteps(streamListHead(),
                                                {.targets = {late, place(theirs, Area::kListOffset),
                                                             place(theirs, Area::kListPostedOffset),
                                                             place(mine, Area::kListFreeOffset)}},
                                                {.copiesWords = true}));
  PEERLANE_ASSIGN(
      runner.listSend,
      runner.executor->prepareSteps(
          streamListSend(),
          {.targets = {late, late, place(mine, Area::kListOffset),
                       place(mine, Area::kListPostedOffset), place(theirs, Area::kListDoneOffset)}},
          {.expected = {{{.target = ListSendOps::kPosted, .offset = Area::kShapeAt}}},
           .lookup = {.slot = {.target = ListSendOps::kPosted},
                      .names = runner.names.get(),
                      .list = {.target = ListSendOps::kList},
                      .regionsAt = Area::kRegionsAt}}));
  PEERLANE_ASSIGN(
      runner.listTail,
      runner.executor->prepareSteps(
          streamPutTail({.slots = Area::kListSlots}),
          {.targets = {place(mine, Area::kListDoneOffset), place(mine, Area::kListFreeOffset)}},
          {.expected = {{{.target = PutTailOps::kDone, .offset = Area::kShapeAt}}}}));
  return Status::ok();
}

void DeviceLane::addList(const Item& item, const Runner& runner, uint64_t number, bool captured,
                         Part part, std::atomic<uint64_t>* fault, std::vector<StepCall>& calls) {
  const PostedList& list = *item.list;
  const auto shape = static_cast<int64_t>(list.shape());
  const auto call = [&](const std::unique_ptr<StepList>& steps) -> StepCall& {
    calls.push_back(callOf(steps, number, captured, sequenceOf(item)));
    return calls.back();
  };
  if (part == Part::kHead && !item.isSend) {
    StepCall& head = call(runner.listHead);
    head.words = list.words();
    head.patch({.op = ListHeadOps::kShape, .value = shape});
    head.patch({.op = ListHeadOps::kRegions, .value = static_cast<int64_t>(list.regions().size())});
  } else if (part == Part::kSend && item.isSend) {
    StepCall& send = call(runner.listSend);
    send.pieces = list.pieces();
    send.patch({.op = ListSendOps::kShape, .value = shape});
    send.patch({.op = ListSendOps::kExpectedShape, .value = shape});
    send.fault = fault;
  } else if (part == Part::kReceive && !item.isSend) {
    StepCall& tail = call(runner.listTail);
    tail.patch({.op = PutTailOps::kExpectedBytes, .value = shape});
    tail.fault = fault;
  }
}

}  // namespace peerlane
