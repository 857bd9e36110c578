// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/stream_list.h"

#include <string>

#include "peerlane/program/stream/message/ring_places.h"

namespace peerlane::stream {
namespace {

using kernel::RingWord;

// Reads a ring whose whole slots belong to the message.
bool readList(const StepPlace& place, uint32_t slots, RingWord& list) {
  if (!isRing(place, slots) || place.offset != 0) return false;
  list = {place.base, place.strideBytes, 0};
  return true;
}

bool isConstantStore(const Step& step) {
  return step.code == StepCode::kStore && !step.byCursor;
}

}  // namespace

// wait, words to a ring, two constants, the word that announces them.
std::optional<StreamListHead> StreamListHead::match(std::span<const LoweredStep> steps) {
  enum : size_t { kWait, kCopy, kFirst, kSecond, kTell, kSteps };
  if (steps.size() != kSteps) return std::nullopt;
  StreamListHead made;
  kernel::ListHeadJob& job = made.launch_.job;
  const Step& copy = steps[kCopy].step;
  const Step& tell = steps[kTell].step;
  const uint32_t slots = steps[kWait].step.to.slots;
  bool fits = readRing(steps[kWait].step, StepCode::kWait, slots, job.wait) &&
              copy.code == StepCode::kCopy && !copy.to.late && !copy.from.late &&
              copy.from.slots == 0 && readList(copy.to, slots, job.list) &&
              readRing(tell, StepCode::kStore, slots, job.tell) && !tell.readsOnly;
  for (size_t i = 0; i < 2 && fits; ++i) {
    const Step& value = steps[kFirst + i].step;
    fits = isConstantStore(value) && readInSlot(value.to, tell.to, job.valuesAt[i]);
  }
  if (!fits) return std::nullopt;
  job.slots = static_cast<uint16_t>(slots);
  return made;
}

Status StreamListHead::launch(const StepCall& call, std::span<const uint32_t> stepOf,
                              const ListRoom& room, const kernel::WordStore& completion,
                              bool overlapsEnd, void* stream) const {
  constexpr uint32_t kFirst = 2;
  kernel::ListHeadLaunch launch = launch_;
  kernel::ListHeadJob& job = launch.job;
  describeCall(job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const uint32_t value = stepOf[call.patches[i].op] - kFirst;
    if (value >= 2)
      return Status(Code::kInternal,
                    "op " + std::to_string(call.patches[i].op) + " of a list cannot be patched");
    job.values[value] = static_cast<uint64_t>(call.patches[i].value);
  }
  job.words = room.words();
  job.wordCount = static_cast<uint32_t>(call.words.size());
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchListHead(launch);
}

// wait, expected word, pieces to named places, a constant, the word that announces them.
std::optional<StreamListPut> StreamListPut::match(std::span<const LoweredStep> steps,
                                                  const StepPlace& list, uint32_t regionsAt) {
  enum : size_t { kWait, kExpected, kCopy, kValue, kTell, kSteps };
  if (steps.size() != kSteps) return std::nullopt;
  StreamListPut made;
  kernel::ListPutJob& job = made.launch_.job;
  const Step& wait = steps[kWait].step;
  const Step& expected = steps[kExpected].step;
  const Step& copy = steps[kCopy].step;
  const Step& value = steps[kValue].step;
  const Step& tell = steps[kTell].step;
  const uint32_t slots = wait.to.slots;
  StepPlace regions = wait.to;
  regions.offset += regionsAt;
  const bool fits =
      readRing(wait, StepCode::kWait, slots, job.wait) && expected.code == StepCode::kExpect &&
      readInSlot(expected.to, wait.to, job.checkAt) && job.checkAt != 0 && regionsAt != 0 &&
      readInSlot(regions, wait.to, job.regionsAt) && copy.code == StepCode::kCopy && copy.to.late &&
      copy.to.offset == 0 && !copy.from.late && copy.from.slots == 0 &&
      readList(list, slots, job.list) && readRing(tell, StepCode::kStore, slots, job.tell) &&
      !tell.readsOnly && isConstantStore(value) && readInSlot(value.to, tell.to, job.valueAt);
  if (!fits) return std::nullopt;
  job.slots = static_cast<uint16_t>(slots);
  return made;
}

Status StreamListPut::launch(const StepCall& call, std::span<const uint32_t> stepOf,
                             const ListRoom& room, const kernel::RegionTable& table,
                             const kernel::WordStore& completion, const StreamWords& words,
                             bool overlapsEnd, void* stream) const {
  constexpr uint32_t kExpected = 1, kValue = 3;
  kernel::ListPutLaunch launch = launch_;
  kernel::ListPutJob& job = launch.job;
  describeCall(job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const uint32_t step = stepOf[call.patches[i].op];
    if (step != kExpected && step != kValue)
      return Status(Code::kInternal,
                    "op " + std::to_string(call.patches[i].op) + " of a list cannot be patched");
    (step == kValue ? job.value : job.expected) = static_cast<uint64_t>(call.patches[i].value);
  }
  job.pieces = room.pieces();
  job.count = static_cast<uint32_t>(call.pieces.size());
  job.tiles = room.tiles();
  job.room = room.table();
  job.table = table;
  job.arrivals = words.arrivals;
  job.place = words.place;
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchListPut(launch);
}

}  // namespace peerlane::stream
