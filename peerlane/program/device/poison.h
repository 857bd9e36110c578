// SPDX-License-Identifier: Apache-2.0
//
// How a host thread releases waits of a device that nothing will satisfy any more: it poisons the
// word that is awaited, or sets an abort word at which the waiting kernels look. Each word counts
// once until it is lent again (Metrics::poisonings); `poisonings` is null where nothing can wait
// any more. Thread: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "peerlane/core/metrics.h"
#include "peerlane/program/words/word.h"

namespace peerlane {

// Releases every wait for a counter in `word`; the bytes that the waits were for are not there.
inline void poisonWord(std::atomic<uint64_t>& word, Counter* poisonings) {
  const uint64_t before = word.exchange(kPoison, std::memory_order_seq_cst);
  if (poisonings != nullptr && !isPoison(before)) poisonings->add();
}

// Releases every wait of kernels that look at this abort word.
inline void abortWaits(std::atomic<uint64_t>& abort, Counter* poisonings) {
  const uint64_t before = abort.exchange(1, std::memory_order_seq_cst);
  if (poisonings != nullptr && before == 0) poisonings->add();
}

}  // namespace peerlane
