// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/stream_shapes.h"

#include <limits>
#include <string>

namespace peerlane::stream {
namespace {

using kernel::RingWord;

// Reads the steps one by one; one step that does not fit makes the whole program not fit.
class Reader {
 public:
  explicit Reader(std::span<const LoweredStep> steps) : steps_(steps) {}

  bool fits() const { return fits_; }
  bool isAtEnd() const { return at_ == steps_.size(); }
  uint32_t at() const { return static_cast<uint32_t>(at_); }
  uint32_t slots() const { return slots_; }
  bool isNext(StepCode code, bool byCursor) const {
    return !isAtEnd() && steps_[at_].step.code == code && steps_[at_].step.byCursor == byCursor;
  }
  const LoweredStep& take() { return steps_[at_++]; }
  void require(bool holds) { fits_ = fits_ && holds; }

  // What a message begins with: a wait for its slot, and what the slot must hold then, if anything.
  // Null: something else is next.
  template <class Job>
  const Step* takeHead(Job& job) {
    if (!isNext(StepCode::kWait, true)) return nullptr;
    const Step& wait = take().step;
    job.wait = ringOf(wait);
    if (isNext(StepCode::kExpect, false)) {
      const Step& expected = take().step;
      job.checkAt = inSlot(expected.to, wait.to);
      job.expected = static_cast<uint64_t>(expected.delta);
      require(job.checkAt != 0);
    }
    return &wait;
  }
  // A step on a word that counts messages: its ring.
  RingWord ringOf(const Step& step) {
    const StepPlace& place = step.to;
    require(isRing(place));
    require(step.delta >= std::numeric_limits<int32_t>::min() &&
            step.delta <= std::numeric_limits<int32_t>::max());
    return {place.base + place.offset, place.strideBytes, static_cast<int32_t>(step.delta)};
  }
  // The offset of a place in the slot of `word`.
  uint16_t inSlot(const StepPlace& place, const StepPlace& word) {
    const uint64_t at = place.offset - word.offset;
    require(isRing(place) && place.base == word.base && place.strideBytes == word.strideBytes &&
            place.offset >= word.offset && at < place.strideBytes &&
            at <= std::numeric_limits<uint16_t>::max());
    return static_cast<uint16_t>(at);
  }

 private:
  bool isRing(const StepPlace& place) {
    if (slots_ == 0) slots_ = place.slots;
    return !place.late && place.slots == slots_ && place.slotDelta == 0 && slots_ != 0 &&
           slots_ <= kernel::kMostRingSlots && (slots_ & (slots_ - 1)) == 0;
  }

  const std::span<const LoweredStep> steps_;
  size_t at_ = 0;
  uint32_t slots_ = 0;
  bool fits_ = true;
};

}  // namespace

std::optional<StreamRingSlot> StreamRingSlot::match(std::span<const LoweredStep> steps) {
  StreamRingSlot made;
  kernel::RingSlotJob& job = made.launch_.job;
  Reader reader(steps);
  if (reader.takeHead(job) == nullptr) return std::nullopt;
  const size_t firstValue = reader.at();
  while (reader.isNext(StepCode::kStore, false)) {
    reader.require(job.valueCount < kernel::kMostSlotValues);
    ++job.valueCount;
    (void)reader.take();
  }
  if (!reader.isNext(StepCode::kStore, true)) return std::nullopt;
  const LoweredStep& telling = reader.take();
  const Step& tell = telling.step;
  job.tell = reader.ringOf(tell);
  job.tellsWrites = !tell.readsOnly;
  job.tellsPeer = !telling.isLocalTo;
  if (!reader.fits()) return std::nullopt;
  for (uint32_t i = 0; i < job.valueCount; ++i) {
    const uint16_t at = reader.inSlot(steps[firstValue + i].step.to, tell.to);
    job.values[i] = static_cast<uint64_t>(steps[firstValue + i].step.delta);
    if (i == 0) job.valuesAt = at;
    reader.require(at == job.valuesAt + 8 * i);
  }
  if (!reader.isAtEnd() || !reader.fits()) return std::nullopt;
  job.slots = static_cast<uint8_t>(reader.slots());
  made.firstValue_ = static_cast<uint32_t>(firstValue);
  return made;
}

Status StreamRingSlot::launch(const StepCall& call, std::span<const uint32_t> stepOf,
                              const kernel::WordStore& completion, bool overlapsEnd,
                              void* stream) const {
  kernel::RingSlotLaunch launch = launch_;
  kernel::RingSlotJob& job = launch.job;
  describeCall(job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];
    const uint32_t step = stepOf[patch.op];
    if (step >= firstValue_) {
      job.values[step - firstValue_] = static_cast<uint64_t>(patch.value);
    } else {
      job.expected = static_cast<uint64_t>(patch.value);
    }
  }
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchRingSlot(launch);
}

