// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/p2p_process.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/os/network_interfaces.h"
#include "peerlane/os/process.h"

namespace peerlane::p2p {
namespace {

// Of p2p-transfer.
constexpr PortRange kPorts{56800, 56900};

constexpr std::chrono::seconds kFreePatience{10};

// A container may have no interface at all, not even the loopback's.
Result<bool> isOnNetwork() {
  PEERLANE_ASSIGN(const auto interfaces, listInterfaces());
  return std::any_of(interfaces.begin(), interfaces.end(), [](const NetworkInterface& interface) {
    return interface.up && !interface.addresses.empty();
  });
}

}  // namespace

uint64_t stagingHalf(const Config& config) {
  constexpr uint64_t kLeast = 64 << 10;
  return std::max(kLeast, config.stagingBytes / 2);
}

P2pProcess& P2pProcess::instance() {
  struct Made {
    uint64_t forks;
    P2pProcess* process;
  };
  static std::atomic<Made*> current{nullptr};
  Made* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->forks != forkGeneration()) {
    // The parent's stays as it is: its locks may be held by threads that are not here.
    auto* const fresh = new Made{forkGeneration(), new P2pProcess};
    if (current.compare_exchange_strong(known, fresh)) return *fresh->process;
    delete fresh->process;
    delete fresh;
  }
  return *known->process;
}

P2pProcess::P2pProcess()
    : token_([] {
        ProcessToken token{};
        PEERLANE_CHECK(fillRandom(std::as_writable_bytes(std::span(token))).isOk());
        return token;
      }()),
      segments_(token_) {}

Result<std::shared_ptr<Context>> P2pProcess::makeContext(Gpu gpu, Use use) {
  ContextOptions options;
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  if (config.ports.last == 0) config.ports = kPorts;
  if (use == Use::kNetwork) config.links = {"tcp"};
  config.stagingBytes = stagingHalf(config);
  options.config = std::move(config);
  if (use == Use::kRoots) {
    PEERLANE_ASSIGN(const bool hasNetwork, isOnNetwork());
    if (hasNetwork)
      options.listen = {"auto"};
    else
      PEERLANE_LOG_WARN(
          "this process sees no network: only processes that share "
          "PEERLANE_SOCKET_DIR, or its network namespace, can connect");
  }
  if (gpu) options.devices = {{DeviceKind::kCuda, *gpu}};
  PEERLANE_ASSIGN(auto made, Context::create(std::move(options)));
  return std::shared_ptr<Context>(std::move(made));
}

Result<std::shared_ptr<Context>> P2pProcess::context(Gpu gpu, Use use) {
  const std::lock_guard lock(contextMutex_);
  if (use == Use::kPlain)
    if (const auto found = contexts_.find({gpu, Use::kRoots}); found != contexts_.end())
      return found->second;
  if (const auto found = contexts_.find({gpu, use}); found != contexts_.end()) return found->second;
  PEERLANE_ASSIGN(auto made, makeContext(gpu, use));
  contexts_.emplace(std::pair(gpu, use), made);
  return made;
}

Result<std::shared_ptr<Context>> P2pProcess::anyContext(Gpu gpu) {
  {
    const std::lock_guard lock(contextMutex_);
    // Host memory is the same to all of them.
    for (const auto& [key, context] : contexts_)
      if (key.first == gpu || !gpu) return context;
  }
  return context(gpu, Use::kPlain);
}

void P2pProcess::unwarm() {
  std::vector<std::shared_ptr<Context>> unused;  // end outside of the lock
  const std::lock_guard lock(contextMutex_);
  for (auto at = contexts_.begin(); at != contexts_.end();) {
    if (at->second.use_count() > 1) {
      ++at;
      continue;
    }
    unused.push_back(std::move(at->second));
    at = contexts_.erase(at);
  }
}

Result<std::string> P2pProcess::addRoot(Gpu gpu) {
  auto root = std::make_shared<Root>();
  root->gpu = gpu;
  PEERLANE_ASSIGN(root->context, context(gpu, Use::kRoots));
  PEERLANE_ASSIGN(root->invitation, root->context->invite());
  std::string ticket = root->invitation.ticket();
  const std::lock_guard lock(rootMutex_);
  roots_.emplace(ticket, std::move(root));
  return ticket;
}

