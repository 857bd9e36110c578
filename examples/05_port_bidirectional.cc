// SPDX-License-Identifier: Apache-2.0
//
// Two kernels put to each other at the same time, with no host in between.
//
//   rank 0                                     rank 1
//   signal, wait          ◀────────────▶       signal, wait         both may be written to
//   putWithSignal         ═════════════▶       wait                 the bytes, then a signal
//   wait                  ◀═════════════       putWithSignal
//
//   example_05_port_bidirectional                              both sides, as two processes
//   example_05_port_bidirectional eth0:10.0.0.1:4000 0         one side each; the same address
//   example_05_port_bidirectional eth0:10.0.0.1:4000 1
#include "examples/port_side.h"

using namespace example;

namespace {

constexpr uint64_t kMostBytes = 128 << 20;

// Each side's memory: what it sends in the first half, what it receives in the second.
struct Bidirectional {
  PortChannelHandle channel;
  uint64_t* outbox;
  const uint64_t* inbox;
  uint64_t bytes;
  uint64_t rounds;

  // The kernel. All threads of a block call, with the same arguments.
  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t round = 1; round <= rounds; ++round) {
      // "I have read what came last." Who hears it may write the other's inbox, and his own outbox
      // as well: what was put from there has been answered.
      if (!channel.signal(team) || !channel.wait(team)) return round - 1;
      if (team.rank() == 0) *outbox = round;
      team.sync();  // all of the team copies, where the put goes inline
      if (!channel.putWithSignal(team, kMostBytes, 0, bytes)) return round - 1;
      if (!channel.wait(team)) return round - 1;
      if (*inbox != round) return round - 1;
    }
    return channel.flush(team) ? rounds : 0;  // the last put has left the outbox
  }
};

// What `rank` sends; in each round with another first word.
void makePiece(int rank, uint64_t bytes, uint64_t at, std::span<std::byte> piece) {
  makeBytes(static_cast<uint64_t>(rank + 1) * 1000003 + bytes + at, piece);
}

Status fillOutbox(const PortSide& side, uint64_t bytes) {
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, 1 << 20));
  for (uint64_t at = 0; at < bytes; at += piece.size()) {
    makePiece(side.rank, bytes, at, piece);
    PEERLANE_RETURN_IF_ERROR(fill(side.memory, at, piece));
  }
  return Status::ok();
}

Status checkInbox(const PortSide& side, uint64_t bytes, uint64_t rounds) {
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, 1 << 20));
  std::vector<std::byte> expected(piece.size());
  for (uint64_t at = 0; at < bytes; at += piece.size()) {
    makePiece(1 - side.rank, bytes, at, expected);
    if (at == 0) std::memcpy(expected.data(), &rounds, sizeof rounds);
    PEERLANE_RETURN_IF_ERROR(look(side.memory, kMostBytes + at, piece));
    if (piece != expected)
      return Status(Code::kCorrupt, "other bytes in the MiB at " + std::to_string(at));
  }
  return Status::ok();
}

Status play(PortSide& side) {
  if (side.rank == 0) std::printf("%s\n", side.channel.explain().c_str());
  struct Size {
    uint64_t bytes;
    uint64_t rounds;
  };
  for (const auto [bytes, rounds] : {Size{1 << 10, 1000}, Size{1 << 20, kOnGpu ? 1000 : 100},
                                     Size{128 << 20, kOnGpu ? 100 : 4}}) {
    PEERLANE_RETURN_IF_ERROR(fillOutbox(side, bytes));
    auto* const memory = reinterpret_cast<uint64_t*>(side.memory.data());
    const Bidirectional kernel{.channel = side.channel.deviceHandle(),
                               .outbox = memory,
                               .inbox = memory + kMostBytes / sizeof(uint64_t),
                               .bytes = bytes,
                               .rounds = rounds};
    const Clock::time_point start = Clock::now();
    PEERLANE_ASSIGN(const uint64_t done, runKernel(side, kernel));
    const double micros = secondsSince(start) * 1e6 / static_cast<double>(rounds);
    PEERLANE_RETURN_IF_ERROR(expectRounds(side, done, rounds));
    PEERLANE_RETURN_IF_ERROR(checkInbox(side, bytes, rounds));
    if (side.rank == 0)
      std::printf("%9llu bytes: %8.2f us for each round, %7.3f GB/s each way\n",
                  static_cast<unsigned long long>(bytes), micros,
                  static_cast<double>(bytes) / micros / 1e3);
  }
  return Status::ok();
}

}  // namespace

int main(int argc, char** argv) {
  return runSides(argc, argv, 2 * kMostBytes, play);
}
