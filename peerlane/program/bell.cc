// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/bell.h"

namespace peerlane {

Result<std::unique_ptr<Bell>> Bell::create() {
  PEERLANE_ASSIGN(auto page, SharedSegment::create(kPageBytes, {.hugePages = HugePages::kOff,
                                                                .numaNode = std::nullopt,
                                                                .populate = true,
                                                                .name = "peerlane-bell"}));
  PEERLANE_ASSIGN(Fd event, makeEventFd());
  return std::unique_ptr<Bell>(new Bell(std::move(page), std::move(event)));
}

}  // namespace peerlane
