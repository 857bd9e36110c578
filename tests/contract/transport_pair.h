// SPDX-License-Identifier: Apache-2.0
//
// TransportPair: two links made by any transport of one host, as between two contexts of this
// process.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include "peerlane/os/process.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/transport/transport.h"
#include "tests/contract/link_contract.h"

namespace peerlane {

class TransportPair : public LinkPair {
 public:
  // `shared`: memory is of the kind that the other side can map.
  TransportPair(const std::function<std::unique_ptr<Transport>()>& make, const Config& config,
                bool shared)
      : TransportPair(make(), make(), config, shared, /*sameProcess=*/true) {}
  // The transports of the two sides; `sameProcess`: what they are told.
  TransportPair(std::unique_ptr<Transport> a, std::unique_ptr<Transport> b, const Config& config,
                bool shared, bool sameProcess)
      : config_(config), shared_(shared), transports_{std::move(a), std::move(b)} {
    PeerFacts facts;
    facts.unixSocket = true;
    facts.sameProcess = sameProcess;
    facts.credentials.pid = getpid();
    facts.pidFd = process_.fd();
    std::unique_ptr<PendingLink> pending[2];
    Offer offers[2];
    for (int i : {0, 1}) {
      facts.initiator = i == 0;
      pending[i] = transports_[i]->prepare(facts, surroundings(i)).value();
      offers[i] = pending[i]->takeOffer();
    }
    for (int i : {0, 1}) links_[i] = pending[i]->complete(std::move(offers[1 - i])).value();
  }

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return regions_[side]; }
  void kill() override { links_[1].reset(); }
  LinkMemory allocate(int side, size_t bytes) override {
    if (!shared_) return LinkPair::allocate(side, bytes);
    std::shared_ptr<SharedSegment> segment = SharedSegment::create(bytes, {}).value();
    LinkMemory memory;
    memory.bytes = {segment->data(), bytes};
    memory.kind = MemoryKind::kShared;
    memory.backing = duplicateFd(segment->fd()).value();
    memory.owner = std::move(segment);
    return memory;
  }

 private:
  LinkSurroundings surroundings(int side) {
    return {config_, *loops_[side], *readiness_[side], *bells_[side], regions_[side], nullptr};
  }

  const Config config_;
  const bool shared_;
  const ProcessHandle process_ = ProcessHandle::open(getpid()).value();
  FakeRegions regions_[2];
  std::unique_ptr<EventLoop> loops_[2] = {EventLoop::create().value(), EventLoop::create().value()};
  std::unique_ptr<ReadinessSet> readiness_[2] = {ReadinessSet::create().value(),
                                                 ReadinessSet::create().value()};
  std::unique_ptr<Bell> bells_[2] = {Bell::create().value(), Bell::create().value()};
  std::unique_ptr<Transport> transports_[2];
  std::unique_ptr<Link> links_[2];
};

}  // namespace peerlane
