// SPDX-License-Identifier: Apache-2.0
//
// ProgramLowering: makes programs ready for streams of one GPU: as copies where they are that, else
// in the program's order. Thread-safe after open().
#pragma once

#include <memory>

#include "peerlane/os/cuda.h"
#include "peerlane/program/stream/copy/engine_choice.h"
#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/copy/word_abilities.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

class ProgramLowering {
 public:
  // `pool` outlives it.
  ProgramLowering(std::shared_ptr<const cuda::PrimaryContext> gpu, EngineChoice choice,
                  PinnedPool& pool)
      : gpu_(std::move(gpu)), choice_(std::move(choice)), pool_(pool) {}

  // `descriptors`: memory of the GPU for descriptors of plans. `setUpStream`: a cudaStream_t, on
  // which they travel there. Both outlive it.
  Status open(DescriptorArena& descriptors, void* setUpStream);
  // A StreamProgram or an OrderedProgram. Errors: those of both.
  Result<std::unique_ptr<DeviceProgram>> lower(const Program& program, const Binding& binding,
                                               const DeviceExecutor::Preferences& preferences);
  const EngineChoice& choice() const { return choice_; }

 private:
  Status uploadIfLong(StreamProgram& program);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const EngineChoice choice_;
  PinnedPool& pool_;
  WordAbilities abilities_;
  DescriptorArena* descriptors_ = nullptr;
  void* setUpStream_ = nullptr;
};

}  // namespace peerlane::stream
