// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/port/port_channel.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/channel/port/port_core.h"

namespace peerlane {
namespace {

// Of a wait that turns: before that a dump need not show it.
constexpr std::chrono::milliseconds kListedAfter{1};

Status emptySemaphore() {
  return Status(Code::kInvalidArgument,
                "an empty PortSemaphore or PortChannel; take one from a ProxyService");
}

Result<std::shared_ptr<PortCore>> coreOf(const std::shared_ptr<SemaphoreSlot>& slot) {
  if (!slot) return emptySemaphore();
  auto core = slot->core.lock();
  if (!core) return Status(Code::kClosed, "the service is gone");
  PEERLANE_RETURN_IF_ERROR(core->usable());
  return core;
}

}  // namespace

std::string PortConnection::engine() const {
  return slot_ ? slot_->engine : "";
}

PortSemaphoreHandle PortSemaphore::deviceHandle() const {
  return slot_ ? slot_->handle : PortSemaphoreHandle{};
}

Status PortSemaphore::status() const {
  PEERLANE_ASSIGN(const auto core, coreOf(slot_));
  return core->statusOf(*slot_);
}

Status PortSemaphore::signal(uint64_t count) const {
  PEERLANE_ASSIGN(const auto core, coreOf(slot_));
  return core->ask(slot_, {.verbs = port::kSignalVerb, .value = count});
}

Status PortSemaphore::wait(uint64_t count, std::chrono::nanoseconds timeout) const {
  PEERLANE_ASSIGN(const auto core, coreOf(slot_));
  if (!slot_->isOfHost)
    return Status(Code::kNotSupported,
                  "the waits of a service of a GPU are counted in memory of the GPU; wait in a "
                  "kernel, or make a service of the host");
  Progress& progress = slot_->connection->peer.core()->progress();
  const auto words = [&] {
    return std::to_string(count) + " signals of " + slot_->connection->peer.core()->name() +
           " on the semaphore of tag " + std::to_string(slot_->tag) + "; it has sent " +
           std::to_string(slot_->handle.value()) + " in all";
  };
  std::optional<Progress::ListedWait> listed;
  const auto begin = Progress::Clock::now();
  const auto deadline = Progress::deadlineIn(timeout);
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t ended = slot_->hasEnded.load(std::memory_order_acquire) ? 1 : 0;
    const PortOutcome claimed = slot_->handle.claim(count, ended);
    if (claimed == PortOutcome::kOk) return Status::ok();
    if (claimed == PortOutcome::kEnded) return core->statusOf(*slot_);
    if (looks % 64 != 0) {
      cpuRelax();
      continue;
    }
    const auto now = Progress::Clock::now();
    if (now >= deadline) {
      listed.reset();
      return progress.timedOut(words, begin);
    }
    if (!listed && now - begin >= kListedAfter) listed.emplace(progress, words, begin, deadline);
    std::this_thread::yield();
  }
}

PortChannelHandle PortChannel::deviceHandle(PortEngine engine) const {
  PortChannelHandle handle = handle_;
  handle.engine = engine;
  return handle;
}

bool PortChannel::isMapped() const {
  return handle_.remoteEntry.address != nullptr && handle_.localEntry.address != nullptr &&
         handle_.semaphore.outbound != nullptr;
}

std::string PortChannel::explain() const {
  if (!semaphore_) return "no channel";
  const auto core = coreOf(semaphore_.slot_);
  if (isMapped() && core.isOk() && (*core)->hasOneQueue())
    return "mapped: inline by the calling threads, whatever the size, because copies may come "
           "after kernels in the only hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)";
  std::string text = isMapped() ? "mapped: inline by the calling threads up to " +
                                      std::to_string(handle_.inlineBytes[0]) + " (thread), " +
                                      std::to_string(handle_.inlineBytes[1]) + " (warp), " +
                                      std::to_string(handle_.inlineBytes[2]) + " (block) bytes; "
                                : "not mapped for reading and writing, so nothing goes inline; ";
  const std::string& engine = semaphore_.slot_->connection->engine;
  return text + "else by the proxy: " + engine;
}

