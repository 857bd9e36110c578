// SPDX-License-Identifier: Apache-2.0
//
// PairOptions: what one side asks of a communicator of two, checked already. Plain value.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "peerlane/p2p.h"

namespace peerlane::p2p {

struct PairOptions {
  P2pKind kind = P2P_BIDIRECTIONAL;
  P2pLink link = P2P_LINK_AUTO;
  bool wantsMessages = true;               // else put and get alone
  std::chrono::nanoseconds timeout{};      // for each answer that the other side owes
  std::optional<int> gpu{};                // nothing: host memory alone
  std::optional<uint64_t> stagingBytes{};  // for messages; nothing: as the context's Config says
};

}  // namespace peerlane::p2p
