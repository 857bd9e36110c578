// SPDX-License-Identifier: Apache-2.0
//
// TcpPair: two contexts' worth of surroundings, joined by the tcp transport over loopback.
#pragma once

#include <cstdint>
#include <memory>

#include "peerlane/core/metrics.h"
#include "peerlane/program/cpu/copy_team.h"
#include "peerlane/transport/tcp/tcp_transport.h"
#include "tests/contract/link_contract.h"

namespace peerlane {

class TcpPair final : public LinkPair {
 public:
  // `helpers`: threads of each side that poll sockets, too.
  explicit TcpPair(bool encrypted = false, uint32_t sockets = 1, uint32_t helpers = 0) {
    config_.tcpEncrypt = encrypted;
    config_.tcpSockets = sockets;
    if (helpers != 0)
      for (auto& team : teams_) team = cpu::CopyTeam::create(helpers, metrics_).value();
    PeerFacts facts[2];
    facts[1].unixSocket = facts[0].unixSocket = true;  // side 0 dials 127.0.0.1
    facts[0].initiator = true;
    std::unique_ptr<PendingLink> pending[2];
    Offer offers[2];
    for (int i : {0, 1}) {
      pending[i] = transports_[i]->prepare(facts[i], surroundings(i)).value();
      offers[i] = pending[i]->takeOffer();
    }
    for (int i : {0, 1}) links_[i] = pending[i]->complete(std::move(offers[1 - i])).value();
  }

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return regions_[side]; }
  void turn(int side) override { (void)loops_[side]->poll(); }
  void kill() override {
    links_[1].reset();
    turn(1);  // the socket closes in its loop
  }

 private:
  Watch watched(int side) {
    return loops_[side]
        ->watch(readiness_[side]->gate(), true, false, [this, side] { readiness_[side]->look(); })
        .value();
  }
  LinkSurroundings surroundings(int side) {
    return {config_, *loops_[side],     *readiness_[side], *bells_[side], regions_[side], nullptr,
            {},      teams_[side].get()};
  }

  Config config_;
  Metrics metrics_;
  std::unique_ptr<cpu::CopyTeam, cpu::CopyTeam::End> teams_[2];
  FakeRegions regions_[2];
  std::unique_ptr<EventLoop> loops_[2] = {EventLoop::create().value(), EventLoop::create().value()};
  std::unique_ptr<ReadinessSet> readiness_[2] = {ReadinessSet::create().value(),
                                                 ReadinessSet::create().value()};
  Watch data_[2] = {watched(0), watched(1)};
  std::unique_ptr<Bell> bells_[2] = {Bell::create().value(), Bell::create().value()};
  std::unique_ptr<Transport> transports_[2] = {makeTcpTransport(), makeTcpTransport()};
  std::unique_ptr<Link> links_[2];
};

}  // namespace peerlane
