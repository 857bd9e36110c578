// SPDX-License-Identifier: Apache-2.0
//
// Talker: one of two processes that send each other messages on streams, with a region to send from
// and one to receive into.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

inline constexpr size_t kBytes = size_t{4} << 20;

struct Talker : Meeting {
  Talker(int side, const Line& line, Memory memory = Memory::kVmm, size_t bytes = kBytes,
         const CommunicatorOptions& communicatorOptions = {})
      : Meeting(side, line),
        out(makeRegion(*context, device, memory, bytes)),
        in(makeRegion(*context, device, memory, bytes)),
        other(static_cast<Rank>(1 - side)) {
    std::vector<Peer> peers(2);
    peers[other] = peer;
    ranks =
        must(Communicator::create(*context, peers, static_cast<Rank>(side), communicatorOptions),
             "communicator");
  }
  MessageOptions on(cudaStream_t which = nullptr) const {
    MessageOptions options;
    options.deviceStream = deviceStream(which);
    return options;
  }

  Region out, in;
  Rank other = 0;
  std::unique_ptr<Communicator> ranks;
};

using Both = std::function<void(Talker& side, int index, const Line& line)>;
inline bool runBoth(const Both& both, int seconds = 60, Memory memory = Memory::kVmm,
                    size_t bytes = kBytes, const CommunicatorOptions& communicatorOptions = {}) {
  const auto sideOf = [&](int index) {
    return [&both, index, memory, bytes, communicatorOptions](const Line& line) {
      Talker side(index, line, memory, bytes, communicatorOptions);
      both(side, index, line);
    };
  };
  return runTwo(sideOf(0), sideOf(1), seconds);
}

}  // namespace peerlane::gputest
