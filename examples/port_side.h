// SPDX-License-Identifier: Apache-2.0
//
// What the examples of port channels begin with: two sides that meet, a channel between them, and
// a kernel at each (on_gpu.h). Confined to one thread.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "examples/on_gpu.h"

namespace example {

using peerlane::PortChannelHandle;
using peerlane::PortEngine;

inline constexpr uint32_t kThreads = kOnGpu ? 256 : 2;  // of the block that runs a kernel

// ---- Two sides that meet.

struct SideBootstrap {
  int rank = 0;
  std::string address{};  // where rank 0 listens; empty: both sides are processes of this program
  std::string secret{};   // 64 hexadecimal digits
};

// For trying only: anybody can compute it. Take 32 random bytes, and tell both sides, for example
// in a file that only you can read.
inline std::string secretForTrying(const std::string& address) {
  std::string text;
  uint64_t hash = 0xcbf29ce484222325;
  while (text.size() < 64) {
    for (const char c : address + text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    text += "0123456789abcdef"[hash >> 60];
  }
  return text;
}

// One side of a channel, and all that it takes.
struct PortSide {
  std::optional<peerlane::Config> config;  // none: the environment's
  int rank = 0;
  peerlane::Device device;
  std::unique_ptr<peerlane::Context> context;
  peerlane::Peer peer;
  peerlane::Region memory;        // this side's, and
  peerlane::RemoteRegion theirs;  // the other side's: as many bytes
  std::unique_ptr<peerlane::ProxyService> service;
  peerlane::MemoryId local = 0;
  peerlane::MemoryId remote = 0;
  peerlane::PortChannel channel;

  Status connect(const SideBootstrap& bootstrap, TicketPipes& tickets) {
    rank = bootstrap.rank;
    PEERLANE_ASSIGN(device, deviceOf(rank));
    peerlane::ContextOptions options;
    options.config = config;
    if (kOnGpu) options.devices = {device};
    if (rank == 0 && !bootstrap.address.empty()) {
      options.listen = {bootstrap.address};
      options.secret = bootstrap.secret;
    }
    PEERLANE_ASSIGN(context, peerlane::Context::create(std::move(options)));
    if (rank == 0) {
      if (bootstrap.address.empty()) PEERLANE_RETURN_IF_ERROR(tickets.give(context->ticket()));
      PEERLANE_ASSIGN(peer, context->accept(kPatience));
      return Status::ok();
    }
    if (bootstrap.address.empty()) {
      PEERLANE_ASSIGN(const std::string ticket, tickets.take(0));
      PEERLANE_ASSIGN(peer, context->connect(ticket, kPatience));
      return Status::ok();
    }
    // The other side may not listen yet.
    for (const auto start = Clock::now();;) {
      auto connected = context->connect(bootstrap.address, bootstrap.secret, kPatience);
      if (connected.isOk()) peer = *connected;
      if (connected.isOk() || connected.status().code() != Code::kUnavailable ||
          Clock::now() - start > kPatience)
        return connected.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  Status openChannel(uint64_t bytes) {
    PEERLANE_ASSIGN(memory, context->allocate(bytes, {.device = device}));
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(0, memory.share()));
    PEERLANE_ASSIGN(const std::vector<std::byte> share, peer.receiveMessage(0, kPatience));
    PEERLANE_ASSIGN(theirs, peer.importRegion(share));

    PEERLANE_ASSIGN(service, peerlane::ProxyService::create(*context, {.device = device}));
    PEERLANE_ASSIGN(const auto connection, service->connect(peer));
    PEERLANE_ASSIGN(const auto semaphore, service->addSemaphore(connection, /*tag=*/1));
    PEERLANE_ASSIGN(local, service->addMemory(memory));
    // The peer registers its memory meanwhile, which takes an emulated NIC more than ten seconds.
    PEERLANE_ASSIGN(remote, service->addMemory(theirs, 3 * kPatience));
    PEERLANE_ASSIGN(channel, service->channel(semaphore, remote, local));
    return service->start();
  }

  // Both sides' kernels have ended: now either may go. A side that went earlier would end the
  // semaphore under the other one's kernel.
  Status leave() const {
    PEERLANE_RETURN_IF_ERROR(peer.sendMessage(1, {}));
    return peer.receiveMessage(1, kPatience).status();
  }
};

// ---- A kernel.

#if defined(__CUDACC__)

template <class Body>
__global__ void kernel(Body body, uint64_t* result) {
  const uint64_t returned = body(peerlane::port::ThisBlock());
  if (threadIdx.x == 0) *result = returned;
}

// Runs `body` by one block; returns what it returned.
template <class Body>
Result<uint64_t> runKernel(const PortSide& side, const Body& body) {
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(side.device.index)));
  static cudaStream_t stream = nullptr;
  if (stream == nullptr)
    PEERLANE_RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  uint64_t* result = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMallocAsync(reinterpret_cast<void**>(&result), sizeof *result, stream)));
  // The proxy looks from here on: the kernel's first request does not wait for its nap to end.
  PEERLANE_RETURN_IF_ERROR(side.service->wakeOn(peerlane::DeviceStream::cuda(stream)));
  kernel<<<1, kThreads, 0, stream>>>(body, result);
  PEERLANE_RETURN_IF_ERROR(check(cudaGetLastError()));
  uint64_t returned = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(&returned, result, sizeof returned, cudaMemcpyDeviceToHost, stream)));
  PEERLANE_RETURN_IF_ERROR(check(cudaFreeAsync(result, stream)));
  PEERLANE_RETURN_IF_ERROR(check(cudaStreamSynchronize(stream)));
  return returned;
}

