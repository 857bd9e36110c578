// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/p2p_process.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "peerlane/core/config_source.h"
#include "peerlane/core/log.h"
#include "peerlane/core/text.h"
#include "peerlane/os/process.h"
#include "peerlane/p2p/process/root_addresses.h"

namespace peerlane::p2p {
namespace {

// Of p2p-transfer.
constexpr PortRange kPorts{56800, 56900};

constexpr std::chrono::seconds kFreePatience{10};

// What listening in a range of ports failed with, and where the range comes from.
Status withPorts(const Status& status, const Config& config) {
  const std::string range =
      std::to_string(config.ports.first) + "-" + std::to_string(config.ports.last);
  if (status.message().find("no port of the range " + range) == std::string_view::npos)
    return status;
  const auto source = configSource("PEERLANE_PORT_RANGE");
  return status.withContext(
      (source ? source->toText() : "P2P_PORT_RANGE is not set, which stands for " + range) +
      "; accepted: first-last, one port, or 0 for any free one");
}

// GPUs read the file; whoever works on host memory alone would never hear that it is missing.
Status checkTuneFile(const Config& config) {
  if (config.tuneFile.empty() || std::ifstream(config.tuneFile)) return Status::ok();
  return Status(Code::kUnavailable,
                "PEERLANE_TUNE is " + quoted(config.tuneFile) + ", which cannot be read");
}

// The sockets of a context in `directory`: their names hold its own.
std::vector<std::string> socketsOf(const Context& context, const std::string& directory) {
  std::vector<std::string> paths;
  if (directory.empty()) return paths;
  DIR* const open = ::opendir(directory.c_str());
  if (open == nullptr) return paths;
  const std::string id = context.id().substr(0, 8);
  while (const dirent* const entry = ::readdir(open)) {
    const std::string_view name(entry->d_name);
    if (name.starts_with("peerlane") && name.find(id) != std::string_view::npos)
      paths.push_back(directory + "/" + entry->d_name);
  }
  (void)::closedir(open);
  return paths;
}

}  // namespace

uint64_t stagingHalf(const Config& config) {
  constexpr uint64_t kLeast = 64 << 10;
  return std::max(kLeast, config.stagingBytes / 2);
}

struct P2pProcess::Made {
  uint64_t forks;
  pid_t id;
  P2pProcess* process;
};

constinit std::atomic<P2pProcess::Made*> P2pProcess::current{nullptr};

P2pProcess& P2pProcess::instance() {
  Made* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->forks != forkGeneration()) {
    // The parent's stays as it is: its locks may be held by threads that are not here.
    auto* const fresh = new Made{forkGeneration(), ::getpid(),
                                 new P2pProcess(known == nullptr ? nullptr : known->process)};
    if (current.compare_exchange_strong(known, fresh)) return *fresh->process;
    delete fresh->process;
    delete fresh;
  }
  return *known->process;
}

P2pProcess::P2pProcess(const P2pProcess* parent)
    : token_([] {
        ProcessToken token{};
        PEERLANE_CHECK(fillRandom(std::as_writable_bytes(std::span(token))).isOk());
        return token;
      }()),
      segments_(token_) {
  if (parent == nullptr) return;
  nextComm_.store(parent->nextComm_.load());
  streams_.countFrom(parent->streams_);
}

// Contexts live as long as the process, so nobody else would remove them. Not a child of fork(),
// whose parent still listens.
void P2pProcess::removeSockets() {
  const Made* const known = current.load(std::memory_order_acquire);
  if (known == nullptr || known->id != ::getpid()) return;
  const std::lock_guard lock(known->process->socketMutex_);
  for (const std::string& path : known->process->sockets_) (void)::unlink(path.c_str());
}

void P2pProcess::removeSocketsAtExit(const Context& context, const std::string& directory) {
  std::vector<std::string> paths = socketsOf(context, directory);
  if (paths.empty()) return;
  static std::atomic_flag isRegistered;  // also by the parent of a fork: the child has its list
  if (!isRegistered.test_and_set()) (void)std::atexit(removeSockets);
  const std::lock_guard lock(socketMutex_);
  std::move(paths.begin(), paths.end(), std::back_inserter(sockets_));
}

