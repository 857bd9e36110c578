// SPDX-License-Identifier: Apache-2.0
//
// A message there and back inside a kernel, every word checked on both sides: carried by the
// calling threads where it is small, and by the proxy.
//
//   example_06_port_ping_pong [ADDRESS RANK [SECRET]]
#include "examples/port_side.h"

using namespace example;

namespace {

constexpr uint64_t kMostWords = 128 << 10;  // 1 MiB

struct PingPong {
  PortChannelHandle channel;
  uint64_t rank;
  uint64_t words;
  uint64_t rounds;
  uint64_t* outbox;
  const uint64_t* inbox;
  uint64_t* wrong;  // the last round in which other words came

  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t round = 1; round <= rounds; ++round) {
      if (rank == 0 && !send(team, round)) return round - 1;
      if (!channel.wait(team)) return round - 1;
      for (uint64_t i = team.rank(); i < words; i += team.size())
        if (inbox[i] != word(1 - rank, round, i)) *wrong = round;
      if (rank == 1 && !send(team, round)) return round - 1;
    }
    return channel.flush(team) ? rounds : 0;
  }

  // Who has been answered may write his outbox again: it was read.
  template <class Team>
  PEERLANE_DEVICE bool send(const Team& team, uint64_t round) const {
    for (uint64_t i = team.rank(); i < words; i += team.size()) outbox[i] = word(rank, round, i);
    team.sync();
    const uint64_t inboxOffset = kMostWords * sizeof(uint64_t);
    return bool{channel.putWithSignal(team, inboxOffset, 0, words * sizeof(uint64_t))};
  }

  PEERLANE_DEVICE static uint64_t word(uint64_t from, uint64_t round, uint64_t i) {
    return (round << 32 | i) * 2 + from;
  }
};

Status play(PortSide& side) {
  auto* const memory = reinterpret_cast<uint64_t*>(side.memory.data());
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    for (const uint64_t words : {uint64_t{1}, uint64_t{512}, kMostWords}) {
      const uint64_t rounds = kOnGpu ? 1000 : 50;
      const PingPong kernel{.channel = side.channel.deviceHandle(engine),
                            .rank = static_cast<uint64_t>(side.rank),
                            .words = words,
                            .rounds = rounds,
                            .outbox = memory,
                            .inbox = memory + kMostWords,
                            .wrong = memory + 2 * kMostWords};
      const Clock::time_point start = Clock::now();
      PEERLANE_ASSIGN(const uint64_t done, runKernel(side, kernel));
      const double micros = secondsSince(start) * 1e6 / static_cast<double>(rounds);
      PEERLANE_RETURN_IF_ERROR(expectRounds(side, done, rounds));
      uint64_t wrong = 0;
      PEERLANE_RETURN_IF_ERROR(look(side.memory, 2 * kMostWords * sizeof wrong,
                                    std::as_writable_bytes(std::span(&wrong, 1))));
      if (wrong != 0)
        return Status(Code::kCorrupt, "round " + std::to_string(wrong) + " brought other words");
      if (side.rank == 0)
        std::printf("%s, %7llu bytes: %8.2f us there and back\n",
                    engine == PortEngine::kCe ? "proxy" : "auto ",
                    static_cast<unsigned long long>(words) * sizeof(uint64_t), micros);
    }
  }
  return Status::ok();
}

}  // namespace

int main(int argc, char** argv) {
  return runSides(argc, argv, (2 * kMostWords + 1) * sizeof(uint64_t), play);
}
