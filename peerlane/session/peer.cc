// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer.h"

#include <algorithm>
#include <atomic>
#include <deque>

#include "peerlane/os/cuda.h"
#include "peerlane/os/readiness.h"
#include "peerlane/session/peer_core.h"

namespace peerlane {
namespace {

// Messages of the user's channels, kept until somebody takes them.
class MessageQueues final : public Task {
 public:
  explicit MessageQueues(const PeerCore& peer) : peer_(peer) {}
  // A peer that ends, is silent or is heard again brings no message, and changes descriptors.
  Turn turn() override {
    if (!watched_.load(std::memory_order_acquire)) return Turn::kIdle;
    const std::lock_guard lock(mutex_);
    tellAll();
    return Turn::kIdle;
  }
  void push(uint32_t channel, std::vector<std::byte> content) {
    const std::lock_guard lock(mutex_);
    queues_[channel].push_back(std::move(content));
    tellAll();
  }
  bool pop(uint32_t channel, std::vector<std::byte>& content) {
    const std::lock_guard lock(mutex_);
    auto found = queues_.find(channel);
    if (found == queues_.end() || found->second.empty()) return false;
    content = std::move(found->second.front());
    found->second.pop_front();
    tellAll();
    return true;
  }
  Result<int> fd(uint32_t channel) {
    const std::lock_guard lock(mutex_);
    watched_.store(true, std::memory_order_release);
    PEERLANE_ASSIGN(const int fd, readiness_[channel].fd());
    tellAll();
    return fd;
  }
  bool has(uint32_t channel) const {
    const std::lock_guard lock(mutex_);
    auto found = queues_.find(channel);
    return found != queues_.end() && !found->second.empty();
  }
  // True for the first caller: it subscribes.
  bool subscribe(uint32_t channel) {
    const std::lock_guard lock(mutex_);
    return subscribed_.emplace(channel, true).second;
  }

 private:
  // Those that somebody asked a descriptor of.
  void tellAll() {
    const bool ended = peer_.failureCode() != Code::kOk;
    for (auto& [channel, readiness] : readiness_) {
      const auto found = queues_.find(channel);
      readiness.set(ended || (found != queues_.end() && !found->second.empty()));
    }
  }

