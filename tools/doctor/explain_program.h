// SPDX-License-Identifier: Apache-2.0
//
// What a triggered queue makes of a put, a signal and a receive between two places: its emitter,
// the programs of a commit and of a peek, and the targets that they name. Nothing of it is run.
#pragma once

#include <string>

#include "tools/trial/trial.h"

namespace peerlane {

// Text for a queue that chooses its emitter and for one of each emitter; where one refuses, why. An
// error: this memory, or a queue at all, cannot be had.
Result<std::string> explainQueues(Trial& trial, TrialMemory local, TrialMemory remote);

}  // namespace peerlane