#else

template <class Body>
Result<uint64_t> runKernel(const PortSide& side, const Body& body) {
  peerlane::port::Crew::Shared shared(kThreads);
  uint64_t returned = 0;
  std::vector<std::thread> threads;
  side.service->wake();
  for (uint32_t rank = 0; rank < kThreads; ++rank)
    threads.emplace_back([&, rank] {
      const uint64_t mine = body(peerlane::port::Crew(rank, shared));
      if (rank == 0) returned = mine;
    });
  for (std::thread& thread : threads) thread.join();
  return returned;
}

#endif

// Errors of a kernel that stopped after `done` rounds: why, if the channel knows.
inline Status expectRounds(const PortSide& side, uint64_t done, uint64_t rounds) {
  if (done == rounds) return Status::ok();
  const std::string where = "after " + std::to_string(done) + " rounds";
  PEERLANE_RETURN_IF_ERROR(side.channel.status().withContext(where));
  return Status(Code::kCorrupt, where + ": other bytes are there than the other side has put");
}

// ---- The program: both sides, or, with "ADDRESS RANK [SECRET] [LINK:DEVICE]", one of them.
// ADDRESS is "ip:port" or "interface:ip:port", of rank 0, for both. LINK:DEVICE, such as
// verbs:mlx5_0, allows that link alone, and the RDMA device of that name.

inline Result<peerlane::Config> configFor(const std::string& linkAndDevice) {
  PEERLANE_ASSIGN(peerlane::Config config, peerlane::Config::fromEnvironment());
  if (linkAndDevice.empty()) return config;
  const size_t colon = linkAndDevice.find(':');
  config.links = {linkAndDevice.substr(0, colon)};
  config.strict = true;
  config.ibDevices = {.exact = true, .names = {linkAndDevice.substr(colon + 1)}};
  return config;
}

inline int runSides(int argc, char** argv, uint64_t bytes,
                    const std::function<Status(PortSide&)>& play) {
  TicketPipes tickets(1);
  std::string linkAndDevice;
  if (argc > 3 && std::strchr(argv[argc - 1], ':') != nullptr) linkAndDevice = argv[--argc];
  const auto role = [&](const SideBootstrap& bootstrap) {
    return Role{"rank " + std::to_string(bootstrap.rank), [&, bootstrap]() -> Status {
                  PortSide side;
                  PEERLANE_ASSIGN(side.config, configFor(linkAndDevice));
                  PEERLANE_RETURN_IF_ERROR(side.connect(bootstrap, tickets));
                  PEERLANE_RETURN_IF_ERROR(side.openChannel(bytes));
                  PEERLANE_RETURN_IF_ERROR(play(side));
                  return side.leave();
                }};
  };
  if (argc == 1) return runRoles({role({.rank = 0}), role({.rank = 1})}, tickets);
  const std::string rank = argc > 2 ? argv[2] : "";
  if (argc > 4 || (rank != "0" && rank != "1")) {
    std::fprintf(stderr, "usage: %s [ADDRESS RANK [SECRET] [LINK:DEVICE]], RANK being 0 or 1\n",
                 argv[0]);
    return 2;
  }
  const SideBootstrap bootstrap{.rank = rank == "1" ? 1 : 0,
                                .address = argv[1],
                                .secret = argc == 4 ? argv[3] : secretForTrying(argv[1])};
  return runRoles({role(bootstrap)}, tickets);
}

}  // namespace example