Result<std::shared_ptr<Context>> P2pProcess::makeContext(Gpu gpu, Use use) {
  warnOfIgnoredVariables();
  ContextOptions options;
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  if (!configSource("PEERLANE_PORT_RANGE")) config.ports = kPorts;
  if (use == Use::kNetwork) config.links = {"tcp"};
  config.stagingBytes = stagingHalf(config);
  PEERLANE_RETURN_IF_ERROR(checkTuneFile(config));
  // The other links begin at a Unix socket: without this one nobody is to come over the network.
  if (use == Use::kRoots && config.allowsLink("tcp")) {
    PEERLANE_ASSIGN(options.listen, rootAddresses(config));
  }
  options.config = config;
  if (gpu) options.devices = {{DeviceKind::kCuda, *gpu}};
  auto made = Context::create(std::move(options));
  if (!made.isOk()) return withPorts(made.status(), config);
  removeSocketsAtExit(**made, config.socketDirectory);
  return std::shared_ptr<Context>(std::move(*made));
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
  Peer guest;
  {
    const std::lock_guard lock(rootMutex_);
    auto taken = roots_.extract(ticket);
    if (taken.empty()) return false;
    root = std::move(taken.mapped());
    root->isCancelled = true;
    guest = std::exchange(root->guest, Peer());
  }
  root->invitation.cancel();
  if (guest) guest.close();
  return true;
}

void P2pProcess::setGuest(Root& root, const Peer& guest) {
  {
    const std::lock_guard lock(rootMutex_);
    if (!root.isCancelled) {
      root.guest = guest;
      return;
    }
  }
  guest.close();
}

P2PComm P2pProcess::addComm(std::shared_ptr<PairCommunicator> pair) {
  const std::unique_lock lock(commMutex_);
  // Never the same twice: a handle that was destroyed names nobody.
  const auto handle = reinterpret_cast<P2PComm>(uintptr_t{nextComm_++});
  comms_.emplace(handle, std::move(pair));
  return handle;
}

std::shared_ptr<PairCommunicator> P2pProcess::find(P2PComm comm) const {
  const std::shared_lock lock(commMutex_);
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second;
}

std::shared_ptr<PairCommunicator> P2pProcess::takeComm(P2PComm comm) {
  const std::unique_lock lock(commMutex_);
  auto taken = comms_.extract(comm);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

std::vector<std::shared_ptr<PairCommunicator>> P2pProcess::comms() const {
  const std::shared_lock lock(commMutex_);
  std::vector<std::shared_ptr<PairCommunicator>> all;
  for (const auto& [handle, pair] : comms_) all.push_back(pair);
  return all;
}

Status P2pProcess::importSegment(const SegmentName& name) {
  PEERLANE_RETURN_IF_ERROR(segments_.import(name));
  for (const auto& pair : comms())
    if (pair->other() == name.process) pair->ask(name);
  return Status::ok();
}

bool P2pProcess::unimportSegment(const SegmentName& name) {
  if (!segments_.unimport(name)) return false;
  for (const auto& pair : comms())
    if (pair->other() == name.process) pair->forget(name);
  return true;
}

Result<void*> P2pProcess::allocate(uint64_t bytes, std::optional<int> numaNode) {
  // The system promises more than there is, and the first touch of what is missing kills.
  const uint64_t most = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > most)
    return Status(Code::kOutOfMemory, "size is " + std::to_string(bytes) +
                                          " bytes; this machine has " + std::to_string(most) +
                                          " bytes of memory in all");
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
  Status status;
  if (const auto other = segments_.overlapping(gone.name))
    status = Status(Code::kUnavailable,
                    "the memory " + rangeText(gone.name.address, gone.name.bytes) +
                        " is still registered, as the segment " +
                        rangeText(other->address, other->bytes) + "; call P2PUnregisterMem first");
  if (status.isOk()) status = segments_.remove(gone.name, kFreePatience).value_or(Status::ok());
  if (status.isOk()) status = gone.context->unregister(gone.region, kFreePatience);
  if (status.isOk()) return status;
  const std::lock_guard lock(memoryMutex_);
  memory_.emplace(memory, std::move(gone));  // for the next call
  return status;
}

}  // namespace peerlane::p2p
