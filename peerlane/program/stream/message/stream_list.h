// SPDX-License-Identifier: Apache-2.0
//
// Programs that the list kernels run, recognised by their steps. StreamListHead: a copy of a call's
// words to a ring. StreamListPut: a copy of a call's pieces to the places that a ring names.
// Immutable once made.
#pragma once

#include <optional>
#include <span>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/kernel/message/list_kernel.h"
#include "peerlane/program/stream/message/list_room.h"
#include "peerlane/program/stream/message/stream_shapes.h"

namespace peerlane::stream {

class StreamListHead {
 public:
  static std::optional<StreamListHead> match(std::span<const LoweredStep> steps);
  // `stepOf`: the step of each op that may be patched.
  Status launch(const StepCall& call, std::span<const uint32_t> stepOf, const ListRoom& room,
                const kernel::WordStore& completion, bool overlapsEnd, void* stream) const;

 private:
  kernel::ListHeadLaunch launch_;
};

class StreamListPut {
 public:
  // `list`: the ring with the places. `regionsAt`: in the slot of the awaited word.
  static std::optional<StreamListPut> match(std::span<const LoweredStep> steps,
                                            const StepPlace& list, uint32_t regionsAt);
  Status launch(const StepCall& call, std::span<const uint32_t> stepOf, const ListRoom& room,
                const kernel::RegionTable& table, const kernel::WordStore& completion,
                const StreamWords& words, bool overlapsEnd, void* stream) const;

 private:
  kernel::ListPutLaunch launch_;
};

}  // namespace peerlane::stream
