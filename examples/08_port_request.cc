// SPDX-License-Identifier: Apache-2.0
//
// A request of one's own: the kernel names pages, and the host's handler puts all of them with one
// prepared Plan. One request and one transfer instead of a put for each page; what the pages are,
// and where they go, only the program knows.
//
//   the kernel of rank 0          the proxy of rank 0               the kernel of rank 1
//   chooses pages
//   request(kPutPages)  ───────▶  the handler posts the plan  ═══▶
//                                 its end: signal             ───▶  wait: reads its pages
//   wait                ◀─────────────────────────────────────────  signal: taken
//
//   example_08_port_request [ADDRESS RANK [SECRET]]
#include "examples/port_side.h"

using namespace example;

namespace {

constexpr uint32_t kPutPages = 1;  // a kind of request; numbers below 2^20 are the program's
constexpr uint64_t kPages = 512;
constexpr uint64_t kPageWords = 512;  // 4 KiB
constexpr uint64_t kPageBytes = kPageWords * sizeof(uint64_t);
constexpr uint64_t kPagesPerRequest = 64;
constexpr uint64_t kRounds = 100;

// Behind the pages of each side's memory: those that the kernel chose, all of them different.
constexpr uint64_t kChosenOffset = kPages * kPageBytes;
PEERLANE_DEVICE uint32_t chosenPage(uint64_t round, uint64_t i) {
  return static_cast<uint32_t>((round * 31 + i * 7) % kPages);
}
PEERLANE_DEVICE uint64_t word(uint64_t round, uint64_t page, uint64_t i) {
  return round << 40 | page << 20 | i;
}

struct Asking {
  PortChannelHandle channel;
  uint64_t* pages;
  uint32_t* chosen;

  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (uint64_t n = 0; n < kPagesPerRequest; ++n) {
        const uint32_t page = chosenPage(round, n);
        if (team.rank() == 0) chosen[n] = page;
        for (uint64_t i = team.rank(); i < kPageWords; i += team.size())
          pages[page * kPageWords + i] = word(round, page, i);
      }
      team.sync();
      // Operands mean what the handler takes them for.
      bool isAsked = true;
      if (team.rank() == 0)
        isAsked = bool{channel.request(kPutPages, /*to=*/0, /*from=*/channel.local.memory,
                                       /*toOffset=*/0, kChosenOffset, kPagesPerRequest)};
      if (team.agree(isAsked ? 1 : 0) == 0 || !channel.wait(team)) return round;
    }
    return kRounds;
  }
};

struct Answering {
  PortChannelHandle channel;
  const uint64_t* pages;

  template <class Team>
  PEERLANE_DEVICE uint64_t operator()(const Team& team) const {
    for (uint64_t round = 0; round < kRounds; ++round) {
      if (!channel.wait(team)) return round;
      for (uint64_t n = 0; n < kPagesPerRequest; ++n) {
        const uint64_t page = chosenPage(round, n), i = n * 5 % kPageWords;
        if (pages[page * kPageWords + i] != word(round, page, i)) return round;
      }
      if (!channel.signal(team)) return round;
    }
    return channel.flush(team) ? kRounds : 0;
  }
};

// The handler runs on the proxy's thread: it posts and returns. What it returns as an error is
// ProxyService::status().
Status setHandler(PortSide& side, peerlane::Plan& plan) {
  return side.service->onRequest(kPutPages, [&](const peerlane::port::PortRequest& request) {
#if defined(__CUDACC__)
    // The page numbers stay in the GPU's memory.
    const auto* numbers =
        reinterpret_cast<const uint32_t*>(side.memory.data() + request.fromOffset);
    auto posted = plan.post({.local = numbers, .remote = numbers, .count = request.bytes}, {});
#else
    const std::span numbers(
        reinterpret_cast<const uint32_t*>(side.memory.data() + request.fromOffset), request.bytes);
    auto posted = plan.post(numbers, numbers);
#endif
    PEERLANE_RETURN_IF_ERROR(posted.status());
    posted->onEnd([semaphore = side.channel.semaphore()](const Status& ended) {
      if (ended.isOk()) (void)semaphore.signal();
    });
    return Status::ok();
  });
}

Status play(PortSide& side) {
  auto* const pages = reinterpret_cast<uint64_t*>(side.memory.data());
  const PortChannelHandle channel = side.channel.deviceHandle();
  const peerlane::IndexedBlocks blocks{.local = &side.memory,
                                       .localCount = kPages,
                                       .remote = &side.theirs,
                                       .remoteCount = kPages,
                                       .blockBytes = kPageBytes,
                                       .maxBlocksPerPost = kPagesPerRequest};
  PEERLANE_ASSIGN(auto plan, peerlane::Plan::create(side.peer, peerlane::Direction::kPut, blocks));
  PEERLANE_RETURN_IF_ERROR(setHandler(side, plan));
  const Clock::time_point start = Clock::now();
  auto* const chosen = reinterpret_cast<uint32_t*>(side.memory.data() + kChosenOffset);
  auto done = side.rank == 0 ? runKernel(side, Asking{channel, pages, chosen})
                             : runKernel(side, Answering{channel, pages});
  const double micros = secondsSince(start) * 1e6 / kRounds;
  PEERLANE_RETURN_IF_ERROR(done.status());
  PEERLANE_RETURN_IF_ERROR(side.service->status());
  PEERLANE_RETURN_IF_ERROR(expectRounds(side, *done, kRounds));
  PEERLANE_RETURN_IF_ERROR(side.service->onRequest(kPutPages, nullptr));
  if (side.rank == 0)
    std::printf("%llu pages of %llu KiB for each request: %.2f us\n",
                static_cast<unsigned long long>(kPagesPerRequest),
                static_cast<unsigned long long>(kPageBytes >> 10), micros);
  return Status::ok();
}

}  // namespace

int main(int argc, char** argv) {
  return runSides(argc, argv, kChosenOffset + kPagesPerRequest * sizeof(uint32_t), play);
}
