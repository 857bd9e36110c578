// SPDX-License-Identifier: Apache-2.0
//
// FakeTransport: makes fake links between contexts of one process, over wires that the test can
// reach. Both sides' transports share one FakeNetwork.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/transport/transport.h"
#include "tests/fake/fake_link.h"
#include "tests/fake/fake_wire.h"

namespace peerlane {

// Thread-safe.
class FakeNetwork {
 public:
  explicit FakeNetwork(uint64_t seed) : seed_(seed) {}

  // The wire between two offers, made by whoever asks first; side 0 is the one with the lower
  // number.
  std::shared_ptr<FakeWire> wire(uint64_t a, uint64_t b);
  uint64_t nextNumber();
  // In the order in which they were made.
  std::vector<std::shared_ptr<FakeWire>> wires() const;
  // Of all links of the network.
  const std::shared_ptr<FakeKeys>& keys() const { return keys_; }

 private:
  mutable Mutex mutex_;
  const uint64_t seed_;
  const std::shared_ptr<FakeKeys> keys_ = std::make_shared<FakeKeys>();
  uint64_t numbers_ PEERLANE_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<FakeWire>> byOffers_
      PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FakeWire>> wires_ PEERLANE_GUARDED_BY(mutex_);
};

class FakeTransport final : public Transport {
 public:
  // `network` outlives the transport and its links. Unless `refusal` is OK, prepare() answers it.
  explicit FakeTransport(FakeNetwork& network, FakeLinkOptions options = {}, Status refusal = {})
      : network_(network), options_(std::move(options)), refusal_(std::move(refusal)) {}

  std::string_view name() const override { return options_.name; }
  LinkScope scope() const override { return options_.scope; }
  LinkAbilities abilities() const override { return FakeLink::abilities(options_); }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override;

 private:
  FakeNetwork& network_;
  const FakeLinkOptions options_;
  const Status refusal_;
};

}  // namespace peerlane