// A sender waits for the credit and copies into the packets; a receiver waits for the packets,
// copies out of them and stores the credit.
std::optional<StreamPackets> StreamPackets::match(std::span<const LoweredStep> steps) {
  StreamPackets made;
  kernel::PacketJob& job = made.launch_.job;
  Reader reader(steps);
  made.launch_.isSend = !steps.empty() && !steps.front().packets;
  if (!reader.isNext(StepCode::kWait, true)) return std::nullopt;
  const LoweredStep& wait = reader.take();
  (made.launch_.isSend ? job.credits : job.packets) = reader.ringOf(wait.step);
  if (!reader.isNext(StepCode::kCopy, made.launch_.isSend)) return std::nullopt;
  const LoweredStep& copy = reader.take();
  reader.require(copy.packets && !copy.step.to.late && !copy.step.from.late);
  if (made.launch_.isSend) {
    job.packets = reader.ringOf(copy.step);
    reader.require(copy.step.early && copy.step.from.slots == 0);
  } else {
    // The copy must take exactly the packets of the wait.
    reader.require(wait.packets && copy.step.to.slots == 0 && copy.step.bytes == wait.step.bytes &&
                   reader.inSlot(copy.step.from, wait.step.to) == 0);
    if (!reader.isNext(StepCode::kStore, true)) return std::nullopt;
    const LoweredStep& credit = reader.take();
    job.credits = reader.ringOf(credit.step);
    reader.require(credit.step.readsOnly);
  }
  if (!reader.isAtEnd() || !reader.fits()) return std::nullopt;
  job.slots = static_cast<uint8_t>(reader.slots());
  return made;
}

Status StreamPackets::launch(const StepCall& call, const kernel::WordStore& completion,
                             bool overlapsEnd, void* stream) const {
  kernel::PacketLaunch launch = launch_;
  describeCall(launch.job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];  // of its copy: it has no other op to patch
    if (patch.bytes > kernel::kMostPacketMessageBytes)
      return Status(Code::kInternal, "a message in LL packets has at most 1024 bytes, not " +
                                         std::to_string(patch.bytes));
    launch.job.local = patch.address;
    launch.job.bytes = static_cast<uint16_t>(patch.bytes);
  }
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchPackets(launch);
}

std::optional<StreamPut> StreamPut::match(std::span<const LoweredStep> steps,
                                          const LateSource& late) {
  StreamPut made;
  kernel::PutJob& job = made.launch_.job;
  Reader reader(steps);
  const Step* const wait = reader.takeHead(job);
  if (wait == nullptr) return std::nullopt;
  if (!reader.isNext(StepCode::kCopy, false)) return std::nullopt;
  made.copyStep_ = reader.at();
  const Step& copy = reader.take().step;
  reader.require(copy.to.late && copy.to.offset == 0 && !copy.from.late && copy.from.slots == 0);
  if (!reader.isNext(StepCode::kStore, false)) return std::nullopt;
  made.valueStep_ = reader.at();
  const Step& value = reader.take().step;
  job.value = static_cast<uint64_t>(value.delta);
  if (!reader.isNext(StepCode::kStore, true)) return std::nullopt;
  const Step& tell = reader.take().step;
  job.tell = reader.ringOf(tell);
  reader.require(!tell.readsOnly);
  job.valueAt = reader.inSlot(value.to, tell.to);
  const auto named = [&](uint32_t at) {
    StepPlace place = late.envelope;
    place.offset += at;
    return reader.inSlot(place, wait->to);
  };
  job.allocationAt = named(late.allocationAt);
  job.generationAt = named(late.generationAt);
  job.offsetAt = named(late.offsetAt);
  if (!reader.isAtEnd() || !reader.fits()) return std::nullopt;
  job.slots = static_cast<uint16_t>(reader.slots());
  return made;
}

Status StreamPut::launch(const StepCall& call, std::span<const uint32_t> stepOf,
                         const kernel::RegionTable& table, const kernel::WordStore& completion,
                         const StreamWords& words, bool overlapsEnd, void* stream) const {
  kernel::PutLaunch launch = launch_;
  kernel::PutJob& job = launch.job;
  describeCall(job, call, completion);
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];
    const uint32_t step = stepOf[patch.op];
    if (step == copyStep_) {
      job.from = patch.address;
      job.bytes = patch.bytes;
    } else if (step == valueStep_) {
      job.value = static_cast<uint64_t>(patch.value);
    } else {
      job.expected = static_cast<uint64_t>(patch.value);
    }
  }
  job.table = table;
  job.arrivals = words.arrivals;
  job.place = words.place;
  launch.overlapsEnd = overlapsEnd;
  launch.stream = stream;
  return kernel::launchPut(launch);
}

}  // namespace peerlane::stream
