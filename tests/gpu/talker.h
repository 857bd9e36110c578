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

// Sends `messages` of `each` bytes both ways in one group, and looks at them. Each side has filled
// `out` with round + 100 * index.
inline void exchangeInGroup(const Talker& side, int index, size_t messages, size_t each,
                            uint32_t round) {
  auto group = side.ranks->group();
  for (size_t i = 0; i < messages; ++i) group.recv(side.other, side.in, i * each, each);
  for (size_t i = 0; i < messages; ++i) group.send(side.other, side.out, i * each, each);
  must(must(group.post(side.on()), "group").wait(kPatience), "wait");
  EXPECT_EQ(
      wrongWords(side.in.data(), messages * each, round + 100 * static_cast<uint32_t>(1 - index)),
      0u);
}

// Side 0 sends and side 1 receives on six streams by turns; every other message has `fewer` bytes.
inline void sendOnManyStreams(const Talker& side, int index, const Line& line, size_t rounds,
                              size_t each, size_t fewer) {
  constexpr size_t kStreams = 6;
  std::vector<cudaStream_t> streams;
  for (size_t i = 0; i < kStreams; ++i) streams.push_back(makeStream());
  const auto bytesOf = [&](size_t i) { return i % 2 == 0 ? each : fewer; };
  for (size_t round = 0; round < rounds; ++round) {
    const auto seed = static_cast<uint32_t>(round);
    if (index == 0) fill(side.out.data(), kStreams * each, seed);
    for (size_t i = 0; i < kStreams; ++i) {
      if (index == 0)
        must(side.ranks->send(1, side.out, i * each, bytesOf(i), side.on(streams[i])), "send");
      else
        must(side.ranks->recv(0, side.in, i * each, bytesOf(i), side.on(streams[i])), "recv");
    }
    for (cudaStream_t stream : streams) mustSync(stream);
    for (size_t i = 0; index == 1 && i < kStreams; ++i) {
      EXPECT_EQ(wrongWords(side.in.data() + i * each, bytesOf(i), seed, i * each), 0u);
    }
    line.meet();
  }
}

}  // namespace peerlane::gputest
