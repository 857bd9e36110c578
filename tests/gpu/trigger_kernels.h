// SPDX-License-Identifier: Apache-2.0
//
// A kernel that plays rounds of a triggered queue: waits, changes bytes, sends. Launched on a GPU
// (trigger_kernels.cu), or, with GPUs in software, by CPU threads that stand for those of a block
// (trigger_threads.cc), as a piece of work of the stream. The stream's GPU is the caller's current
// one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "peerlane/channel/trigger/trigger_device.h"

namespace peerlane::gputest {

struct TriggerRound {
  TriggerOp wait[8], send[8];
  uint32_t waitOps = 0, sendOps = 0;
};

// In memory that the GPU reaches, until the kernel has ended.
struct TriggerGame {
  TriggerRound rounds[8];
  uint32_t count = 0;
  const uint64_t* status = nullptr;
  uint8_t* bytes = nullptr;  // 1 is added to each in every round
  uint64_t size = 0;
  uint32_t outcome = 0;  // the kernel's: the largest TriggerOutcome
};

template <typename Team>
PEERLANE_DEVICE void playTriggered(const Team& team, TriggerGame& game) {
  for (uint32_t i = 0; i < game.count; ++i) {
    const TriggerRound& round = game.rounds[i];
    TriggerOutcome outcome = runTriggered(team, round.wait, round.waitOps, game.status);
    if (outcome == TriggerOutcome::kOk) {
      for (uint64_t at = team.rank(); at < game.size; at += team.size()) ++game.bytes[at];
      outcome = runTriggered(team, round.send, round.sendOps, game.status);
    }
    if (outcome == TriggerOutcome::kOk) continue;
    if (team.rank() == 0) game.outcome = static_cast<uint32_t>(outcome);
    return;
  }
}

void launchTriggerGame(TriggerGame* game, cudaStream_t stream);

// How many pieces of work, other than memory operations, copies and kernels, streams have been
// given so far; 0 where GPUs do not tell.
uint64_t otherWorkOfStreams();

}  // namespace peerlane::gputest
