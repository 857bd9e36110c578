// SPDX-License-Identifier: Apache-2.0
//
// LoweredProgram: what the programs that the executor of streams makes have in common. Immutable.
#pragma once

#include "peerlane/program/device/device_executor.h"

namespace peerlane::stream {

class LoweredProgram : public DeviceProgram {
 public:
  // An OrderedProgram; else a StreamProgram.
  bool isOrdered() const { return isOrdered_; }

 protected:
  explicit LoweredProgram(bool isOrdered) : isOrdered_(isOrdered) {}

 private:
  const bool isOrdered_;
};

}  // namespace peerlane::stream
