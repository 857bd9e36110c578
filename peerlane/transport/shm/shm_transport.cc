// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/shm_transport.h"

#include <bit>

#include "peerlane/core/log.h"
#include "peerlane/program/model/bell.h"
#include "peerlane/transport/shm/lending_pipe.h"
#include "peerlane/transport/shm/ring_pipe.h"
#include "peerlane/transport/shm/shm_link.h"
#include "peerlane/transport/shm/shm_offer.h"
#include "peerlane/transport/unix_reach.h"

namespace peerlane {
namespace {

// The descriptors in an offer: the bell page, and from the initiator an end of the pair of sockets
// by which the two wake each other, and the staging ring.
//
// Each pair of peers has a socket pair of its own to knock at, so that no peer can take away the
// knock of another; the page with the count is one for all, and can be mapped for reading only.
class PendingShm final : public PendingLink {
 public:
  PendingShm(PeerFacts facts, const LinkSurroundings& surroundings)
      : facts_(std::move(facts)), around_(surroundings) {}

  Status prepare();
  Offer takeOffer() override;
  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override;

 private:
  Result<std::unique_ptr<CmaAgent>> probeCma(const ShmOffer& peer) const;

  const PeerFacts facts_;
  const LinkSurroundings around_;
  std::shared_ptr<ShmOffer> mine_;  // its nonce stays at one address: the peer reads it there
  std::shared_ptr<SharedSegment> ring_;
  std::vector<Fd> given_;  // for the offer
  Fd knocks_;              // the initiator's end of the pair
  PtracePermission readerLetIn_;
};

Status PendingShm::prepare() {
  mine_ = std::make_shared<ShmOffer>();
  PEERLANE_RETURN_IF_ERROR(fillRandom(mine_->nonce));
  mine_->nonceAddress = std::bit_cast<uint64_t>(mine_->nonce.data());
  if (facts_.initiator) {
    PEERLANE_ASSIGN(ring_, SharedSegment::create(2 * RingPipe::bytesFor(kShmRingBytes),
                                                 {.hugePages = HugePages::kOff,
                                                  .numaNode = std::nullopt,
                                                  .populate = false,
                                                  .name = "peerlane-ring"}));
    mine_->ringBytes = kShmRingBytes;
  }
  // Makes all descriptors now, so that a process that has none left makes no offer instead of half
  // an offer.
  PEERLANE_ASSIGN(Fd bell, duplicateFd(around_.bell.page().fd()));
  given_.push_back(std::move(bell));
  if (facts_.initiator) {
    PEERLANE_ASSIGN(auto sockets, socketPair());
    knocks_ = std::move(sockets.first);
    given_.push_back(std::move(sockets.second));
    PEERLANE_ASSIGN(Fd ring, duplicateFd(ring_->fd()));
    given_.push_back(std::move(ring));
  }
  // Where Yama restricts reading, the process that was let in before keeps its permission: this
  // peer then uses the ring, and its route gives the reason.
  const bool mayRead =
      around_.config.shmEngine == ShmEngine::kAuto || around_.config.shmEngine == ShmEngine::kCma;
  if (!mayRead || facts_.sameProcess) return Status::ok();
  auto letIn = PtracePermission::give(facts_.credentials.pid);
  mine_->letsRead = letIn.isOk();
  if (letIn.isOk())
    readerLetIn_ = std::move(*letIn);
  else
    PEERLANE_LOG_INFO("shm: the peer may not read this process: {}", letIn.status().message());
  return Status::ok();
}

Offer PendingShm::takeOffer() {
  return {mine_->encode(), std::move(given_)};
}

Result<std::unique_ptr<CmaAgent>> PendingShm::probeCma(const ShmOffer& peer) const {
  if (facts_.credentials.pid <= 0)
    return Status(Code::kNotSupported, "the peer's process is not visible from this PID namespace");
  PEERLANE_ASSIGN(Fd pidFd, duplicateFd(facts_.pidFd));
  auto agent = CmaAgent::probe(ProcessHandle::of(std::move(pidFd), facts_.credentials.pid),
                               peer.nonceAddress, peer.nonce, around_.copyTeam);
  // An administrator's process may read without being let in.
  if (!agent.isOk() && !peer.letsRead)
    return agent.status().withContext("process " + std::to_string(facts_.credentials.pid) +
                                      " lets another one read it, and Yama lets in one at a time");
  return agent;
}

Result<std::unique_ptr<Link>> PendingShm::complete(Offer peerOffer) {
  PEERLANE_ASSIGN(const ShmOffer peer, ShmOffer::decode(peerOffer.blob));
  const size_t expected = facts_.initiator ? 1 : 3;
  if (peerOffer.fds.size() != expected)
    return Status(Code::kCorrupt, "shm offer with " + std::to_string(peerOffer.fds.size()) +
                                      " descriptors; expected " + std::to_string(expected));
  ShmLink::Parts parts;
  parts.engine = around_.config.shmEngine;
  parts.strict = around_.config.strict;
  if (!facts_.initiator) {
    knocks_ = std::move(peerOffer.fds[1]);
    PEERLANE_RETURN_IF_ERROR(checkUnixSocket(knocks_.get()).withContext("shm offer"));
  }
  PEERLANE_ASSIGN(parts.peerBell, RemoteBell::import(std::move(peerOffer.fds[0]),
                                                     std::move(knocks_), /*isSocket=*/true));
  parts.readerLetIn = std::move(readerLetIn_);
  const size_t direction = RingPipe::bytesFor(kShmRingBytes);
  if (!facts_.initiator) {
    PEERLANE_ASSIGN(ring_, SharedSegment::import(std::move(peerOffer.fds[2]), 2 * direction, 0,
                                                 /*writable=*/true));
  }
  parts.ring = ring_;
  const std::span<std::byte> first(parts.ring->data(), direction);
  const std::span<std::byte> second(parts.ring->data() + direction, direction);
  parts.line = std::make_unique<KnockLine>(parts.peerBell.descriptor(),
                                           [&loop = around_.loop] { loop.wake(); });
  PEERLANE_ASSIGN(auto ring,
                  RingPipe::create(facts_.initiator ? first : second,
                                   facts_.initiator ? second : first, parts.peerBell.waker()));
  std::unique_ptr<FramePipe> pipe;
  if (around_.peerKnows.lending)
    pipe = std::make_unique<LendingPipe>(std::move(ring), *parts.line);
  else
    pipe = std::move(ring);
  parts.staged = std::make_unique<FrameAgent>(
      "shm ring to process " + std::to_string(facts_.credentials.pid), std::move(pipe),
      around_.regions, around_.workArrived, around_.peerKnows);
  if (parts.engine == ShmEngine::kRing) {
    parts.refused.emplace_back("cma: PEERLANE_SHM_ENGINE=ring");
  } else if (auto cma = probeCma(peer); cma.isOk()) {
    parts.cma = std::move(*cma);
  } else {
    if (parts.engine == ShmEngine::kCma) return cma.status().withContext("PEERLANE_SHM_ENGINE=cma");
    parts.refused.push_back("cma: " + std::string(cma.status().message()));
    PEERLANE_LOG_INFO("shm: private memory takes the staged ring; {}", parts.refused.back());
  }
  auto link = std::make_unique<ShmLink>(std::move(parts));
  PEERLANE_RETURN_IF_ERROR(link->listen(around_.loop, around_.woken));
  // The nonce must stay readable until the peer has probed: it lives as long as the link.
  link->keep(std::move(mine_));
  return std::unique_ptr<Link>(std::move(link));
}

class ShmTransport final : public Transport {
 public:
  std::string_view name() const override { return "shm"; }
  LinkScope scope() const override { return LinkScope::kHost; }
  LinkAbilities abilities() const override {
    LinkAbilities abilities;
    abilities.allow(MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
                    {Ability::kGrants, Ability::kAttaches}, Enforcer::kInitiator);
    return abilities;
  }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override {
    if (!facts.unixSocket) return noUnixSocket(facts.host);
    auto pending = std::make_unique<PendingShm>(facts, surroundings);
    PEERLANE_RETURN_IF_ERROR(pending->prepare());
    return std::unique_ptr<PendingLink>(std::move(pending));
  }
};

}  // namespace

std::unique_ptr<Transport> makeShmTransport() {
  return std::make_unique<ShmTransport>();
}

}  // namespace peerlane
