// SPDX-License-Identifier: Apache-2.0
//
// One side of a loop of two: receive 128 bytes, compute, send the result. Rank 0 computes and sends
// first. The computation of each round needs the bytes of the round before, so the last message
// proves all of them. On a GPU (on_gpu.h) a kernel computes, on the stream of its side. Confined to
// one thread, but for work().
#pragma once

#include "examples/on_gpu.h"

namespace example {

inline constexpr size_t kLoopWords = 16;
inline constexpr uint64_t kLoopBytes = kLoopWords * sizeof(uint64_t);

// What word `i` becomes in a round. No two give the same.
PEERLANE_DEVICE inline uint64_t computed(uint64_t word, uint64_t i) {
  return (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9 + i + 1;
}
inline void compute(std::span<const uint64_t> in, std::span<uint64_t> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = computed(in[i], i);
}
#if defined(__CUDACC__)
__global__ void computeKernel(const uint64_t* in, uint64_t* out) {
  out[threadIdx.x] = computed(in[threadIdx.x], threadIdx.x);
}
#endif

struct LoopSide {
  int rank = 0;
  peerlane::Device device;
  peerlane::DeviceStream stream;  // of a GPU
  std::unique_ptr<peerlane::Context> context;
  peerlane::Peer peer;
  peerlane::Region inbox;
  peerlane::Region outbox;
  peerlane::RemoteRegion theirs;  // the other side's inbox

  Status connect(TicketPipes& tickets) {
    PEERLANE_ASSIGN(device, deviceOf(rank));
    PEERLANE_ASSIGN(context, contextOn(device));
    PEERLANE_RETURN_IF_ERROR(makeStream());
    if (rank == 0) {
      PEERLANE_RETURN_IF_ERROR(tickets.give(context->ticket()));
      PEERLANE_ASSIGN(peer, context->accept(kPatience));
    } else {
      PEERLANE_ASSIGN(const std::string ticket, tickets.take(0));
      PEERLANE_ASSIGN(peer, context->connect(ticket, kPatience));
    }
    PEERLANE_ASSIGN(inbox, context->allocate(kLoopBytes, {.device = device}));
    PEERLANE_ASSIGN(outbox, context->allocate(kLoopBytes, {.device = device}));
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(0, inbox.share()));
    PEERLANE_ASSIGN(const auto share, peer.receiveMessage(0, kPatience));
    PEERLANE_ASSIGN(theirs, peer.importRegion(share));
    return theirs.prepare();
  }

  // What came becomes what is to be sent: now, or when the stream of a GPU gets there.
  Status work() const {
#if defined(__CUDACC__)
    PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index)));
    computeKernel<<<1, kLoopWords, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        wordsOf(inbox).data(), wordsOf(outbox).data());
    return check(cudaGetLastError());
#else
    compute(wordsOf(inbox), wordsOf(outbox));
    return Status::ok();
#endif
  }
  // All that was enqueued is done.
  Status finish() const {
#if defined(__CUDACC__)
    return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle())));
#else
    return Status::ok();
#endif
  }
  peerlane::Block block() const {
    return {&outbox, 0, &theirs, 0, kLoopBytes};
  }

  // Both sides come here before the next loop, and before they leave.
  Status meet() const {
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(1, {}));
    return peer.receiveMessage(1, kPatience).status();
  }
  // What rank 0 computes from in the first round.
  Status begin() const {
    std::array<uint64_t, kLoopWords> words;
    words.fill(42);
    return fill(inbox, 0, bytesOf(words));
  }

  // The message that came last, after `rounds` of them, against a computation of all.
  Status verify(uint64_t rounds) const {
    std::array<uint64_t, kLoopWords> expected;
    expected.fill(42);
    for (uint64_t i = 0; i < 2 * rounds - (rank == 0 ? 0 : 1); ++i) compute(expected, expected);
    std::array<uint64_t, kLoopWords> received;
    PEERLANE_RETURN_IF_ERROR(look(inbox, 0, std::as_writable_bytes(std::span(received))));
    if (received == expected) return Status::ok();
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
  Status makeStream() {
#if defined(__CUDACC__)
    cudaStream_t made = nullptr;
    PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index)));
    PEERLANE_RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking)));
    stream = peerlane::DeviceStream::cuda(made);
#endif
    return Status::ok();
  }
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
