// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_bootstrap.h"

#include <string>
#include <utility>

#include "peerlane/session/peer/peer_core.h"

namespace peerlane::p2p {
namespace {

const char* kindName(uint8_t kind) {
  switch (kind) {
    case P2P_RECEIVER: return "P2P_RECEIVER";
    case P2P_SENDER: return "P2P_SENDER";
    case P2P_BIDIRECTIONAL: return "P2P_BIDIRECTIONAL";
    default: return "a kind of a later version";
  }
}

const char* linkName(uint8_t link) {
  switch (link) {
    case P2P_LINK_HCCS: return "P2P_LINK_HCCS";
    case P2P_LINK_ROCE: return "P2P_LINK_ROCE";
    case P2P_LINK_AUTO: return "P2P_LINK_AUTO";
    default: return "a link of a later version";
  }
}

bool goTogether(uint8_t one, uint8_t other) {
  if (one == P2P_BIDIRECTIONAL) return other == P2P_BIDIRECTIONAL;
  return (one == P2P_SENDER && other == P2P_RECEIVER) ||
         (one == P2P_RECEIVER && other == P2P_SENDER);
}

}  // namespace

PairBootstrap::PairBootstrap(Peer peer, const PairOptions& options, const PairNoteChannel& notes)
    : peer_(std::move(peer)), options_(options), notes_(notes) {}

Result<PairNote> PairBootstrap::handshake(const ProcessToken& process,
                                          Progress::Clock::time_point deadline) {
  PairNote hello;
  hello.kind = static_cast<uint8_t>(options_.kind);
  hello.link = static_cast<uint8_t>(options_.link);
  hello.wantsMessages = options_.wantsMessages;
  hello.process = process;
  const Status sent = notes_.send(hello);
  PEERLANE_ASSIGN(PairNote other, awaitHello(sent, deadline));
  PEERLANE_RETURN_IF_ERROR(checkOther(other));
  PEERLANE_RETURN_IF_ERROR(checkLink());
  return other;
}

Result<PairNote> PairBootstrap::awaitHello(const Status& sent,
                                           Progress::Clock::time_point deadline) {
  PeerCore& core = *peer_.core();
  const auto come = [&] {
    return hasHello_.load(std::memory_order_acquire) || !core.usable().isOk();
  };
  const auto words = [&] { return core.name() + " to say which kind of communicator it wants"; };
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(core.progress().waitAsleep(come, deadline, words));
    // The other side may have found first that the two do not go together, and left. Its hello came
    // before its goodbye, and the progress thread may still be about to hand it over.
    (void)core.progress().call([] {});
    {
      const MutexLock lock(mutex_);
      if (hello_) return *hello_;
    }
    PEERLANE_RETURN_IF_ERROR(sent);
    PEERLANE_RETURN_IF_ERROR(core.usable());
    // The peer was silent and is heard again: its hello may still come.
  }
}

Status PairBootstrap::conclude(Status error) const {
  if (error.code() == Code::kTimeout) {
    PairNote note;
    note.type = PairNote::Type::kGaveUp;
    (void)notes_.send(note);
  }
  if (error.code() == Code::kPeerLost && otherGaveUp_.load(std::memory_order_acquire))
    return Status(Code::kTryAgain, "the other side has given up waiting");
  return error;
}

void PairBootstrap::onHello(Result<PairNote> hello) {
  {
    const MutexLock lock(mutex_);
    if (hello_) return;
    hello_ = std::move(hello);
    hasHello_.store(true, std::memory_order_release);
  }
  peer_.core()->progress().notifyWaiters();
}

Status PairBootstrap::checkOther(const PairNote& other) const {
  const auto own = static_cast<uint8_t>(options_.kind);
  if (!goTogether(own, other.kind))
    return Status(Code::kInvalidArgument,
                  std::string("this side is ") + kindName(own) + ", the other side " +
                      kindName(other.kind) +
                      "; a P2P_SENDER meets a P2P_RECEIVER, P2P_BIDIRECTIONAL its like");
  const auto link = static_cast<uint8_t>(options_.link);
  if (link != other.link && link != P2P_LINK_AUTO && other.link != P2P_LINK_AUTO)
    return Status(Code::kInvalidArgument, std::string("this side asks for ") + linkName(link) +
                                              ", the other side for " + linkName(other.link));
  return Status::ok();
}

Status PairBootstrap::checkLink() const {
  const PeerCore& core = *peer_.core();
  const LinkTraits& traits = core.link().traits();
  const bool mapsDevices = core.links().mapsDevices() != nullptr;
  const bool isNetwork = traits.scope == LinkScope::kNetwork && !mapsDevices;
  const bool isMapped = mapsDevices || (!options_.gpu.has_value() &&
                                        traits.abilities.can(MemoryKind::kShared, Ability::kMaps));
  std::string lacks;
  if (options_.link == P2P_LINK_HCCS && !isMapped) lacks = "maps no memory of the other side";
  if (options_.link == P2P_LINK_ROCE && !isNetwork)
    lacks = "is not the network; name P2P_LINK_ROCE at both sides";
  if (lacks.empty()) return Status::ok();
  std::string why;
  for (const std::string& refused : peer_.route().refused) why += "; " + refused;
  return Status(Code::kNotSupported, std::string(linkName(static_cast<uint8_t>(options_.link))) +
                                         " was asked for, and the link that works here (" +
                                         traits.transport + ") " + lacks + why);
}

}  // namespace peerlane::p2p