Status PortChannel::put(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const {
  PEERLANE_ASSIGN(const auto core, coreOf(semaphore_.slot_));
  return core->ask(semaphore_.slot_, {.verbs = port::kPutVerb,
                                      .to = remote_,
                                      .from = local_,
                                      .toOffset = remoteOffset,
                                      .fromOffset = localOffset,
                                      .bytes = bytes});
}

Status PortChannel::get(uint64_t localOffset, uint64_t remoteOffset, uint64_t bytes) const {
  PEERLANE_ASSIGN(const auto core, coreOf(semaphore_.slot_));
  return core->ask(semaphore_.slot_, {.verbs = port::kGetVerb,
                                      .to = local_,
                                      .from = remote_,
                                      .toOffset = localOffset,
                                      .fromOffset = remoteOffset,
                                      .bytes = bytes});
}

Status PortChannel::putWithSignal(uint64_t remoteOffset, uint64_t localOffset,
                                  uint64_t bytes) const {
  PEERLANE_ASSIGN(const auto core, coreOf(semaphore_.slot_));
  return core->ask(semaphore_.slot_, {.verbs = port::kPutVerb | port::kSignalVerb,
                                      .to = remote_,
                                      .from = local_,
                                      .toOffset = remoteOffset,
                                      .fromOffset = localOffset,
                                      .bytes = bytes});
}

Status PortChannel::flush(std::chrono::nanoseconds timeout) const {
  PEERLANE_ASSIGN(const auto core, coreOf(semaphore_.slot_));
  return core->flush(semaphore_.slot_, timeout);
}

Result<std::unique_ptr<ProxyService>> ProxyService::create(Context& context,
                                                           const ProxyServiceOptions& options) {
  auto core = std::make_shared<PortCore>(context, options);
  const Status opened = core->open();
  std::unique_ptr<ProxyService> service(new ProxyService(std::move(core)));
  PEERLANE_RETURN_IF_ERROR(opened);
  return service;
}

ProxyService::~ProxyService() {
  if (core_->usable().isOk())
    core_->close();
  else  // a forked child: the proxy's thread is not here, and locks may be held for ever
    (void)new std::shared_ptr<PortCore>(core_);
}

Status ProxyService::start() {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->proxy().start();
}
void ProxyService::stop() {
  if (core_->usable().isOk()) core_->proxy().stop();
}
void ProxyService::wake() {
  if (core_->usable().isOk()) core_->proxy().wake();
}
Status ProxyService::wakeOn(DeviceStream stream) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->wakeOn(stream);
}
Result<MemoryId> ProxyService::addMemory(const Region& region) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->addLocal(region);
}
Result<MemoryId> ProxyService::addMemory(const RemoteRegion& region, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->addRemote(region, timeout);
}
Status ProxyService::removeMemory(MemoryId memory, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->removeMemory(memory, timeout);
}

Result<PortConnection> ProxyService::connect(const Peer& peer) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  PEERLANE_ASSIGN(auto slot, core_->connect(peer));
  return PortConnection(std::move(slot));
}

Result<PortSemaphore> ProxyService::addSemaphore(const PortConnection& connection, uint32_t tag,
                                                 Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  PEERLANE_ASSIGN(auto slot, core_->addSemaphore(connection.slot_, tag, timeout));
  return PortSemaphore(std::move(slot));
}

Status ProxyService::removeSemaphore(const PortSemaphore& semaphore, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->removeSemaphore(semaphore.slot_, timeout);
}

Result<PortChannel> ProxyService::channel(const PortSemaphore& semaphore, MemoryId remote,
                                          MemoryId local) {
  PEERLANE_ASSIGN(const auto core, coreOf(semaphore.slot_));
  if (core != core_) return Status(Code::kInvalidArgument, "a semaphore of another service");
  PEERLANE_ASSIGN(const PortChannelHandle handle, core_->channel(*semaphore.slot_, remote, local));
  return PortChannel(semaphore, remote, local, handle);
}

Status ProxyService::onRequest(uint32_t kind, Handler handler) {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->setHandler(kind, std::move(handler));
}
Status ProxyService::status() const {
  PEERLANE_RETURN_IF_ERROR(core_->usable());
  return core_->status();
}
uint64_t ProxyService::naps() const {
  return core_->proxy().naps();
}
std::string ProxyService::dump() const {
  if (const Status status = core_->usable(); !status.isOk()) return status.toString() + "\n";
  return core_->dump();
}

}  // namespace peerlane
