// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/stream_steps.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace peerlane::stream {
namespace {

using kernel::Step;
using kernel::StepCode;
using kernel::StepPlace;

// Each block looks a late place up by itself, and they do that one after another, 5.5 us each
// (measured on H200), while one copies about 20 GB/s: so few blocks, more for longer copies.
constexpr uint64_t kBytesPerSquareCta = 112 << 10;
constexpr uint64_t kAloneBytes = 4 * kBytesPerSquareCta;
constexpr uint32_t kMostCtas = 64;

uint32_t ctasFor(uint64_t bytes) {
  uint32_t ctas = 2;
  while (ctas < kMostCtas && uint64_t{ctas} * ctas * kBytesPerSquareCta < bytes) ++ctas;
  return ctas;
}

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

// Stores behind which nobody reads what this program wrote to the peer need no fence.
bool wroteToPeer(const Program& program, size_t before) {
  return std::any_of(program.ops.begin(), program.ops.begin() + static_cast<ptrdiff_t>(before),
                     [&](const Op& op) {
                       const bool writes = op.code == OpCode::kCopy || op.code == OpCode::kStore;
                       return writes && program.targets[op.to.target].side == Side::kRemote;
                     });
}

// The source is the user's, and no wait is for it.
bool mayReadEarly(const Program& program, const Op& copy) {
  const Target& from = program.targets[copy.from.target];
  return from.side == Side::kLocal && from.slots == 0;
}

}  // namespace

Result<std::unique_ptr<StreamSteps>> StreamSteps::lower(const Program& program,
                                                        const Binding& binding,
                                                        const StepRules& rules) {
  auto made = std::make_unique<StreamSteps>();
  std::vector<Indexed> expected(rules.expected.size());
  bool waited = false;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    Step step;
    PEERLANE_ASSIGN(step.to, placeOf(program, binding, op.to));
    step.delta = op.operand.delta;
    step.byCursor = op.operand.lane != kNoLane;
    const bool toLocal = program.targets[op.to.target].side == Side::kLocal;
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
        step.bytes = op.bytes;
        step.early = mayReadEarly(program, op);
        made->copiesLate_ = made->copiesLate_ || step.to.late || step.from.late;
        break;
      }
      default: return unsupported("lists, additions, fences and flushes");
    }
    made->byOp_.push_back({static_cast<uint32_t>(made->steps_.size()), toLocal});
    made->steps_.push_back(step);
    if (op.code != OpCode::kWait || waited) continue;
    waited = true;
    for (size_t e = 0; e < rules.expected.size(); ++e) {
      Step check;
      check.code = StepCode::kExpect;
      PEERLANE_ASSIGN(check.to, placeOf(program, binding, rules.expected[e].place));
      expected[e] = {static_cast<uint32_t>(made->steps_.size()), true};
      made->steps_.push_back(check);
    }
  }
  made->byOp_.insert(made->byOp_.end(), expected.begin(), expected.end());
  if (made->steps_.size() > kernel::kMostSteps) return unsupported("so many steps in one launch");
  if (rules.lookup.names != nullptr) {
    PEERLANE_ASSIGN(made->late_.envelope, placeOf(program, binding, rules.lookup.slot));
    made->late_.allocationAt = rules.lookup.allocationAt;
    made->late_.generationAt = rules.lookup.generationAt;
    made->late_.offsetAt = rules.lookup.offsetAt;
    made->late_.table = static_cast<const StreamRegionNames*>(rules.lookup.names)->table();
    made->late_.tableSlots = StreamRegionNames::kSlots;
  } else if (made->copiesLate_) {
    return Status(Code::kInternal, "late targets without a table to find them in");
  }
  return made;
}

Status StreamSteps::launch(const StepCall& call, const kernel::WordStore& completion,
                           uint32_t* arrivals, void* stream) const {
  std::array<Step, kernel::kMostSteps> steps{};
  std::copy(steps_.begin(), steps_.end(), steps.begin());
  uint64_t most = 0;
  for (uint32_t i = 0; i < call.patchCount; ++i) {
    const StepPatch& patch = call.patches[i];
    const Indexed& at = byOp_[patch.op];
    Step& step = steps[at.step];
    if (step.code != StepCode::kCopy) {
      step.delta = patch.value;
      continue;
    }
    step.bytes = patch.bytes;
    if (patch.address != nullptr) {
      StepPlace& local = at.isLocalTo ? step.to : step.from;
      local = {};
      local.base = patch.address;
    }
    most = std::max(most, patch.bytes);
  }
  kernel::StepLaunch launch;
  launch.steps = steps.data();
  launch.count = static_cast<uint32_t>(steps_.size());
  launch.late = late_;
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
  launch.arrivals = arrivals;
  launch.stream = stream;
  if (copiesLate_ && most > kAloneBytes) {
    // Blocks that wait occupy the device: one waits for all, and then they come.
    kernel::StepLaunch wait = launch;
    wait.count = 1;
    wait.completion = {};
    wait.advance = 0;
    wait.ctas = 1;
    PEERLANE_RETURN_IF_ERROR(kernel::launchSteps(wait));
    launch.ctas = ctasFor(most);
  }
  return kernel::launchSteps(launch);
}

StreamRegionNames::StreamRegionNames(PinnedPool& pool, std::mutex& mutex, const PinnedBlock& block)
    : pool_(pool),
      mutex_(mutex),
      block_(block),
      table_(reinterpret_cast<kernel::NamedRegion*>(block.data)) {
  std::memset(block.data, 0, kSlots * sizeof(kernel::NamedRegion));
}

StreamRegionNames::~StreamRegionNames() {
  const std::lock_guard lock(mutex_);
  pool_.giveBack(block_);
}

kernel::NamedRegion* StreamRegionNames::find(uint64_t allocation, uint64_t generation) {
  const uint32_t first = kernel::namedRegionSlot(allocation, kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    kernel::NamedRegion& entry = table_[(first + i) % kSlots];
    if (entry.base != nullptr && entry.allocation == allocation && entry.generation == generation)
      return &entry;
  }
  return nullptr;
}

Status StreamRegionNames::add(uint64_t allocation, uint64_t generation, std::byte* base,
                              uint64_t bytes) {
  if (find(allocation, generation) != nullptr) return Status::ok();
  const uint32_t first = kernel::namedRegionSlot(allocation, kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    kernel::NamedRegion& entry = table_[(first + i) % kSlots];
    if (entry.base != nullptr) continue;
    // A kernel may be looking: the base comes last, with release, and is what it looks at first.
    std::atomic_ref(entry.allocation).store(allocation, std::memory_order_relaxed);
    std::atomic_ref(entry.generation).store(generation, std::memory_order_relaxed);
    std::atomic_ref(entry.bytes).store(bytes, std::memory_order_relaxed);
    std::atomic_ref(entry.base).store(base, std::memory_order_release);
    return Status::ok();
  }
  return Status(Code::kUnavailable, "messages name more than " + std::to_string(kSlots) +
                                        " regions of one peer; unregister some, or register "
                                        "larger ones");
}

void StreamRegionNames::remove(uint64_t allocation, uint64_t generation) {
  kernel::NamedRegion* const entry = find(allocation, generation);
  if (entry != nullptr) std::atomic_ref(entry->base).store(nullptr, std::memory_order_release);
}

}  // namespace peerlane::stream
