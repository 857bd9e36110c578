// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous-get on streams: programs that the get kernels run, recognised by their steps.
// StreamGet: the receiver's side, a copy from the place that a ring names. StreamGetEnd: the
// sender's side, a wait and a check whether the receiver accepted. Immutable once made.
#pragma once

#include <optional>
#include <span>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/kernel/message/get_kernel.h"
#include "peerlane/program/stream/message/stream_shapes.h"

namespace peerlane::stream {

class StreamGet {
 public:
  // `accepting`: the step that the kernel leaves out if it leaves out the copy.
  static std::optional<StreamGet> match(std::span<const LoweredStep> steps, const LateSource& late,
                                        uint32_t accepting);
  // `stepOf`: the step of each op that may be patched.
  Status launch(const StepCall& call, std::span<const uint32_t> stepOf,
                const kernel::RegionTable& table, const kernel::WordStore& completion,
                const StreamWords& words, bool overlapsEnd, void* stream) const;

 private:
  kernel::GetLaunch launch_;
  uint32_t copyStep_ = kNoStep;
};

class StreamGetEnd {
 public:
  static std::optional<StreamGetEnd> match(std::span<const LoweredStep> steps,
                                           const StepPlace& accepted);
  Status launch(const StepCall& call, const kernel::WordStore& completion, bool overlapsEnd,
                void* stream) const;

 private:
  kernel::GetEndLaunch launch_;
};

}  // namespace peerlane::stream
