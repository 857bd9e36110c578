// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/stream_step_list.h"

#include <algorithm>
#include <array>
#include <string>

namespace peerlane::stream {
namespace {

using kernel::Step;
using kernel::StepCode;
using kernel::StepPlace;

// The device sets up a launch that follows another of the library's while that one ends: 0.9 us
// less for a message and its answer in a graph, and no loss on a stream (measured on H200 with step
// kernels).
constexpr bool kOverlapsEnd = true;

Status unsupported(const char* what) {
  return Status(Code::kNotSupported, std::string("a step kernel cannot do ") + what);
}

Result<StepPlace> placeOf(const Program& program, const Binding& binding, const Place& place) {
  if (place.target >= program.targets.size() || place.target >= binding.targets.size())
    return Status(Code::kInternal, "target " + std::to_string(place.target) + " is not bound");
  const Target& target = program.targets[place.target];
  StepPlace made;
  made.offset = place.offset;
  if (target.late && target.side == Side::kRemote) {
    made.late = true;
    return made;
  }
  made.base = binding.targets[place.target].address;
  if (target.slots > 0) {
    made.slots = target.slots;
    made.strideBytes = target.strideBytes;
    made.slotDelta = place.slotDelta;
  }
  return made;
}

// A store to the peer needs a fence only if this program wrote to the peer before it, because the
// peer reads those writes after it has seen the store.
bool wroteToPeer(const Program& program, size_t before) {
  return std::any_of(program.ops.begin(), program.ops.begin() + static_cast<ptrdiff_t>(before),
                     [&](const Op& op) {
                       const bool writes = op.code == OpCode::kCopy || op.code == OpCode::kStore;
                       return writes && program.targets[op.to.target].side == Side::kRemote;
                     });
}

// The source is the program's own memory, which no wait guards.
bool mayReadEarly(const Program& program, const Op& copy) {
  const Target& from = program.targets[copy.from.target];
  return from.side == Side::kLocal && from.slots == 0;
}

}  // namespace

Result<std::unique_ptr<StreamStepList>> StreamStepList::lower(const Program& program,
                                                              const Binding& binding,
                                                              const StepRules& rules) {
  auto made = std::make_unique<StreamStepList>();
  std::vector<uint32_t> expected(rules.expected.size());
  bool waited = false, copiesLate = false, hasPackets = false;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    Step step;
    PEERLANE_ASSIGN(step.to, placeOf(program, binding, op.to));
    step.delta = op.operand.delta;
    step.byCursor = op.operand.cursor != kNoCursor;
    const bool toLocal = program.targets[op.to.target].side == Side::kLocal;
    const auto holdsPackets = [&](const Place& place) {
      return place.target < program.targets.size() && program.targets[place.target].packets;
    };
    const bool packets = holdsPackets(op.to) || holdsPackets(op.from);
    hasPackets = hasPackets || packets;
    step.bytes = op.bytes;
    switch (op.code) {
      case OpCode::kWait:
        if (op.compare != Compare::kGreaterEqual || op.width != Width::k64)
          return unsupported("waits other than >= for 64 bits");
        step.code = StepCode::kWait;
        break;
      case OpCode::kStore:
        if (op.width != Width::k64) return unsupported("stores of 32 bits");
        step.code = StepCode::kStore;
        step.readsOnly = op.order == Order::kRelaxed || (!toLocal && !wroteToPeer(program, i));
        break;
      case OpCode::kCopy: {
        step.code = StepCode::kCopy;
        PEERLANE_ASSIGN(step.from, placeOf(program, binding, op.from));
        step.early = mayReadEarly(program, op);
        copiesLate = copiesLate || step.to.late || step.from.late;
        break;
      }
      default: return unsupported("lists, additions, fences and flushes");
    }
    made->stepOf_.push_back(static_cast<uint32_t>(made->steps_.size()));
    made->steps_.push_back({step, toLocal, packets});
    if (op.code != OpCode::kWait || waited) continue;
    waited = true;
    for (size_t e = 0; e < rules.expected.size(); ++e) {
      Step check;
      check.code = StepCode::kExpect;
      PEERLANE_ASSIGN(check.to, placeOf(program, binding, rules.expected[e].place));
      expected[e] = static_cast<uint32_t>(made->steps_.size());
      made->steps_.push_back({check, true});
    }
  }
  made->stepOf_.insert(made->stepOf_.end(), expected.begin(), expected.end());
  if (made->steps_.size() > kernel::kMostSteps) return unsupported("so many steps in one launch");
  if (hasPackets) {
    made->packets_ = StreamPackets::match(made->steps_);
    if (!made->packets_) return unsupported("LL packets but for a side of a small message");
  } else if (rules.lookup.list.target != kNoTarget) {
    PEERLANE_ASSIGN(const StepPlace list, placeOf(program, binding, rules.lookup.list));
    made->names_ = static_cast<const StreamRegionNames*>(rules.lookup.names);
    if (made->names_ != nullptr)
      made->listPut_ = StreamListPut::match(made->steps_, list, rules.lookup.regionsAt);
    if (!made->listPut_) return unsupported("lists of pieces but for the sender of a message");
  } else if (rules.lookup.names != nullptr) {
    PEERLANE_ASSIGN(made->late_.envelope, placeOf(program, binding, rules.lookup.slot));
    made->late_.allocationAt = rules.lookup.allocationAt;
    made->late_.generationAt = rules.lookup.generationAt;
    made->late_.offsetAt = rules.lookup.offsetAt;
    made->names_ = static_cast<const StreamRegionNames*>(rules.lookup.names);
    made->late_.table = made->names_->table();
    if (rules.acceptingStore == StepRules::kNoOp)
      made->put_ = StreamPut::match(made->steps_, made->late_);
    else if (rules.acceptingStore < program.ops.size())
      made->get_ = StreamGet::match(made->steps_, made->late_, made->stepOf_[rules.acceptingStore]);
  } else if (copiesLate) {
    return Status(Code::kInternal, "late targets without a table to find them in");
  } else if (rules.copiesWords) {
    made->listHead_ = StreamListHead::match(made->steps_);
    if (!made->listHead_) return unsupported("words of a call but for the receiver of a list");
  } else if (rules.accepted.target != kNoTarget) {
    PEERLANE_ASSIGN(const StepPlace accepted, placeOf(program, binding, rules.accepted));
    made->getEnd_ = StreamGetEnd::match(made->steps_, accepted);
  } else {
    made->ringSlot_ = StreamRingSlot::match(made->steps_);
  }
  if (rules.acceptingStore != StepRules::kNoOp && !made->get_)
    return unsupported("stores that are left out with copies");
  if (rules.accepted.target != kNoTarget && !made->getEnd_)
    return unsupported("a look at what was accepted");
  return made;
}

