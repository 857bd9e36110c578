// SPDX-License-Identifier: Apache-2.0
//
// PeerEnvironment: the things that all objects of one peer use: its number, the services of its
// context, the peer's status and its control connection. Owned by PeerCore, which outlives them.
// Number, surroundings and status are for any thread; the rest is the progress thread's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/metrics.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/program/cpu/host_copier.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/peer/absentees.h"
#include "peerlane/session/peer/peer_status.h"
#include "peerlane/session/wire/control_connection.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

// A context gives these to each of its peers.
struct PeerSurroundings {
  // Owns everything that the references point into: handles may outlive the context.
  std::shared_ptr<void> keepAlive;
  const Config& config;
  Progress& progress;
  RegionTable& regions;
  MemoryProviders& providers;
  Metrics& metrics;
  std::vector<std::unique_ptr<Transport>>& transports;  // in the order of preference
  const DeviceExecutors& devices;
  LogLimit& strangers;  // for lines about strangers that were turned away; progress thread
  Absentees& absentees;
  const cpu::HostCopier& copier;
};

struct PeerEnvironment {
  PeerEnvironment(uint64_t ofPeer, PeerSurroundings surroundings, bool dialled)
      : number(ofPeer), around(std::move(surroundings)), initiator(dialled) {}

  // Runs `act` on the progress thread. The peer, and so the object that asks, lives until then.
  template <typename Act>
  void post(Act act) {
    around.progress.post([kept = peer.lock(), act = std::move(act)]() mutable { act(); });
  }
  // By which errors and logs name it.
  std::string name() const { return "peer " + std::to_string(number); }
  // Names a request of this side's on the control connection; 0 is never one.
  uint64_t nextRequest() { return nextRequest_++; }

  const uint64_t number;
  const PeerSurroundings around;
  const bool initiator;  // this side dialled
  PeerStatus status;
  std::atomic<uint64_t> pendingOperations{0};  // posted transfers that have not ended
  std::weak_ptr<void> peer;  // set before any other thread knows the peer; constant then

  std::unique_ptr<ControlConnection> connection;  // from start() on

 private:
  uint64_t nextRequest_ = 1;
};

}  // namespace peerlane
