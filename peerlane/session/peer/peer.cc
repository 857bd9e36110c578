// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer.h"

#include <algorithm>

#include "peerlane/os/cuda.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
std::string Route::toString() const {
  std::string text = "link " + link + "\n";
  text += "  memory that peers can map: " + sharedEngine + "\n";
  text += "  other memory:              " + privateEngine + "\n";
  if (!deviceEngine.empty())
    text += "  memory of GPUs:            " + deviceEngine + " (link " + deviceLink + ")\n";
  if (!hostCopies.empty()) text += "  copied by this host:       " + hostCopies + "\n";
  text += "  what cannot go straight:   " + staged + "\n";
  text += "  counters written by:       " + wordsBy + "\n";
  text += "  region rights enforced by: " + rightsEnforcedBy;
  if (!readOnlyEnforcedBy.empty() && readOnlyEnforcedBy != rightsEnforcedBy)
    text += " (" + readOnlyEnforcedBy + " of memory that Context::allocate made read-only)";
  text += "\n";
  for (const std::string& device : devices) text += "  " + device + "\n";
  for (const std::string& why : refused) text += "  not taken: " + why + "\n";
  return text;
}

Status RemoteRegion::prepare(std::chrono::nanoseconds timeout) const {
  if (!slot_)
    return Status(Code::kInvalidArgument,
                  "an empty RemoteRegion; take one from Peer::importRegion");
  if (peer_->forked()) return peer_->usable();
  // It cannot be imported, and transfers do without.
  if (!peer_->links().whyStaged(reference_, /*byDevice=*/false).empty()) return peer_->failure();
  peer_->imports().request(reference_, slot_);
  const auto done = [this] {
    const auto state = slot_->state.load(std::memory_order_acquire);
    return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed;
  };
  const auto deadline = Progress::deadlineIn(timeout);
  const auto words = [this] {
    return "region " + std::to_string(reference_.allocation) + " (" +
           std::to_string(reference_.bytes) + " bytes) of " + peer_->name() + " to be imported";
  };
  const auto waitFor = [&](const auto& there) -> Status {
    const auto over = [&] { return there() || peer_->failureCode() != Code::kOk; };
    while (!there()) {
      PEERLANE_RETURN_IF_ERROR(peer_->failure());  // OK for one that is heard again
      PEERLANE_RETURN_IF_ERROR(peer_->progress().waitAsleep(over, deadline, words));
    }
    return Status::ok();
  };
  PEERLANE_RETURN_IF_ERROR(waitFor(done));
  if (slot_->state.load(std::memory_order_acquire) == ImportSlot::State::kFailed)
    return slot_->failure;
  const std::shared_ptr<ImportedRegion>& region = slot_->region;
  const uint64_t all = region->memory.grant.bytes;
  if (peer_->imports().reaches(region, 0, all)) return Status::ok();
  const ChunkMap& chunks = *region->memory.chunks;
  PEERLANE_RETURN_IF_ERROR(
      waitFor([&] { return chunks.complete() || !chunks.failure(0, all).isOk(); }));
  return chunks.complete() ? Status::ok() : chunks.failure(0, all);
}

std::string RemoteRegion::description() const {
  std::string text = engine();
  if (text.empty() && slot_) {
    const std::string why = peer_->links().whyStaged(reference_, /*byDevice=*/false);
    if (!why.empty()) return "staged through host memory, because " + why;
  }
  if (text.empty()) return "not imported yet";
  if (const auto& chunks = slot_->region->memory.chunks)
    text += ", " + std::to_string(chunks->mapped()) + " of " + std::to_string(chunks->count()) +
            " chunks mapped";
  return text;
}

std::string RemoteRegion::rightsEnforcedBy() const {
  if (engine().empty()) return {};
  const RemoteMemory& memory = slot_->region->memory;
  const std::string_view own = memory.rightsEnforcedBy;
  return own.empty() ? peer_->links().of(memory).traits().rightsEnforcedBy : std::string(own);
}

std::string RemoteRegion::engine() const {
  if (!slot_ || slot_->state.load(std::memory_order_acquire) != ImportSlot::State::kReady)
    return {};
  return slot_->region->memory.engine;
}

namespace {

Status emptyPeer() {
  return Status(Code::kInvalidArgument, "an empty Peer; take one from Context::connect or accept");
}

}  // namespace

std::string Peer::contextId() const {
  return core_ ? core_->context().toText() : std::string();
}
std::optional<std::chrono::nanoseconds> Peer::silentFor() const {
  return core_ && !core_->forked() ? core_->silentFor() : std::nullopt;
}

