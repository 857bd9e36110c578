// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/shm_link.h"

#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

constexpr const char* kMappedOnly =
    "PEERLANE_SHM_ENGINE=mapped, and the region's memory cannot be mapped; use auto, cma or ring";

}  // namespace

ShmLink::ShmLink(Parts parts) : parts_(std::move(parts)) {
  traits_.transport = "shm";
  traits_.agentEngine = parts_.cma ? "cma" : "ring";
  // With the staged ring the owner copies, and so checks the rights; the other engines reach all
  // memory that they can address.
  const Enforcer byAgent = parts_.cma ? Enforcer::kInitiator : Enforcer::kOwner;
  traits_.abilities.allow(
      MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
      {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere}, byAgent);
  // The slab is mapped in any case.
  traits_.abilities.allow(MemoryPlace::kHost, {MemoryExport::kDescriptor}, {Ability::kMapsWords},
                          mapsRegions() ? Enforcer::kInitiator : byAgent);
  if (mapsRegions())
    traits_.abilities.allow(MemoryPlace::kHost, {MemoryExport::kDescriptor},
                            {Ability::kMaps, Ability::kByDevice}, Enforcer::kInitiator);
  traits_.refused = parts_.refused;
  traits_.isFallback = parts_.engine == ShmEngine::kAuto && !parts_.cma;
  if (mapsRegions()) traits_.readOnlyEnforcer = Enforcer::kOwner;
  traits_.waker = parts_.peerBell.waker();
  traits_.signalWaker = parts_.peerBell.signalWaker();
}

Status ShmLink::listen(EventLoop& loop, std::function<void()> woken) {
  const int socket = parts_.peerBell.descriptor();
  PEERLANE_ASSIGN(knocks_, loop.watch(socket, true, false, [this, woken = std::move(woken)] {
    if (!parts_.line->drain()) knocks_.setInterest(false, false);
    if (woken) woken();
  }));
  return Status::ok();
}

ShmLink::~ShmLink() {
  close(Code::kClosed);
}

bool ShmLink::mapsRegions() const {
  return parts_.engine == ShmEngine::kAuto || parts_.engine == ShmEngine::kMapped;
}

// The descriptor travels even where the importer might choose another engine: the importer decides.
Result<LinkPart> ShmLink::grant(const RegionRecord& region) {
  return HostPart::grant(region);
}

Result<RemoteMemory> ShmLink::attachMapped(Grant grant, const HostPart& part) {
  const bool writable = allows(grant.region.access, Access::kRemoteWrite);
  PEERLANE_ASSIGN(std::shared_ptr<SharedSegment> segment,
                  SharedSegment::import(SharedFd::ofFile(std::move(grant.own.fd)),
                                        grant.region.bytes, part.fileOffset, writable));
  RemoteMemory memory;
  if (isSealedAgainstWriters(segment->fd())) memory.enforcer = Enforcer::kOwner;
  memory.grant = std::move(grant.region);
  memory.mapped = segment->data();
  memory.engine = "mapped";
  memory.fileOffset = segment->offset();
  // Keeps the mapping, too.
  memory.file = std::shared_ptr<const Fd>(segment, segment->descriptor().shared().get());
  return memory;
}

Result<RemoteMemory> ShmLink::attach(Grant grant) {
  PEERLANE_ASSIGN(const HostPart part, HostPart::decode(grant.own.blob));
  // The slab, which comes first, is mapped whatever engine the user chose for payloads: `engine`
  // decides for regions, and words need loads and stores.
  const bool shared = grant.region.kind == MemoryKind::kShared && grant.own.fd;
  if (shared && (mapsRegions() || !std::exchange(slabMapped_, true)))
    return attachMapped(std::move(grant), part);
  if (parts_.engine == ShmEngine::kMapped) return Status(Code::kNotSupported, kMappedOnly);
  RemoteMemory memory;
  memory.grant = std::move(grant.region);
  memory.linkKey = part.address;
  if (parts_.cma && parts_.engine != ShmEngine::kRing) {
    memory.engine = "cma";
    return memory;
  }
  if (parts_.strict && parts_.engine == ShmEngine::kAuto && !parts_.refused.empty())
    return Status(Code::kNotSupported, "PEERLANE_STRICT: private memory would be staged, because " +
                                           parts_.refused.front());
  memory.engine = "ring";
  memory.refusesInOrder = true;
  memory.enforcer = Enforcer::kOwner;
  return memory;
}

void ShmLink::detach(RemoteMemory& memory) {
  memory.mapped = nullptr;
  memory.file.reset();
}

Served ShmLink::serve(AgentWork& work) {
  if (const Code closed = closed_.load(std::memory_order_acquire); closed != Code::kOk) {
    work.code.store(closed, std::memory_order_relaxed);
    return Served::kDone;
  }
  const MailboxEntry& entry = *work.entry;
  const bool copies = entry.verb == Verb::kPut || entry.verb == Verb::kGet;
  const bool staged = !copies || entry.pieceCount == 0 ||
                      std::string_view(entry.pieces[0].remote->engine) == "ring";
  return staged ? parts_.staged->serve(work) : serveByCma(work);
}

// The link was made after a test that this process may read the peer. If that permission ends later
// (the peer calls prctl, a security module acts), the ring takes over and begins this entry anew.
Served ShmLink::serveByCma(AgentWork& work) {
  if (!cmaForbidden_.load(std::memory_order_relaxed)) {
    const Served served = parts_.cma->serve(work);
    const bool isForbidden = served == Served::kDone &&
                             work.code.load(std::memory_order_relaxed) == Code::kPermissionDenied;
    if (!isForbidden || parts_.strict || parts_.engine == ShmEngine::kCma) return served;
    if (!cmaForbidden_.exchange(true, std::memory_order_relaxed))
      PEERLANE_LOG_WARN(
          "shm: the peer's memory can no longer be read; private memory takes the ring");
    work.code.store(Code::kOk, std::memory_order_relaxed);
  }
  return parts_.staged->serve(work);
}

void ShmLink::close(Code code) {
  Code open = Code::kOk;
  closed_.compare_exchange_strong(open, code, std::memory_order_release);
  parts_.staged->close(code);
  knocks_ = Watch();
  parts_.readerLetIn = {};
}

}  // namespace peerlane
