// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/queues/counter_words.h"

#include <algorithm>
#include <string>

namespace peerlane::stream {

CounterWords::Claim CounterWords::claim(std::byte* line, const SubmissionQueue& queue,
                                        uint64_t add) {
  Words& words = lines_[line];
  auto chosen = std::find_if(words.begin(), words.end(),
                             [&](const Word& word) { return word.queue == &queue; });
  if (chosen == words.end())
    chosen = std::find_if(words.begin(), words.end(),
                          [](const Word& word) { return !word.reserved && word.last.ended(); });
  // All words are busy with other streams: wait for the stream of the word that was used least
  // recently.
  if (chosen == words.end())
    chosen = std::min_element(words.begin(), words.end(), [](const Word& a, const Word& b) {
      return a.reserved != b.reserved ? b.reserved : a.claims < b.claims;
    });
  Claim claim;
  if (chosen->reserved) return claim;
  if (chosen->queue != &queue && !chosen->last.ended()) claim.after = chosen->last;
  chosen->queue = &queue;
  chosen->claims = ++claims_;
  chosen->total += add;
  const auto index = static_cast<size_t>(chosen - words.begin()) + 1;
  claim.word = reinterpret_cast<uint64_t*>(line) + index;
  claim.total = chosen->total;
  return claim;
}

CounterWords::Claim CounterWords::reserve(std::byte* line) {
  Words& words = lines_[line];
  const auto chosen = std::find_if(words.begin(), words.end(), [](const Word& word) {
    return !word.reserved && word.last.ended();
  });
  Claim claim;
  if (chosen == words.end()) return claim;
  chosen->reserved = true;
  chosen->queue = nullptr;
  const auto index = static_cast<size_t>(chosen - words.begin()) + 1;
  claim.word = reinterpret_cast<uint64_t*>(line) + index;
  claim.total = chosen->total;
  return claim;
}

void CounterWords::giveBack(std::byte* line, const Claim& claim, uint64_t total) {
  if (lines_.find(line) == lines_.end()) return;  // forgotten
  Word& word = wordOf(line, claim);
  word.reserved = false;
  word.total = total;
}

CounterWords::Word& CounterWords::wordOf(std::byte* line, const Claim& claim) {
  return lines_.at(line)[static_cast<size_t>(claim.word - reinterpret_cast<uint64_t*>(line)) - 1];
}

void CounterWords::settle(std::byte* line, const Claim& claim, const DevicePost& post) {
  wordOf(line, claim).last = post;
}

void CounterWords::undo(std::byte* line, const Claim& claim, uint64_t add) {
  wordOf(line, claim).total -= add;
}

void CounterWords::forget(const std::byte* address, size_t bytes) {
  std::erase_if(lines_, [&](const auto& entry) {
    return entry.first >= address && entry.first < address + bytes;
  });
}

Result<LentCounter> SharedCounterWords::lend(std::byte* line) {
  const PostingGuard counting(mutex);
  const CounterWords::Claim claim = words.reserve(line);
  if (claim.word != nullptr) return LentCounter{line, claim.word, claim.total};
  return Status(Code::kUnavailable, "graphs, triggered queues and streams at work hold all " +
                                        std::to_string(CounterLine::kDeviceWords) +
                                        " words that devices have of this signal; use another one");
}

void SharedCounterWords::giveBack(const LentCounter& lent) {
  const uint64_t total = loadWord(reinterpret_cast<const std::byte*>(lent.word), Width::k64);
  soon([lent, total](CounterWords& all) {
    all.giveBack(lent.line, {lent.word, lent.total, {}}, total);
  });
}

}  // namespace peerlane::stream
