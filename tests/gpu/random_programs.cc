// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/random_programs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "peerlane/program/cpu/cpu_program.h"

namespace peerlane::gputest {
namespace {

constexpr uint64_t kUnpoisoned = kPoison - 1;
constexpr uint32_t kStride = 64, kMostSlots = 8;
constexpr uint64_t kFlagBytes = 512;  // one word of 8 bytes for each hand-over
constexpr uint64_t kWordBytes = 256, kByteBytes = 512, kRingBytes = uint64_t{kStride} * kMostSlots;

// Where a target lies: `pinned` or not, and from which byte on, for side 0; side 1's own places
// come behind.
struct Home {
  const char* name;
  bool isPinned;
  bool isShared;
  bool isWords;  // of which ops may store and await words
  uint64_t offset, bytes;
};
enum : TargetId { kFlags, kWords, kBytes, kFarWords, kFarBytes, kRing, kSharedWords, kSharedBytes };
constexpr Home kHomes[] = {
    {"flags", true, true, false, 0, kFlagBytes},
    {"words", true, false, true, 512, kWordBytes},
    {"bytes", true, false, false, 1024, kByteBytes},
    {"far words", false, false, true, 0, kWordBytes},
    {"far bytes", false, false, false, 512, kByteBytes},
    {"ring", true, false, false, 2048, kRingBytes},
    {"shared words", true, true, true, 6144, kWordBytes},
    {"shared bytes", false, true, false, 3072, kByteBytes},
};
constexpr uint64_t kPinnedSide = 2048, kDeviceSide = 1024;  // between the sides' own places

class Writer {
 public:
  Writer(uint64_t seed, const RandomWishes& wishes, RandomMemory& memory)
      : random_(seed), wishes_(wishes), memory_(memory) {
    for (std::byte& byte : memory_.pinned) byte = static_cast<std::byte>(random_());
    for (std::byte& byte : memory_.device) byte = static_cast<std::byte>(random_());
    for (ProgramBuilder& builder : builders_) declare(builder);
  }

  void write() {
    // Copies with an addition behind them alone would be a put with a signal, whose counter is a
    // line (program/words/counter_line.h) and no word.
    for (size_t side = 0; side < builders_.size(); ++side)
      builders_[side].store(wordPlace(side, Width::k64, false), operand(valueOf(Width::k64)),
                            Order::kRelaxed);
    const size_t count = 4 + below(28);
    for (size_t i = 0; i < count; ++i) {
      const size_t side = below(2);
      if (wishes_.crosses && side == owner_ && handedOver_ < kFlagBytes / 8 && below(4) == 0)
        handOver();
      else
        writeOp(side);
    }
  }
  RandomPair::Side take(size_t side) {
    return {builders_[side].build(), {cursors_.begin(), cursors_.end()}};
  }

 private:
  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool flip() { return below(2) == 0; }

  void declare(ProgramBuilder& builder) {
    for (const uint32_t advance : {1u, 3u}) builder.cursor(advance);
    for (const Home& home : kHomes) {
      Target target{.name = home.name, .side = home.isShared ? Side::kRemote : Side::kLocal};
      if (&home == &kHomes[kRing]) {
        target.cursor = 1;
        target.slots = slots_;
        target.strideBytes = kStride;
      }
      builder.target(target);
    }
  }

  // --- Words ---

  uint64_t valueOf(Width width) {
    return width == Width::k32 ? random_() & 0xffffffffu : random_() & kUnpoisoned;
  }
  Operand operand(uint64_t value) {
    const CursorId cursor = flip() ? kNoCursor : static_cast<CursorId>(below(2));
    const uint64_t base = cursor == kNoCursor ? 0 : cursors_[cursor];
    return {.cursor = cursor, .delta = static_cast<int64_t>(value - base)};
  }
  // A word that the side may touch now, in memory where it may wait.
  Place wordPlace(size_t side, Width width, bool pinnedOnly) {
    std::vector<TargetId> from = {kWords, kRing};
    if (!pinnedOnly) from.push_back(kFarWords);
    if (side == owner_) from.push_back(kSharedWords);
    const TargetId target = from[below(from.size())];
    const uint64_t bytes = target == kRing ? kStride : kHomes[target].bytes;
    const uint64_t size = static_cast<uint64_t>(width);
    return {target, target == kRing ? slotDelta() : 0, below(bytes / size) * size};
  }
  int32_t slotDelta() { return static_cast<int32_t>(below(7)) - 3; }

