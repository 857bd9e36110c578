// SPDX-License-Identifier: Apache-2.0
//
// WarningLines: as long as it lives, it keeps what is logged, and at its end it writes each
// different line once, with how often it came: a command that makes many contexts says of what is
// wrong with the machine once. One at a time, made and ended by the main thread; any thread logs.
#pragma once

#include <memory>

namespace peerlane {

class WarningLines {
 public:
  WarningLines();
  ~WarningLines();
  WarningLines(const WarningLines&) = delete;
  WarningLines& operator=(const WarningLines&) = delete;

 private:
  struct Kept;
  const std::shared_ptr<Kept> kept_;  // a line may still come when the sink was taken away
};

}  // namespace peerlane
