// SPDX-License-Identifier: Apache-2.0
//
// StreamStepList: the step list of CUDA streams: a side of a message as one or two launches of the
// kernel that is made for its shape. Immutable once made.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/program/stream/message/stream_get.h"
#include "peerlane/program/stream/message/stream_list.h"
#include "peerlane/program/stream/message/stream_region_names.h"
#include "peerlane/program/stream/message/stream_shapes.h"

namespace peerlane::stream {

class StreamStepList final : public StepList {
 public:
  // kNotSupported for a program of any other shape, or naming what no kernel of messages does.
  static Result<std::unique_ptr<StreamStepList>> lower(const Program& program,
                                                       const Binding& binding,
                                                       const StepRules& rules);

  // Makes the launches of one call on `stream`, one or two. The last one stores `completion`.
  // `room`: that of this call, if it needs some. With the device current.
  Status launch(const StepCall& call, const kernel::WordStore& completion, const StreamWords& words,
                const ListRoom* room, void* stream) const;
  // The kernel that runs it: "packets", "ring slot", "put", "get", "get end", "list head" or
  // "list".
  const char* kernelName() const {
    return packets_    ? "packets"
           : ringSlot_ ? "ring slot"
           : put_      ? "put"
           : get_      ? "get"
           : getEnd_   ? "get end"
           : listHead_ ? "list head"
                       : "list";
  }

 private:
  bool hasKernel() const {
    return packets_ || ringSlot_ || put_ || get_ || getEnd_ || listHead_ || listPut_;
  }
  Status launchList(const StepCall& call, const kernel::WordStore& completion,
                    const StreamWords& words, const ListRoom* room, void* stream) const;

  std::vector<uint32_t> stepOf_;  // of ops, then of expected words
  const StreamRegionNames* names_ = nullptr;
  std::optional<StreamPackets> packets_;
  std::optional<StreamRingSlot> ringSlot_;
  std::optional<StreamPut> put_;
  std::optional<StreamGet> get_;
  std::optional<StreamGetEnd> getEnd_;
  std::optional<StreamListHead> listHead_;
  std::optional<StreamListPut> listPut_;
};

}  // namespace peerlane::stream