  // What a word was before and is after, and what only the latter satisfies.
  struct Waited {
    Compare compare;
    uint64_t operand, before, after;
  };
  Waited waited(Width width) {
    const uint64_t all = width == Width::k32 ? 0xffffffffu : ~uint64_t{0};
    const uint64_t bit = uint64_t{1} << below(width == Width::k32 ? 32 : 62);
    Waited made{static_cast<Compare>(below(4)), 0, 0, valueOf(width)};
    switch (made.compare) {
      case Compare::kGreaterEqual:
        made.operand = (made.after - below(3)) & all;
        made.before = (made.operand - 1 - below(5)) & all;
        break;
      case Compare::kEqual:
        made.operand = made.after;
        made.before = made.after ^ bit;
        break;
      case Compare::kAnd:
        made.operand = (random_() & all) | bit;
        made.before = random_() & all & ~made.operand;
        made.after |= bit;
        break;
      case Compare::kNor:
        made.operand = random_() & all & ~bit;
        made.before = (~made.operand & all) | (random_() & all);
        made.after &= ~bit;
        break;
    }
    return made;
  }

  // What this side has stored it may wait for.
  void storeAndWait(size_t side) {
    const Width width = flip() ? Width::k32 : Width::k64;
    const Waited word = waited(width);
    const Place place = wordPlace(side, width, /*pinnedOnly=*/true);
    const Order order = flip() ? Order::kRelease : Order::kRelaxed;
    builders_[side]
        .store(place, operand(word.after), order, width)
        .wait(place, operand(word.operand), word.compare, width);
  }

  void handOver() {
    const size_t from = owner_;
    owner_ = 1 - owner_;
    const Width width = flip() ? Width::k32 : Width::k64;
    const Waited word = waited(width);
    const Place flag{.target = kFlags, .offset = 8 * handedOver_++};
    for (size_t i = 0; i < static_cast<size_t>(width); ++i)
      memory_.pinned[kHomes[kFlags].offset + flag.offset + i] =
          static_cast<std::byte>(word.before >> (8 * i));
    builders_[from].store(flag, operand(word.after), Order::kRelease, width);
    builders_[owner_].wait(flag, operand(word.operand), word.compare, width);
  }

  // --- Copies ---

  struct Bytes {
    TargetId target;
    int32_t slotDelta;
    uint64_t bytes;
  };
  Bytes bytesPlace(size_t side, bool mayBeRing) {
    std::vector<TargetId> from = {kWords, kBytes, kFarWords, kFarBytes};
    if (mayBeRing) from.push_back(kRing);
    if (side == owner_) from.insert(from.end(), {kSharedWords, kSharedBytes});
    const TargetId target = from[below(from.size())];
    return {target, target == kRing ? slotDelta() : 0,
            target == kRing ? kStride : kHomes[target].bytes};
  }
  void copy(size_t side) {
    const bool mayBeRing = wishes_.hasSlotCopies && flip();
    const Bytes to = bytesPlace(side, mayBeRing);
    Bytes from = bytesPlace(side, mayBeRing);
    while (from.target == to.target) from = bytesPlace(side, mayBeRing);
    const uint64_t bytes = 1 + below(std::min<uint64_t>({to.bytes, from.bytes, 200}));
    builders_[side].copy({to.target, to.slotDelta, below(to.bytes - bytes + 1)},
                         {from.target, from.slotDelta, below(from.bytes - bytes + 1)}, bytes);
  }
  void copyList(size_t side) {
    const Bytes to = bytesPlace(side, false);
    Bytes from = bytesPlace(side, false);
    while (from.target == to.target) from = bytesPlace(side, false);
    CopyLayout list;
    list.kind = static_cast<CopyLayout::Kind>(below(3));
    if (list.kind == CopyLayout::Kind::kIndexed) list.kind = CopyLayout::Kind::kNumbered;
    if (list.kind == CopyLayout::Kind::kScattered) {
      for (uint64_t at = 0; at < to.bytes;) {
        const uint64_t bytes = 1 + below(std::min<uint64_t>(to.bytes - at, 24));
        list.segments.push_back({to.target, from.target, at, below(from.bytes - bytes + 1), bytes});
        at += bytes + below(9);
      }
    } else {
      list.first = {to.target, from.target, below(9), below(9), 1 + below(15)};
      list.toStride = list.first.bytes + below(2);
      list.fromStride = below(16);
      list.toLimit = list.fromLimit = 15;
      list.count = 1 + below(15);
      if (list.kind == CopyLayout::Kind::kNumbered) {
        std::vector<uint32_t> numbers(15);
        std::iota(numbers.begin(), numbers.end(), 0u);
        std::shuffle(numbers.begin(), numbers.end(), random_);
        list.toNumbers.assign(numbers.begin(),
                              numbers.begin() + static_cast<ptrdiff_t>(list.count));
        std::shuffle(numbers.begin(), numbers.end(), random_);
        list.fromNumbers.assign(numbers.begin(),
                                numbers.begin() + static_cast<ptrdiff_t>(list.count));
      }
    }
    builders_[side].copyList(std::move(list));
  }

