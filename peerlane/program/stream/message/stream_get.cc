// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/stream_get.h"

#include "peerlane/program/stream/message/ring_places.h"

namespace peerlane::stream {
// wait, expected word, copy from a named place, two words by number.
std::optional<StreamGet> StreamGet::match(std::span<const LoweredStep> steps,
                                          const LateSource& late, uint32_t accepting) {
  enum : size_t { kWait, kExpected, kCopy, kAccept, kTell, kSteps };
  if (steps.size() != kSteps || accepting != kAccept) return std::nullopt;
  StreamGet made;
  kernel::GetJob& job = made.launch_.job;
  const Step& wait = steps[kWait].step;
  const Step& expected = steps[kExpected].step;
  const Step& copy = steps[kCopy].step;
  const uint32_t slots = wait.to.slots;
  const auto named = [&](uint32_t at, uint16_t& inSlot) {
    StepPlace place = late.envelope;
    place.offset += at;
    return readInSlot(place, wait.to, inSlot);
  };
  const bool fits =
      readRing(wait, StepCode::kWait, slots, job.wait) && expected.code == StepCode::kExpect &&
      readInSlot(expected.to, wait.to, job.checkAt) && job.checkAt != 0 &&
      copy.code == StepCode::kCopy && copy.from.late && copy.from.offset == 0 && !copy.to.late &&
      copy.to.slots == 0 && readRing(steps[kAccept].step, StepCode::kStore, slots, job.accept) &&
      readRing(steps[kTell].step, StepCode::kStore, slots, job.tell) &&
      named(late.allocationAt, job.allocationAt) && named(late.generationAt, job.generationAt) &&
      named(late.offsetAt, job.offsetAt);
  if (!fits) return std::nullopt;
  job.expected = static_cast<uint64_t>(expected.delta);
  job.slots = static_cast<uint16_t>(slots);
  made.copyStep_ = kCopy;
  return made;
}

Status StreamGet::launch(const StepCall& call, std::span<const uint32_t> stepOf,
                         const kernel::RegionTable& table, const kernel::WordStore& completion,
                         const StreamWords& words, bool overlapsEnd, void* stream) const {
  kernel::GetLaunch launch = launch_;
  kernel::GetJob& job = launch.job;
  describeCall(job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];
    if (stepOf[patch.op] == copyStep_) {
      job.to = patch.address;
      job.bytes = patch.bytes;
    } else {
      job.expected = static_cast<uint64_t>(patch.value);
    }
  }
  job.table = table;
  job.arrivals = words.arrivals;
  job.place = words.place;
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchGet(launch);
}

std::optional<StreamGetEnd> StreamGetEnd::match(std::span<const LoweredStep> steps,
                                                const StepPlace& accepted) {
  if (steps.size() != 1) return std::nullopt;
  StreamGetEnd made;
  kernel::GetEndJob& job = made.launch_.job;
  const Step& wait = steps[0].step;
  if (!readRing(wait, StepCode::kWait, wait.to.slots, job.wait) || !isRing(accepted, wait.to.slots))
    return std::nullopt;
  job.accepted = {accepted.base + accepted.offset, accepted.strideBytes, job.wait.delta};
  job.slots = wait.to.slots;
  return made;
}

Status StreamGetEnd::launch(const StepCall& call, const kernel::WordStore& completion,
                            bool overlapsEnd, void* stream) const {
  kernel::GetEndLaunch launch = launch_;
  describeCall(launch.job, call, completion);
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchGetEnd(launch);
}

}  // namespace peerlane::stream
