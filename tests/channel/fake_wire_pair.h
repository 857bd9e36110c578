// SPDX-License-Identifier: Apache-2.0
//
// FakeWirePair: two connected peers of one process over a wire that the test holds in its hand, and
// over a real control connection beside it: what one of the two says may come before what the other
// carries. External synchronization required.
#pragma once

#include <future>
#include <memory>
#include <utility>

#include "peerlane/core/asymmetric_fence.h"
#include "peerlane/os/socket.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/fake/fake_transport.h"

namespace peerlane {

class FakeWirePair {
 public:
  // `featuresOfB`: fewer than all for a side of an earlier version.
  explicit FakeWirePair(FakeLinkOptions forA = {}, FakeLinkOptions forB = {},
                        uint64_t featuresOfB = feature::kAll)
      : a_(network_, std::move(forA)), b_(network_, std::move(forB)) {
    EXPECT_OK(prepareAsymmetricFence());
    auto sockets = MUST(socketPair());
    const Secret secret = Secret::random();
    auto first = a_.connect(true, std::move(sockets.first), secret, feature::kAll);
    auto second = b_.connect(false, std::move(sockets.second), secret, featuresOfB);
    EXPECT_OK(first.get());
    EXPECT_OK(second.get());
    toB = Peer(a_.peer);
    toA = Peer(b_.peer);
  }
  ~FakeWirePair() {
    toA.close();
    toB.close();
  }
  FakeWirePair(const FakeWirePair&) = delete;
  FakeWirePair& operator=(const FakeWirePair&) = delete;

  // Nothing that is written to the wire from now on arrives.
  void hold() {
    for (const int side : {0, 1}) network_.wires().front()->hold(side);
  }
  // Neither does anything that was held, nor the end of the wire.
  void freeze() {
    for (const int side : {0, 1}) network_.wires().front()->freeze(side);
  }

 private:
  // What a context is to its peers.
  struct Side {
    Side(FakeNetwork& network, FakeLinkOptions options) {
      config.links = {"fake"};
      config.spin = kSoon;  // the wire wakes nobody
      transports.push_back(std::make_unique<FakeTransport>(network, std::move(options)));
      progress = MUST(Progress::create(config.spin));
    }
    ~Side() { progress->stop(); }
    std::future<Status> connect(bool initiator, Fd socket, const Secret& secret,
                                uint64_t features) {
      auto connected = std::make_shared<std::promise<Status>>();
      auto result = connected->get_future();
      const PeerSurroundings around{nullptr,    config,  *progress, regions,   providers, metrics,
                                    transports, devices, strangers, absentees, copier};
      peer = std::make_shared<PeerCore>(
          1, around, initiator,
          PeerCore::Events{
              .connected = [connected](Status status) { connected->set_value(std::move(status)); },
              .gone = {}});
      HandshakeOptions options;
      options.secret = secret;
      options.features = features;
      options.keyId = keyIdOf(secret);
      options.self = ContextId::random();
      Status started;
      EXPECT_OK(progress->call([&] { started = peer->start(std::move(socket), false, options); }));
      EXPECT_OK(started);
      return result;
    }

    Config config;
    RegionTable regions;
    Absentees absentees{regions};
    const cpu::HostCopier copier;
    MemoryProviders providers;
    Metrics metrics;
    LogLimit strangers;
    std::vector<std::unique_ptr<Transport>> transports;
    DeviceExecutors devices;
    std::unique_ptr<Progress> progress;
    std::shared_ptr<PeerCore> peer;
  };

  FakeNetwork network_{1};
  Side a_;
  Side b_;

 public:
  Peer toB;  // a's handle
  Peer toA;  // b's handle
};

}  // namespace peerlane
