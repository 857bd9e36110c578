// SPDX-License-Identifier: Apache-2.0
//
// A kernel that computes a result piece by piece, and has each piece put while it computes the
// next. The other side's kernel uses the pieces as they come.
//
//   rank 0                                               rank 1
//   computes piece 0
//   putWithSignal(0)      ═══════════════════▶           wait: one more piece is there
//   computes piece 1        (the copy engine)            uses piece 0
//   putWithSignal(1)      ═══════════════════▶           wait ...
//   ...
//   flush: all of it has left
//
// With PortEngine::kCe no thread of the kernel copies: a call writes one request and returns.
//
//   example_07_port_overlap [ADDRESS RANK [SECRET]]
#include "examples/port_side.h"

using namespace example;

namespace {

constexpr uint64_t kPieces = 32;
constexpr uint64_t kPieceWords = 64 << 10;  // 512 KiB
constexpr uint64_t kPieceBytes = kPieceWords * sizeof(uint64_t);

// Something that takes a while.
PEERLANE_DEVICE uint64_t compute(uint64_t i) {
  uint64_t value = i + 1;
  for (int step = 0; step < 200; ++step) value = value * 6364136223846793005 + 1442695040888963407;
  return value;
}

struct Producer {
  PortChannelHandle channel;
  uint64_t* result;
  bool overlaps;

  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      for (uint64_t i = team.rank(); i < kPieceWords; i += team.size())
        result[piece * kPieceWords + i] = compute(piece * kPieceWords + i);
      const uint64_t offset = piece * kPieceBytes;
      const auto put = overlaps ? channel.putWithSignal(team, offset, offset, kPieceBytes)
                                : channel.putWithSignalAndFlush(team, offset, offset, kPieceBytes);
      if (!put) return piece;
    }
    // Until the last piece has left the result may not be written again.
    return channel.flush(team) ? kPieces : 0;
  }
};

struct Consumer {
  PortChannelHandle channel;
  const uint64_t* result;

  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      if (!channel.wait(team)) return piece;
      // The pieces come in the order in which they were signalled. Here one word of each is used.
      const uint64_t i = piece * kPieceWords + piece * 977 % kPieceWords;
      if (result[i] != compute(i)) return piece;
    }
    return kPieces;
  }
};

Status play(PortSide& side) {
  const PortChannelHandle channel = side.channel.deviceHandle(PortEngine::kCe);
  auto* const result = reinterpret_cast<uint64_t*>(side.memory.data());
  for (const bool overlaps : {false, true}) {
    const Clock::time_point start = Clock::now();
    auto done = side.rank == 0 ? runKernel(side, Producer{channel, result, overlaps})
                               : runKernel(side, Consumer{channel, result});
    const double millis = secondsSince(start) * 1e3;
    PEERLANE_RETURN_IF_ERROR(done.status());
    PEERLANE_RETURN_IF_ERROR(expectRounds(side, *done, kPieces));
    if (side.rank == 0)
      std::printf(
          "%2llu pieces of %llu KiB, %s: %7.2f ms\n", static_cast<unsigned long long>(kPieces),
          static_cast<unsigned long long>(kPieceBytes >> 10),
          overlaps ? "put while the next is computed" : "each put before the next     ", millis);
  }
  return Status::ok();
}

}  // namespace

int main(int argc, char** argv) {
  return runSides(argc, argv, kPieces * kPieceBytes, play);
}