  const PeerCore& peer_;  // owns this object
  mutable std::mutex mutex_;
  std::map<uint32_t, std::deque<std::vector<std::byte>>> queues_;  // under mutex_, as the next two
  std::map<uint32_t, bool> subscribed_;
  std::map<uint32_t, Readiness> readiness_;
  std::atomic<bool> watched_{false};  // readiness_ has some; release after it, acquire by turns
};

// The queues of a peer, which take the messages of `channel` from now on.
std::shared_ptr<MessageQueues> queuesWith(PeerCore& peer, uint32_t channel) {
  auto queues =
      peer.attachment<MessageQueues>([&] { return std::make_shared<MessageQueues>(peer); });
  if (queues->subscribe(channel)) {
    std::weak_ptr<MessageQueues> weak = queues;
    peer.onUserMessage(
        channel, [weak, channel, &progress = peer.progress()](std::vector<std::byte> content) {
          if (auto alive = weak.lock()) alive->push(channel, std::move(content));
          progress.notifyWaiters();
        });
  }
  return queues;
}

}  // namespace

std::string Route::toString() const {
  std::string text = "link " + link + "\n";
  text += "  memory that peers can map: " + sharedEngine + "\n";
  text += "  other memory:              " + privateEngine + "\n";
  if (!deviceEngine.empty())
    text += "  memory of GPUs:            " + deviceEngine + " (link " + deviceLink + ")\n";
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
  if (!peer_->whyStaged(reference_, /*byDevice=*/false).empty()) return peer_->failure();
  peer_->requestImport(reference_, slot_);
  const auto done = [this] {
    const auto state = slot_->state.load(std::memory_order_acquire);
    return state == ImportSlot::State::kReady || state == ImportSlot::State::kFailed;
  };
  const auto deadline = Progress::deadlineIn(timeout);
  const auto waitFor = [&](const auto& there) -> Status {
    const auto over = [&] { return there() || peer_->failureCode() != Code::kOk; };
    while (!there()) {
      PEERLANE_RETURN_IF_ERROR(peer_->failure());  // OK for one that is heard again
      PEERLANE_RETURN_IF_ERROR(peer_->progress().waitAsleep(over, deadline));
    }
    return Status::ok();
  };
  PEERLANE_RETURN_IF_ERROR(waitFor(done));
  if (slot_->state.load(std::memory_order_acquire) == ImportSlot::State::kFailed)
    return slot_->failure;
  const std::shared_ptr<ImportedRegion>& region = slot_->region;
  const uint64_t all = region->memory.grant.bytes;
  if (peer_->reaches(region, 0, all)) return Status::ok();
  const ChunkMap& chunks = *region->memory.chunks;
  PEERLANE_RETURN_IF_ERROR(
      waitFor([&] { return chunks.complete() || !chunks.failure(0, all).isOk(); }));
  return chunks.complete() ? Status::ok() : chunks.failure(0, all);
}

std::string RemoteRegion::description() const {
  std::string text = engine();
  if (text.empty() && slot_) {
    const std::string why = peer_->whyStaged(reference_, /*byDevice=*/false);
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
  return own.empty() ? peer_->linkOf(memory).traits().rightsEnforcedBy : std::string(own);
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
  return core_->context().toText();
}
std::optional<std::chrono::nanoseconds> Peer::silentFor() const {
  return core_->forked() ? std::nullopt : core_->silentFor();
}

std::string Peer::state() const {
  return peerStateName(core_->state());
}
Status Peer::status() const {
  return core_ ? core_->usable() : emptyPeer();
}
int Peer::processId() const {
  return core_->processId();
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
  const LinkTraits& traits = core_->link().traits();
  Route route;
  route.link = traits.transport;
  route.sharedEngine =
      traits.wordsBy == "mapped" && traits.mapsRegions ? "mapped" : traits.agentEngine;
  route.privateEngine = traits.agentEngine.empty() ? "mapped" : traits.agentEngine;
  if (const Link* link = core_->deviceLink(); link != nullptr) {
    route.deviceLink = link->traits().transport;
    route.deviceEngine = kCudaEngine;
    route.devices = devicesOf(*core_);
    for (const std::string& why : link->traits().refused) route.refused.push_back("engine " + why);
  }
  const Config& config = core_->config();
  route.staged = config.strict ? "refused (PEERLANE_STRICT)"
                               : "staged through host memory, at most " +
                                     std::to_string(config.stagingBytes) + " bytes of it";
  route.wordsBy = traits.wordsBy;
  route.rightsEnforcedBy = traits.rightsEnforcedBy;
  route.readOnlyEnforcedBy =
      traits.readOnlyEnforcedBy.empty() ? traits.rightsEnforcedBy : traits.readOnlyEnforcedBy;
  for (const auto& refusal : core_->refusedTransports())
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

Status Peer::sendMessage(uint32_t channel, std::span<const std::byte> content) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  if (channel >= 0x8000'0000u)
    return Status(Code::kInvalidArgument,
                  "message channel " + std::to_string(channel) + "; need a number below 2^31");
  return core_->sendUserMessage(channel, {content.begin(), content.end()});
}

Result<std::vector<std::byte>> Peer::receiveMessage(uint32_t channel,
                                                    std::chrono::nanoseconds timeout) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  const auto queues = queuesWith(*core_, channel);
  const auto ready = [&] { return queues->has(channel) || core_->failureCode() != Code::kOk; };
  PEERLANE_RETURN_IF_ERROR(core_->progress().wait(ready, Progress::deadlineIn(timeout)));
  std::vector<std::byte> content;
  if (queues->pop(channel, content)) return content;
  PEERLANE_RETURN_IF_ERROR(core_->failure());
  return Status(Code::kTryAgain, "another thread took the message");
}

Result<int> Peer::messageFd(uint32_t channel) const {
  if (!core_) return emptyPeer();
  if (core_->forked()) return core_->usable();
  return queuesWith(*core_, channel)->fd(channel);
}

}  // namespace peerlane