Status StreamStepList::launch(const StepCall& call, const kernel::WordStore& completion,
                              const StreamWords& words, const ListRoom* room, void* stream) const {
  if (packets_) return packets_->launch(call, completion, kOverlapsEnd, stream);
  if (ringSlot_) return ringSlot_->launch(call, stepOf_, completion, kOverlapsEnd, stream);
  if (put_)
    return put_->launch(call, stepOf_, names_->table(), completion, words, kOverlapsEnd, stream);
  if (get_)
    return get_->launch(call, stepOf_, names_->table(), completion, words, kOverlapsEnd, stream);
  if (getEnd_) return getEnd_->launch(call, completion, kOverlapsEnd, stream);
  if (listHead_ || listPut_) return launchList(call, completion, words, room, stream);
  return launchSteps(call, completion, words, stream);
}

Status StreamStepList::launchList(const StepCall& call, const kernel::WordStore& completion,
                                  const StreamWords& words, const ListRoom* room,
                                  void* stream) const {
  if (room == nullptr || call.words.empty() == listHead_.has_value())
    return Status(Code::kInternal, "a list needs its pieces, or its words, with every call");
  if (listHead_) return listHead_->launch(call, stepOf_, *room, completion, kOverlapsEnd, stream);
  return listPut_->launch(call, stepOf_, *room, names_->table(), completion, words, kOverlapsEnd,
                          stream);
}

// Any shape, by one block.
Status StreamStepList::launchSteps(const StepCall& call, const kernel::WordStore& completion,
                                   const StreamWords& words, void* stream) const {
  std::array<Step, kernel::kMostSteps> steps{};
  for (size_t i = 0; i < steps_.size(); ++i) steps[i] = steps_[i].step;
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];
    const uint32_t at = stepOf_[patch.op];
    Step& step = steps[at];
    if (step.code != StepCode::kCopy) {
      step.delta = patch.value;
      continue;
    }
    step.bytes = patch.bytes;
    if (patch.address == nullptr) continue;
    StepPlace& local = steps_[at].isLocalTo ? step.to : step.from;
    local = {};
    local.base = patch.address;
  }
  kernel::StepLaunch launch;
  launch.steps = steps.data();
  launch.count = static_cast<uint32_t>(steps_.size());
  launch.late = late_;
  if (names_ != nullptr) launch.late.table = names_->table();
  if (call.cursorWord == nullptr) {
    launch.cursor = call.cursor;
  } else {
    launch.cursorWord = reinterpret_cast<uint64_t*>(call.cursorWord);
    launch.advance = call.advance;
    const auto offset = static_cast<int64_t>(call.cursor);
    for (uint32_t i = 0; i < launch.count; ++i) {
      if (steps[i].byCursor) steps[i].delta += offset;
      steps[i].to.slotDelta += offset;
      steps[i].from.slotDelta += offset;
    }
    launch.late.envelope.slotDelta += offset;
  }
  launch.abort = reinterpret_cast<const uint64_t*>(call.abort);
  launch.completion = completion;
  launch.fault = reinterpret_cast<uint64_t*>(call.fault);
  launch.faultValue = call.faultValue;
  launch.ended = reinterpret_cast<uint64_t*>(call.ended);
  launch.arrivals = words.arrivals;
  launch.overlapsEnd = kOverlapsEnd;
  launch.stream = stream;
  return kernel::launchSteps(launch);
}

}  // namespace peerlane::stream
