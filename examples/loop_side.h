// SPDX-License-Identifier: Apache-2.0
//
// One side of a loop of two: receive 128 bytes, compute, send the result. Rank 0 computes and sends
// first. The computation of each round needs the bytes of the round before, so the last message
// proves all of them. Confined to one thread, but for compute().
#pragma once

#include "examples/roles.h"

namespace example {

inline constexpr size_t kLoopWords = 16;
inline constexpr uint64_t kLoopBytes = kLoopWords * sizeof(uint64_t);

// The work of one round: each word of `out` from the same one of `in`. No two words give the same.
inline void compute(std::span<const uint64_t> in, std::span<uint64_t> out) {
  for (size_t i = 0; i < in.size(); ++i)
    out[i] = (in[i] ^ (in[i] >> 29)) * 0xbf58476d1ce4e5b9 + i + 1;
}

struct LoopSide {
  int rank = 0;
  std::unique_ptr<peerlane::Context> context;
  peerlane::Peer peer;
  peerlane::Region inbox;
  peerlane::Region outbox;
  peerlane::RemoteRegion theirs;  // the other side's inbox

  Status connect(TicketPipes& tickets) {
    PEERLANE_ASSIGN(context, peerlane::Context::create());
    if (rank == 0) {
      PEERLANE_RETURN_IF_ERROR(tickets.give(context->ticket()));
      PEERLANE_ASSIGN(peer, context->accept(kPatience));
    } else {
      PEERLANE_ASSIGN(const std::string ticket, tickets.take(0));
      PEERLANE_ASSIGN(peer, context->connect(ticket, kPatience));
    }
    PEERLANE_ASSIGN(inbox, context->allocate(kLoopBytes));
    PEERLANE_ASSIGN(outbox, context->allocate(kLoopBytes));
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(0, inbox.share()));
    PEERLANE_ASSIGN(const auto share, peer.receiveMessage(0, kPatience));
    PEERLANE_ASSIGN(theirs, peer.importRegion(share));
    return theirs.prepare();
  }

  std::span<uint64_t> received() const { return wordsOf(inbox); }
  std::span<uint64_t> toSend() const { return wordsOf(outbox); }
  peerlane::Block block() const { return {&outbox, 0, &theirs, 0, kLoopBytes}; }

  // Both sides come here before the next loop, and before they leave.
  Status meet() const {
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(1, {}));
    return peer.receiveMessage(1, kPatience).status();
  }
  // What rank 0 computes from in the first round.
  void begin() const { std::fill(received().begin(), received().end(), uint64_t{42}); }

  // The message that came last, after `rounds` of them, against a computation of all.
  Status check(uint64_t rounds) const {
    std::array<uint64_t, kLoopWords> expected;
    expected.fill(42);
    for (uint64_t i = 0; i < 2 * rounds - (rank == 0 ? 0 : 1); ++i) compute(expected, expected);
    if (std::equal(expected.begin(), expected.end(), received().begin())) return Status::ok();
    return Status(Code::kCorrupt, "other bytes came than the other side has computed");
  }
  // Of rank 0: a round is there and back, with both computations.
  void report(const char* what, uint64_t rounds, Clock::time_point start) const {
    if (rank != 0) return;
    std::printf("%-28s %8.2f us per round, %llu rounds over link %s, every byte checked\n", what,
                secondsSince(start) * 1e6 / static_cast<double>(rounds),
                static_cast<unsigned long long>(rounds), peer.route().link.c_str());
  }

 private:
  static std::span<uint64_t> wordsOf(const peerlane::Region& region) {
    return {reinterpret_cast<uint64_t*>(region.data()), kLoopWords};
  }
};

// Two processes, a side each: NAME [--rounds COUNT].
inline int runLoop(int argc, char** argv, Status (*play)(const LoopSide&, uint64_t rounds)) {
  const auto options = parse(argc, argv, "--rounds", 200, {});
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().toString().c_str());
    return 2;
  }
  TicketPipes tickets(1);
  const auto role = [&](int rank) {
    return Role{"rank " + std::to_string(rank), [&, rank]() -> Status {
                  LoopSide side;
                  side.rank = rank;
                  PEERLANE_RETURN_IF_ERROR(side.connect(tickets));
                  PEERLANE_RETURN_IF_ERROR(play(side, options->count));
                  return side.meet();
                }};
  };
  return runRoles({role(0), role(1)}, tickets);
}

}  // namespace example
