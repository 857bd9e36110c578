// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: the runners by which GPUs carry messages out. The first GPU of the context has the
// area; any other GPU does the same work with the same words, in the first one's memory.
#include <utility>

#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/protocol/device_protocol.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

// Places only: nothing of the other side's area is touched.
Status DeviceLane::makeRunner(Runner& runner) const {
  std::byte* const mine = area_->base;
  std::byte* const theirs = peerArea_->region->memory.on(runner.executor->device());
  if (theirs == nullptr)
    return Status(Code::kNotSupported, "the area of rank " + std::to_string(rank_) +
                                           " could not be opened for " +
                                           runner.executor->device().toString());
  Status status;
  const auto place = [](std::byte* area, uint64_t offset) {
    return BoundTarget{.address = area + offset, .bytes = DeviceArea::kBytes - offset};
  };
  const auto make = [&](std::unique_ptr<StepList>& steps, const Program& program,
                        std::vector<BoundTarget> targets, const StepRules& rules) {
    if (!status.isOk()) return;
    auto made = runner.executor->prepareSteps(program, {.targets = std::move(targets)}, rules);
    status = made.status();
    if (made.isOk()) steps = std::move(*made);
  };
  using Area = DeviceArea;
  const BoundTarget late;
  make(runner.eagerSend, streamEagerSend(),
       {late, place(theirs, Area::kInboxOffset), place(mine, Area::kCreditsOffset)}, {});
  make(runner.eagerRecv, streamEagerRecv(),
       {late, place(mine, Area::kInboxOffset), place(theirs, Area::kCreditsOffset)}, {});
  make(runner.putSend, streamPutSend(),
       {late, late, place(mine, Area::kPostedOffset), place(theirs, Area::kDoneOffset)},
       {.expected = {{{.target = PutSendOps::kPosted, .offset = Area::kPostedBytesAt}}},
        .lookup = {.slot = {.target = PutSendOps::kPosted},
                   .allocationAt = Area::kAllocationAt,
                   .generationAt = Area::kGenerationAt,
                   .offsetAt = Area::kOffsetAt,
                   .names = runner.names.get()}});
  make(runner.putHead, streamPutHead(),
       {place(theirs, Area::kPostedOffset), place(mine, Area::kFreeOffset)}, {});
  make(runner.putTail, streamPutTail(),
       {place(mine, Area::kDoneOffset), place(mine, Area::kFreeOffset)},
       {.expected = {{{.target = PutTailOps::kDone, .offset = Area::kBytesAt}}}});
  if (status.isOk()) status = makeGets(runner, mine, theirs);
  return status.isOk() ? makeLists(runner, mine, theirs) : status;
}

// Not under a lock that turns want: the driver may take its time.
Result<std::unique_ptr<DeviceLane::Runner>> DeviceLane::makeOther(DeviceExecutor& executor) const {
  auto runner = std::make_unique<Runner>();
  runner->executor = &executor;
  PEERLANE_ASSIGN(const MemoryDescription cursors, cursors_->describe());
  PEERLANE_RETURN_IF_ERROR(executor.open(area_->memory, area_->base));
  PEERLANE_RETURN_IF_ERROR(executor.open(cursors, cursors_->data()));
  PEERLANE_ASSIGN(runner->names, executor.makeRegionNames());
  PEERLANE_RETURN_IF_ERROR(makeRunner(*runner));
  return runner;
}

const DeviceLane::Runner* DeviceLane::otherOn(const DeviceExecutor& executor) const {
  for (const auto& other : others_)
    if (other->executor == &executor) return other.get();
  return nullptr;
}

Result<const DeviceLane::Runner*> DeviceLane::runnerOn(DeviceExecutor& executor) {
  if (&executor == first_.executor) return &first_;
  PEERLANE_RETURN_IF_ERROR(health());
  const MutexLock making(runnersMutex_);
  if (const Runner* const known = otherOn(executor)) return known;
  auto made = makeOther(executor);
  const MutexLock lock(stateMutex_);
  Status status = made.status();
  for (const Named& named : named_)
    if (status.isOk() && named.known) status = addName(**made, named);
  if (!status.isOk())
    return status.withContext("messages on streams of " + executor.device().toString());
  return others_.emplace_back(std::move(*made)).get();
}

}  // namespace peerlane