  void writeOp(size_t side) {
    ProgramBuilder& builder = builders_[side];
    const Width width = flip() ? Width::k32 : Width::k64;
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        builder.store(wordPlace(side, width, false), operand(valueOf(width)),
                      flip() ? Order::kRelease : Order::kRelaxed, width);
        break;
      case 3:
      case 4: storeAndWait(side); break;
      case 5: {
        const TargetId target = wishes_.addsToPinned && flip() ? kWords : kFarWords;
        builder.add64({.target = target, .offset = 8 * below(kWordBytes / 8)}, operand(random_()),
                      Order::kRelease);
        break;
      }
      case 6: builder.fence(flip() ? Scope::kSystem : Scope::kDevice); break;
      case 7: builder.flush(wishes_.flushesOwn && flip() ? kFarBytes : kSharedBytes); break;
      case 8: copyList(side); break;
      default: copy(side);
    }
  }

  std::mt19937_64 random_;
  const RandomWishes& wishes_;
  RandomMemory& memory_;
  const uint32_t slots_ = 1 + static_cast<uint32_t>(below(kMostSlots));
  // Around 0, too, where numbers of slots wrap.
  const std::array<uint64_t, 2> cursors_ = {random_(), below(3) == 0 ? below(8) : random_()};
  size_t owner_ = below(2);  // of what the sides share
  uint64_t handedOver_ = 0;
  std::array<ProgramBuilder, 2> builders_ = {ProgramBuilder("first"), ProgramBuilder("second")};
};

}  // namespace

RandomPair::RandomPair(uint64_t seed, const RandomWishes& wishes) {
  Writer writer(seed, wishes, before);
  writer.write();
  for (size_t side = 0; side < sides.size(); ++side) sides[side] = writer.take(side);
}

Binding RandomPair::bind(size_t side, std::byte* pinned, std::byte* device) {
  Binding binding;
  for (const Home& home : kHomes) {
    std::byte* at = (home.isPinned ? pinned : device) + home.offset;
    if (!home.isShared) at += side * (home.isPinned ? kPinnedSide : kDeviceSide);
    binding.targets.push_back({.address = at, .bytes = home.bytes});
  }
  return binding;
}

std::string RandomPair::toString() const {
  std::string text;
  for (const Side& side : sides) text += side.program.toString();
  return text;
}

bool runOnCpu(const RandomPair& pair, RandomMemory& memory) {
  std::array<cpu::CpuProgram, 2> prepared;
  std::array<cpu::CpuRun, 2> runs;
  for (size_t side = 0; side < 2; ++side) {
    if (!prepared[side]
             .prepare(pair.sides[side].program,
                      RandomPair::bind(side, memory.pinned.data(), memory.device.data()))
             .isOk())
      return false;
    runs[side].start(prepared[side], pair.sides[side].cursors);
  }
  // Each turn takes at least one hand-over further.
  for (size_t turn = 0; turn < kFlagBytes && !(runs[0].ended() && runs[1].ended()); ++turn)
    for (cpu::CpuRun& run : runs)
      if (!run.ended()) (void)run.advance(UINT64_MAX);
  return runs[0].ended() && runs[1].ended() && runs[0].code() == Code::kOk &&
         runs[1].code() == Code::kOk;
}

}  // namespace peerlane::gputest
