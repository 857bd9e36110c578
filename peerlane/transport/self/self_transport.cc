// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/self/self_transport.h"

#include <bit>
#include <utility>

#include "peerlane/program/model/remote_bell.h"
#include "peerlane/transport/host_part.h"

namespace peerlane {
namespace {

class SelfLink final : public Link {
 public:
  explicit SelfLink(RemoteBell peerBell) : peerBell_(std::move(peerBell)) {
    traits_.transport = "self";
    traits_.scope = LinkScope::kProcess;
    traits_.abilities = abilities();
    traits_.waker = peerBell_.waker();
    traits_.signalWaker = peerBell_.signalWaker();
  }

  const LinkTraits& traits() const override { return traits_; }
  static LinkAbilities abilities() {
    LinkAbilities abilities;
    abilities.allow(MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
                    {Ability::kGrants, Ability::kAttaches, Ability::kMaps, Ability::kByDevice,
                     Ability::kMapsWords},
                    Enforcer::kInitiator);
    return abilities;
  }
  // The address is enough; the descriptor is for streams, which make a mapping of their own.
  Result<LinkPart> grant(const RegionRecord& region) override {
    PEERLANE_ASSIGN(LinkPart part, HostPart::grant(region));
    part.blob.push_back(std::byte{region.memory.mayBeCut});
    return part;
  }
  Result<RemoteMemory> attach(Grant grant) override {
    std::span blob(grant.own.blob);
    if (blob.empty()) return Status(Code::kCorrupt, "the link's part of a grant is empty");
    const bool mayBeCut = blob.back() != std::byte{0};
    PEERLANE_ASSIGN(const HostPart part, HostPart::decode(blob.first(blob.size() - 1)));
    RemoteMemory memory;
    memory.grant = std::move(grant.region);
    memory.mapped = std::bit_cast<std::byte*>(part.address);
    memory.mayBeCut = mayBeCut;
    memory.engine = "mapped";
    if (grant.own.fd) memory.file = std::make_shared<const Fd>(std::move(grant.own.fd));
    memory.fileOffset = part.fileOffset;
    return memory;
  }
  void detach(RemoteMemory& memory) override { memory.file.reset(); }
  bool poll() override { return false; }
  Status health() const override { return Status::ok(); }
  void close(Code /*code*/) override {}
  Served serve(AgentWork& work) override {
    work.code = Code::kInternal;  // no entry of this link needs an agent
    return Served::kDone;
  }

 private:
  const RemoteBell peerBell_;
  LinkTraits traits_;
};

// The offer: this context's bell, by descriptors, for either context may end before the other has
// read what it sent.
class PendingSelf final : public PendingLink {
 public:
  explicit PendingSelf(Offer offer) : offer_(std::move(offer)) {}

  Offer takeOffer() override { return std::move(offer_); }
  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    if (!peerOffer.blob.empty() || peerOffer.fds.size() != 2)
      return Status(Code::kCorrupt, "self offer of " + std::to_string(peerOffer.blob.size()) +
                                        " bytes and " + std::to_string(peerOffer.fds.size()) +
                                        " descriptors; expected 0 and 2");
    PEERLANE_ASSIGN(RemoteBell bell,
                    RemoteBell::import(std::move(peerOffer.fds[0]), std::move(peerOffer.fds[1]),
                                       /*isSocket=*/false));
    return std::unique_ptr<Link>(std::make_unique<SelfLink>(std::move(bell)));
  }

 private:
  Offer offer_;
};

class SelfTransport final : public Transport {
 public:
  std::string_view name() const override { return "self"; }
  LinkScope scope() const override { return LinkScope::kProcess; }
  LinkAbilities abilities() const override { return SelfLink::abilities(); }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override {
    if (!facts.sameProcess) return Status(Code::kNotSupported, "the peer is another process");
    Offer offer;
    for (const int fd : {surroundings.bell.page().fd(), surroundings.bell.eventFd()}) {
      PEERLANE_ASSIGN(Fd copy, duplicateFd(fd));
      offer.fds.push_back(std::move(copy));
    }
    return std::unique_ptr<PendingLink>(std::make_unique<PendingSelf>(std::move(offer)));
  }
};

}  // namespace

std::unique_ptr<Transport> makeSelfTransport() {
  return std::make_unique<SelfTransport>();
}

}  // namespace peerlane