P2pProcess::Whose P2pProcess::takeRoot(const std::string& ticket, std::shared_ptr<Root>& root) {
  const std::lock_guard lock(rootMutex_);
  const auto found = roots_.find(ticket);
  if (found == roots_.end()) return Whose::kOthers;
  // The second one in the process that comes with it is its other side.
  if (std::exchange(found->second->isTaken, true)) return Whose::kTaken;
  root = found->second;
  return Whose::kOwn;
}

void P2pProcess::putBack(const std::string& ticket) {
  const std::lock_guard lock(rootMutex_);
  if (const auto found = roots_.find(ticket); found != roots_.end()) found->second->isTaken = false;
}

bool P2pProcess::dropRoot(const std::string& ticket) {
  std::shared_ptr<Root> gone;  // outlives the lock
  const std::lock_guard lock(rootMutex_);
  if (auto taken = roots_.extract(ticket); !taken.empty()) gone = std::move(taken.mapped());
  return gone != nullptr;
}

bool P2pProcess::cancelRoot(const std::string& ticket) {
  std::shared_ptr<Root> root;
  {
    const std::lock_guard lock(rootMutex_);
    auto taken = roots_.extract(ticket);
    if (taken.empty()) return false;
    root = std::move(taken.mapped());
  }
  root->invitation.cancel();
  return true;
}

P2PComm P2pProcess::addComm(std::shared_ptr<Pairwise> pair) {
  const std::unique_lock lock(commMutex_);
  // Never the same twice: a handle that was destroyed names nobody.
  const auto handle = reinterpret_cast<P2PComm>(uintptr_t{nextComm_++});
  comms_.emplace(handle, std::move(pair));
  return handle;
}

std::shared_ptr<Pairwise> P2pProcess::find(P2PComm comm) const {
  const std::shared_lock lock(commMutex_);
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second;
}

std::shared_ptr<Pairwise> P2pProcess::takeComm(P2PComm comm) {
  const std::unique_lock lock(commMutex_);
  auto taken = comms_.extract(comm);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

std::vector<std::shared_ptr<Pairwise>> P2pProcess::comms() const {
  const std::shared_lock lock(commMutex_);
  std::vector<std::shared_ptr<Pairwise>> all;
  for (const auto& [handle, pair] : comms_) all.push_back(pair);
  return all;
}

void P2pProcess::importSegment(const SegmentName& name) {
  segments_.import(name);
  for (const auto& pair : comms())
    if (pair->other() == name.process) pair->ask(name);
}

bool P2pProcess::unimportSegment(const SegmentName& name) {
  if (!segments_.unimport(name)) return false;
  for (const auto& pair : comms())
    if (pair->other() == name.process) pair->forget(name);
  return true;
}

Result<void*> P2pProcess::allocate(uint64_t bytes, std::optional<int> numaNode) {
  PEERLANE_ASSIGN(auto context, anyContext(std::nullopt));
  MemoryOptions options;
  options.numaNode = numaNode;
  options.access = Access::kLocal;
  PEERLANE_ASSIGN(Region region, context->allocate(bytes, options));
  void* const memory = region.data();
  // So that messages find it. Peers hear of it by those alone: its name travels nowhere.
  auto name =
      segments_.add(context, region.data(), bytes, Access::kRemoteReadWrite, DeviceKind::kHost);
  if (!name.isOk()) {
    (void)context->unregister(region);
    return name.status();
  }
  const std::lock_guard lock(memoryMutex_);
  memory_[memory] = {std::move(context), std::move(region), *name};
  return memory;
}

std::optional<Status> P2pProcess::free(void* memory) {
  Allocated gone;
  {
    const std::lock_guard lock(memoryMutex_);
    auto taken = memory_.extract(memory);
    if (taken.empty()) return std::nullopt;
    gone = std::move(taken.mapped());
  }
  Status status = segments_.remove(gone.name, kFreePatience).value_or(Status::ok());
  if (status.isOk()) status = gone.context->unregister(gone.region, kFreePatience);
  if (status.isOk()) return status;
  const std::lock_guard lock(memoryMutex_);
  memory_.emplace(memory, std::move(gone));  // for the next call
  return status;
}

}  // namespace peerlane::p2p
