// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/trigger_signals.h"

#include <utility>

namespace peerlane {

// Of a context that was closed programs may be on the stream still. Then nobody is lent the words
// again, which end with the connection.
TriggerSignals::~TriggerSignals() {
  if (stream_ != nullptr && stream_->isIdle() && !peer_.forked()) giveBack();
}

Result<std::byte*> TriggerSignals::window() {
  return peer_.windows().peers();
}

Result<TriggerSignals::Store> TriggerSignals::add(const TriggerAddition& addition) {
  LentCounter& lent = lent_[addition.signal];
  PEERLANE_ASSIGN(std::byte* const base, window());
  if (lent.word == nullptr) {
    std::byte* const line =
        base + slab::kSignalsOffset + uint64_t{addition.signal} * slab::kWordStrideBytes;
    PEERLANE_ASSIGN(lent, stream_->executor().counters().lend(line));
  }
  lent.total += addition.add;
  return Store{static_cast<uint64_t>(reinterpret_cast<std::byte*>(lent.word) - base), lent.total};
}

void TriggerSignals::takeBack(std::span<const TriggerAddition> additions) {
  for (const TriggerAddition& addition : additions) lent_[addition.signal].total -= addition.add;
}

void TriggerSignals::giveBack() {
  for (LentCounter& lent : lent_)
    if (lent.word != nullptr)
      stream_->executor().counters().giveBack(std::exchange(lent, LentCounter{}));
}

}  // namespace peerlane
