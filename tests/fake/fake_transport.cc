// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_transport.h"

#include <algorithm>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

class PendingFakeLink final : public PendingLink {
 public:
  PendingFakeLink(FakeNetwork& network, FakeLinkOptions options, RegionDirectory& regions,
                  std::function<void()> workArrived)
      : network_(network),
        options_(std::move(options)),
        regions_(regions),
        workArrived_(std::move(workArrived)),
        number_(network.nextNumber()) {}

  Offer takeOffer() override {
    Offer offer;
    ByteWriter writer(offer.blob);
    writer.u64(number_);
    return offer;
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    ByteReader reader(peerOffer.blob);
    const uint64_t other = reader.u64();
    PEERLANE_RETURN_IF_ERROR(reader.finish("fake offer"));
    if (options_.onComplete) PEERLANE_RETURN_IF_ERROR(options_.onComplete());
    const int side = number_ < other ? 0 : 1;
    return std::unique_ptr<Link>(
        std::make_unique<FakeLink>("fake link", network_.wire(number_, other)->end(side), regions_,
                                   workArrived_, options_, network_.keys()));
  }

 private:
  FakeNetwork& network_;
  const FakeLinkOptions options_;
  RegionDirectory& regions_;
  const std::function<void()> workArrived_;
  const uint64_t number_;
};

}  // namespace

std::shared_ptr<FakeWire> FakeNetwork::wire(uint64_t a, uint64_t b) {
  const MutexLock lock(mutex_);
  std::shared_ptr<FakeWire>& wire = byOffers_[std::minmax(a, b)];
  if (!wire) {
    wire = std::make_shared<FakeWire>(seed_ + wires_.size());
    wires_.push_back(wire);
  }
  return wire;
}

uint64_t FakeNetwork::nextNumber() {
  const MutexLock lock(mutex_);
  return ++numbers_;
}

std::vector<std::shared_ptr<FakeWire>> FakeNetwork::wires() const {
  const MutexLock lock(mutex_);
  return wires_;
}

Result<std::unique_ptr<PendingLink>> FakeTransport::prepare(const PeerFacts& /*facts*/,
                                                            const LinkSurroundings& surroundings) {
  if (!refusal_.isOk()) return refusal_;
  return std::unique_ptr<PendingLink>(std::make_unique<PendingFakeLink>(
      network_, options_, surroundings.regions, surroundings.workArrived));
}

}  // namespace peerlane
