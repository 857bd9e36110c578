// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/self/self_transport.h"

#include <bit>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

class SelfLink final : public Link {
 public:
  explicit SelfLink(Waker peerWaker) {
    traits_.transport = "self";
    traits_.mapsRegions = true;
    traits_.wordsBy = "mapped";
    traits_.rightsEnforcedBy = "initiator";
    traits_.waker = peerWaker;
  }

  const LinkTraits& traits() const override { return traits_; }
  // The address is enough; the descriptor is for whoever wants a mapping of his own (streams).
  Result<Grant> grant(RegionGrant region, const Fd& backing) override {
    Grant grant{std::move(region), Fd()};
    if (grant.region.kind == MemoryKind::kShared) {
      PEERLANE_ASSIGN(grant.fd, backing.dup());
    }
    return grant;
  }
  Result<RemoteMemory> attach(Grant grant) override {
    RemoteMemory memory;
    memory.grant = grant.region;
    memory.mapped = std::bit_cast<std::byte*>(grant.region.base);
    memory.engine = "mapped";
    return memory;
  }
  void detach(RemoteMemory& /*memory*/) override {}
  bool poll() override { return false; }
  Status health() const override { return Status::ok(); }
  void close(Code /*code*/) override {}
  Served serve(AgentWork& work) override {
    work.code = Code::kInternal;  // nothing on this link needs an agent
    return Served::kDone;
  }

 private:
  LinkTraits traits_;
};

// The offer: where the other context's bell is. An address is meaningful because both contexts
// share this address space.
class PendingSelf final : public PendingLink {
 public:
  explicit PendingSelf(const Bell& bell) : bell_(bell) {}

  Offer takeOffer() override {
    Offer offer;
    ByteWriter writer(offer.blob);
    writer.u64(std::bit_cast<uint64_t>(&bell_));
    return offer;
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    ByteReader reader(peerOffer.blob);
    const Bell* bell = std::bit_cast<const Bell*>(reader.u64());
    PEERLANE_RETURN_IF_ERROR(reader.finish("self link offer"));
    return std::unique_ptr<Link>(std::make_unique<SelfLink>(bell->localWaker()));
  }

 private:
  const Bell& bell_;
};

class SelfTransport final : public Transport {
 public:
  std::string_view name() const override { return "self"; }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override {
    if (!facts.sameProcess) return Status(Code::kNotSupported, "the peer is another process");
    return std::unique_ptr<PendingLink>(std::make_unique<PendingSelf>(surroundings.bell));
  }
};

}  // namespace

std::unique_ptr<Transport> makeSelfTransport() {
  return std::make_unique<SelfTransport>();
}

}  // namespace peerlane
