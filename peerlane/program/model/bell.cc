// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/bell.h"

namespace peerlane {

Result<std::unique_ptr<Bell>> Bell::create() {
  PEERLANE_ASSIGN(auto page, SharedSegment::create(kPageBytes, {.hugePages = HugePages::kOff,
                                                                .numaNode = std::nullopt,
                                                                .populate = true,
                                                                .name = "peerlane-bell"}));
  // Peers map it for reading. Before Linux 5.1 it cannot be sealed, and one peer could overwrite it
  // for the others.
  const Status sealed = sealAgainstWriters(page->fd());
  if (!sealed.isOk() && sealed.code() != Code::kNotSupported) return sealed;
  PEERLANE_ASSIGN(Fd event, makeEventFd());
  return std::unique_ptr<Bell>(new Bell(std::move(page), std::move(event)));
}

}  // namespace peerlane
