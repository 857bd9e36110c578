// SPDX-License-Identifier: Apache-2.0
//
// Word kernel: one warp that waits for a word or a counter line, then adds to a word and stores
// others; each of the three may be missing. Used where stream memory operations cannot be: for
// operands that come from a cursor (graphs), for counter lines, and for additions. Any thread may
// call; the launch goes to the caller's current device, which must be the stream's. Usable under
// stream capture.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/launch/word_step.h"

namespace peerlane::kernel {

struct WordLaunch {
  // The first 64 bytes from `wait.word` on are a counter line (device::waitLine); else one word.
  bool waitsForLine = false;
  WordWait wait;
  // Added to the word atomically, before the stores, unless the wait was released; word null:
  // nothing. A release, as those.
  WordStore addition;
  WordTail tail;           // the stores release everything that the stream did before
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadWordKernels();

// Errors: InvalidArgument (a line that is not on 64 bytes, too many words), System.
Status launchWords(const WordLaunch& launch);

}  // namespace peerlane::kernel
