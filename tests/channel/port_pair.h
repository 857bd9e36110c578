// SPDX-License-Identifier: Apache-2.0
//
// Two services of the host, on two contexts that are connected, with one channel between them:
// what most tests of port channels begin with. For tests.
#pragma once

#include <cstring>
#include <memory>
#include <thread>

#include "peerlane/channel/port_channel.h"
#include "tests/channel/context_pair.h"
#include "tests/core/expect_ok.h"

namespace peerlane {

// One side: its service, its memory, and its channel to the other side.
struct PortSide {
  Context* context = nullptr;
  Peer peer;
  Region region;
  RemoteRegion theirs;
  std::unique_ptr<ProxyService> service;
  PortConnection connection;
  PortSemaphore semaphore;
  MemoryId local = 0;
  MemoryId remote = 0;
  PortChannel channel;

  Status open(uint64_t bytes, ProxyServiceOptions options) {
    PEERLANE_ASSIGN(service, ProxyService::create(*context, options));
    PEERLANE_ASSIGN(region, context->allocate(bytes, {.device = options.device}));
    return Status::ok();
  }
  // Both sides at once: it waits for the other one.
  Status join(const RegionReference::Encoded& share, uint32_t tag) {
    PEERLANE_ASSIGN(theirs, peer.importRegion(share));
    PEERLANE_ASSIGN(local, service->addMemory(region));
    PEERLANE_ASSIGN(remote, service->addMemory(theirs));
    PEERLANE_ASSIGN(connection, service->connect(peer));
    PEERLANE_ASSIGN(semaphore, service->addSemaphore(connection, tag));
    PEERLANE_ASSIGN(channel, service->channel(semaphore, remote, local));
    return service->start();
  }
};

struct PortPair {
  PortSide a;
  PortSide b;

  Status open(ContextPair& contexts, uint64_t bytes, const ProxyServiceOptions& options = {}) {
    a.context = contexts.a.get();
    b.context = contexts.b.get();
    a.peer = contexts.toB;
    b.peer = contexts.toA;
    PEERLANE_RETURN_IF_ERROR(a.open(bytes, options));
    PEERLANE_RETURN_IF_ERROR(b.open(bytes, options));
    Status there;
    std::thread other([&] { there = b.join(a.region.share(), 7); });
    const Status here = a.join(b.region.share(), 7);
    other.join();
    return here.isOk() ? there : here;
  }
};

}  // namespace peerlane
