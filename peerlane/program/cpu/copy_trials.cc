// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_trials.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "peerlane/core/text.h"
#include "peerlane/os/numa.h"

namespace peerlane::cpu {
namespace {

uint64_t nanosecondsOf(clockid_t clock) {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

CopyClocks clocksOfThisThread() {
  return {.passed = nanosecondsOf(CLOCK_MONOTONIC), .used = nanosecondsOf(CLOCK_THREAD_CPUTIME_ID)};
}

uint64_t pagesOfThisThread() {
  rusage used{};
  (void)::getrusage(RUSAGE_THREAD, &used);
  return static_cast<uint64_t>(used.ru_minflt) + static_cast<uint64_t>(used.ru_majflt);
}

template <size_t... kIndices>
std::array<CopyContest, sizeof...(kIndices)> contestsOf(CopyContest::Candidates candidates,
                                                        std::index_sequence<kIndices...>) {
  return {((void)kIndices, CopyContest(candidates))...};
}

}  // namespace

CopyMachine::CopyMachine() : copy(copyBytes), clocks(clocksOfThisThread), pages(pagesOfThisThread) {
  for (size_t i = 0; i < kCopyInstructions; ++i)
    candidates[i] = copyInstructionSupported(static_cast<CopyInstruction>(i)).isOk();
  if (hasSeveralNumaNodes()) isFar = isFarFromThisThread;
}

CopyTrials::CopyTrials(CopyMachine machine)
    : machine_(std::move(machine)),
      contests_(contestsOf(machine_.candidates, std::make_index_sequence<kKinds>())) {
  for (Kind kind = 0; kind < kKinds; ++kind) publish(kind);
  for (std::atomic<uint8_t>& known : known_) known.fetch_and(static_cast<uint8_t>(~kBegun));
}

std::shared_ptr<CopyTrials> CopyTrials::ofProcess() {
  static const auto trials = std::make_shared<CopyTrials>();
  return trials;
}

CopyTrials::Kind CopyTrials::kindOf(uint64_t bytes, uint64_t pieceBytes, const void* to,
                                    const void* from) const {
  size_t size = 0;
  for (uint64_t next = kLeastBytes * kSizeFactor; size + 1 < kSizes && bytes >= next; ++size)
    next *= kSizeFactor;
  const bool isShort = pieceBytes < kLongPiece;
  const Kind near = kindAt(size, isShort, false);
  const Kind far = kindAt(size, isShort, true);
  // Where both are the same there is nothing to ask the system for.
  if (!machine_.isFar || (isDecided(near) && known(near) == known(far))) return near;
  return machine_.isFar(to, from) ? far : near;
}

void CopyTrials::publish(Kind kind) {
  const CopyContest& contest = contests_[kind];
  known_[kind].store(static_cast<uint8_t>(static_cast<uint8_t>(contest.best()) | kBegun |
                                          (contest.isDecided() ? kDecided : 0)),
                     std::memory_order_relaxed);
}

std::string CopyTrials::kindsToString(size_t first) const {
  std::string text;
  std::string last;
  uint64_t from = kLeastBytes;
  for (Kind kind = first; kind < first + kSizes; ++kind, from *= kSizeFactor) {
    std::string how = copyInstructionName(best(kind));
    if (!isDecided(kind)) how += (known(kind) & kBegun) != 0 ? " so far" : " until measured";
    if (how == last) continue;
    text += (text.empty() ? "from " : ", from ") + formatByteSize(from) + " " + how;
    last = std::move(how);
  }
  return text;
}

std::string CopyTrials::toString() const {
  std::string text = "measured here: memcpy, " + kindsToString(0);
  constexpr std::array<const char*, kKinds / kSizes> kWhere{
      "", "pieces below 64KiB", "another NUMA node", "another NUMA node, pieces below 64KiB"};
  for (size_t group = 1; group < kWhere.size(); ++group) {
    const auto begin = known_.begin() + static_cast<ptrdiff_t>(group * kSizes);
    const bool isBegun = std::any_of(begin, begin + kSizes, [](const auto& each) {
      return (each.load(std::memory_order_relaxed) & kBegun) != 0;
    });
    if (isBegun) text += std::string("; ") + kWhere[group] + ": " + kindsToString(group * kSizes);
  }
  return text;
}

TimedCopy::TimedCopy(CopyTrials& trials, CopyTrials::Kind kind) : trials_(trials), kind_(kind) {
  if (trials.isDecided(kind) || trials.isTiming_.exchange(true, std::memory_order_acquire)) return;
  contest_ = &trials.contests_[kind];
  if (!contest_->isDecided()) return;  // else another thread was faster
  contest_ = nullptr;
  trials.isTiming_.store(false, std::memory_order_release);
}

TimedCopy::~TimedCopy() {
  if (!isOn()) return;
  trials_.publish(kind_);
  trials_.isTiming_.store(false, std::memory_order_release);
}

uint64_t TimedCopy::probeBytes(uint64_t bytes, uint64_t atOnce) const {
  const bool isUnlikeProbes =
      contest_->next() == CopyInstruction::kMovsb && atOnce > kMostProbedMovsb;
  if (isUnlikeProbes || bytes < 16 * kLeastProbeBytes) return 0;
  return std::max(bytes / 32, kLeastProbeBytes);
}

void TimedCopy::begin(uint32_t slices) {
  next_ = contest_->next();
  best_ = contest_->best();
  mostCost_ = contest_->mostCost();
  count_ = slices;
  std::fill_n(slices_.begin(), slices, Slice());
}

void TimedCopy::judge(uint32_t slice, uint64_t bytes, uint64_t nanoseconds, bool isMemoryNew) {
  // The first slice may have been the first to touch the instruction's own code.
  if (isMemoryNew && slice == 0 && count_ > 1) return;
  if (isMemoryNew) return state_.store(State::kNewMemory, std::memory_order_relaxed);
  const double cost = CopyContest::costOf(static_cast<double>(nanoseconds), bytes);
  slices_[slice] = {cost, bytes};
  if (slice >= kProbes || cost <= mostCost_) return;
  State runs = State::kRuns;
  if (dearProbes_.fetch_add(1, std::memory_order_relaxed) + 1 == kProbes)
    state_.compare_exchange_strong(runs, State::kTooDear, std::memory_order_relaxed);
}

// Half of the bytes that were timed cost no more.
double TimedCopy::medianCost() {
  const auto end = std::remove_if(slices_.begin(), slices_.begin() + count_,
                                  [](const Slice& slice) { return slice.bytes == 0; });
  std::sort(slices_.begin(), end, [](const Slice& a, const Slice& b) { return a.cost < b.cost; });
  uint64_t all = 0;
  for (auto slice = slices_.begin(); slice != end; ++slice) all += slice->bytes;
  auto median = slices_.begin();
  for (uint64_t bytes = median->bytes; bytes * 2 < all; bytes += median->bytes) ++median;
  return median->cost;
}

void TimedCopy::end(uint64_t bytes, uint64_t transferBytes) {
  switch (state_.load(std::memory_order_relaxed)) {
    case State::kRuns: return contest_->add(medianCost(), bytes, transferBytes);
    case State::kTooDear: return contest_->giveUp(medianCost());
    case State::kNewMemory: return contest_->passNewMemory();
  }
}

}  // namespace peerlane::cpu