std::string Peer::state() const {
  return core_ ? peerStateName(core_->state()) : "";
}
Status Peer::status() const {
  return core_ ? core_->usable() : emptyPeer();
}
int Peer::processId() const {
  return core_ ? core_->processId() : 0;
}
void Peer::close() const {
  if (core_ && !core_->forked()) core_->close();
}

namespace {

std::vector<std::string> devicesOf(const PeerCore& core) {
  std::vector<std::string> texts;
  for (const auto& executor : core.devices()) texts.push_back(executor->explain());
  return texts;
}

}  // namespace

Route Peer::route() const {
  if (!core_) return {};
  const LinkTraits& traits = core_->link().traits();
  Route route;
  route.link = traits.transport;
  route.sharedEngine =
      traits.wordsBy == "mapped" && traits.mapsRegions ? "mapped" : traits.agentEngine;
  route.privateEngine = traits.agentEngine.empty() ? "mapped" : traits.agentEngine;
  if (const Link* link = core_->links().device(); link != nullptr) {
    route.deviceLink = link->traits().transport;
    route.deviceEngine = kCudaEngine;
    route.devices = devicesOf(*core_);
    for (const std::string& why : link->traits().refused) route.refused.push_back("engine " + why);
  }
  const Config& config = core_->config();
  route.staged = config.strict ? "refused (PEERLANE_STRICT)"
                               : "staged through host memory, at most " +
                                     std::to_string(config.stagingBytes) + " bytes of it";
  if (route.sharedEngine == "mapped" || route.sharedEngine == "cma")
    route.hostCopies = core_->copier().explain();
  route.wordsBy = traits.wordsBy;
  route.rightsEnforcedBy = traits.rightsEnforcedBy;
  route.readOnlyEnforcedBy =
      traits.readOnlyEnforcedBy.empty() ? traits.rightsEnforcedBy : traits.readOnlyEnforcedBy;
  for (const auto& refusal : core_->links().refused())
    route.refused.push_back("link " + refusal.transport + ": " + refusal.reason);
  for (const std::string& why : traits.refused) route.refused.push_back("engine " + why);
  return route;
}

Result<RemoteRegion> Peer::importRegion(std::span<const std::byte> reference) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_ASSIGN(const RegionReference decoded, RegionReference::decode(reference));
  const auto own = core_->context().bytes();
  const auto owner = std::as_bytes(std::span(decoded.owner));
  if (!std::equal(owner.begin(), owner.end(), own.begin()))
    return Status(Code::kInvalidArgument,
                  "the region belongs to another context than this peer (" + contextId() + ")");
  RemoteRegion region;
  region.reference_ = decoded;
  region.peer_ = core_;
  region.slot_ = std::make_shared<ImportSlot>();
  region.slot_->bytes = decoded.bytes;
  region.slot_->inChunks = true;
  return region;
}

namespace {

Status checkChannel(uint32_t channel) {
  if (MessageChannels::isProgram(channel)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "message channel " + std::to_string(channel) + "; need a number below 2^31");
}

}  // namespace

Status Peer::sendMessage(uint32_t channel, std::span<const std::byte> content,
                         std::chrono::nanoseconds timeout) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    Status sent = core_->messages().send(channel, {content.begin(), content.end()});
    if (sent.code() != Code::kTryAgain || timeout.count() <= 0) return sent;
    const auto hasRoom = [&] {
      return core_->messages().channels().hasRoom(channel) || core_->failureCode() != Code::kOk;
    };
    const auto words = [&] {
      return "room at " + core_->name() + ": " + std::string(sent.message());
    };
    PEERLANE_RETURN_IF_ERROR(core_->progress().waitAsleep(hasRoom, deadline, words));
  }
}

Result<std::vector<std::byte>> Peer::receiveMessage(uint32_t channel,
                                                    std::chrono::nanoseconds timeout) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  MessageChannels& messages = core_->messages().channels();
  const auto isOver = [&] {
    const Code code = core_->failureCode();
    return code == Code::kPeerSilent || (code != Code::kOk && core_->messages().ended());
  };
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    // The end is looked at before the queue: it counts only once all that came before it was taken.
    const Status ended = isOver() ? core_->failure() : Status::ok();
    std::vector<std::byte> content;
    if (messages.pop(channel, content)) {
      core_->messages().sendTaken();
      return content;
    }
    PEERLANE_RETURN_IF_ERROR(ended);
    const auto ready = [&] { return messages.has(channel) || isOver(); };
    const auto words = [&] {
      return "a message on channel " + std::to_string(channel) + " of " + core_->name();
    };
    PEERLANE_RETURN_IF_ERROR(core_->progress().wait(ready, deadline, words));
  }
}

Result<int> Peer::messageFd(uint32_t channel) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  PEERLANE_RETURN_IF_ERROR(checkChannel(channel));
  return core_->messages().channels().fd(channel);
}

}  // namespace peerlane
