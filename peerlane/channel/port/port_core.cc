// SPDX-License-Identifier: Apache-2.0
//
// PortCore: its memory, adding and removing, and its end. port_semaphores.cc has how semaphores of
// two sides meet and part, port_turn.cc has the proxy's turns.
#include "peerlane/channel/port/port_core.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/core/log.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/os/process.h"
#include "peerlane/program/cpu/cpu_queue.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMostResidentBlocks = 64;
// Of streams that have not got there; more than that ring by a callback.
constexpr uint32_t kBells = 256;
constexpr uint32_t kMostIds = 1u << port::kIdBits;

Status checkRoom(const char* what, uint32_t count) {
  if (count >= 1 && count <= kMostIds) return Status::ok();
  return Status(Code::kInvalidArgument, "room for " + std::to_string(count) + " " + what +
                                            "; 1 to " + std::to_string(kMostIds) + " would do");
}

// Nothing says when the last replay of a graph is over, so the bell that a graph rings stays: 16
// bytes for each service.
std::weak_ptr<PortCore>* lend(std::weak_ptr<PortCore> core) {
  static Mutex mutex;
  static auto* const lent = new std::deque<std::weak_ptr<PortCore>>;
  const MutexLock lock(mutex);
  return &lent->emplace_back(std::move(core));
}

// Keeps memory that an agent may still read or write.
void keepForGood(std::shared_ptr<void> thing) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const MutexLock lock(mutex);
  if (thing) kept->push_back(std::move(thing));
}

// The pipes between a queue and its memory are short; only a broken device takes longer.
constexpr std::chrono::seconds kSettleTime{10};
// Between two looks at a queue or resident port that settles; nothing rings for that.
constexpr std::chrono::microseconds kSettleNap{50};
// Where there are cores, the proxy polls for 2 ms after its last work where a thread polls for 50
// us. 128 MiB over NVLink take 0.35 ms, and the kernels of two sides ask in turns: once one side's
// proxy has slept, the other side waits for longer than 50 us, its proxy sleeps too, and both go on
// so. (Measured: 84 to 246 us for an exchange of 16 MiB that takes 67.)
constexpr std::chrono::microseconds kMostSpin{50};
constexpr int kSpinsOfProxy = 40;

std::chrono::nanoseconds spinOfProxy(std::chrono::nanoseconds ofThreads) {
  if (!hasManyCores()) return ofThreads;
  return std::max(ofThreads,
                  kSpinsOfProxy * std::min<std::chrono::nanoseconds>(ofThreads, kMostSpin));
}

}  // namespace

PortCore::~PortCore() = default;

Status PortCore::usable() const {
  if (forkGeneration() == forks_) return Status::ok();
  return Status(
      Code::kNotSupported,
      "this service was made before fork(), and its proxy is the parent's; make one here");
}

Status PortCore::open() {
  PEERLANE_RETURN_IF_ERROR(Fifo::check(options_.fifoSlots));
  PEERLANE_RETURN_IF_ERROR(checkRoom("semaphores", options_.semaphores));
  PEERLANE_RETURN_IF_ERROR(checkRoom("memories", options_.memories));
  PEERLANE_RETURN_IF_ERROR(make());
  Proxy::Pace pace;
  pace.spin = options_.spin ? *options_.spin : spinOfProxy(context_.config().spin);
  pace.longestNap = options_.longestNap;
  PEERLANE_ASSIGN(proxy_, Proxy::create([this] { return turn(); }, pace));
  return Status::ok();
}

Status PortCore::make() {
  const MutexLock lock(mutex_);
  if (options_.device.kind != DeviceKind::kHost) {
    PEERLANE_ASSIGN(executor_, context_.executor(options_.device));
    PEERLANE_ASSIGN(wordsQueue_, executor_->makeQueue());
  } else if (options_.device.index != 0) {
    return Status(Code::kInvalidArgument,
                  options_.device.toString() + "; a service's device is host:0 or a GPU");
  } else {
    wordsQueue_ = std::make_unique<cpu::CpuQueue>(nullptr);
  }
  PEERLANE_RETURN_IF_ERROR(makeMemory());
  return makeResident();
}

Status PortCore::makeMemory() {
  const uint64_t lines = uint64_t{options_.semaphores} * sizeof(port::SemaphoreLine);
  const uint64_t entries = uint64_t{options_.memories} * sizeof(port::MemoryEntry);
  const uint64_t entriesAt = Fifo::kDeviceBytes;
  const uint64_t statesAt = (entriesAt + entries + 63) / 64 * 64;
  const uint64_t residentAt =
      statesAt + uint64_t{options_.semaphores} * sizeof(port::SemaphoreState);
  const uint64_t healthsAt = (Fifo::hostBytes(options_.fifoSlots) + 63) / 64 * 64;
  const MemoryOptions local{.device = options_.device, .access = Access::kLocal};
  const MemoryOptions localHost{.access = Access::kLocal};
  PEERLANE_ASSIGN(devicePrivate_,
                  context_.allocate(residentAt + sizeof(port::ResidentState), local));
  const uint64_t bellsAt =
      healthsAt + (uint64_t{options_.semaphores} + 1) * sizeof(port::SemaphoreHealth);
  PEERLANE_ASSIGN(hostPrivate_, context_.allocate(bellsAt + kBells * sizeof(uint64_t), localHost));
  PEERLANE_ASSIGN(hostLines_, context_.allocate(lines));
  if (executor_) {
    PEERLANE_ASSIGN(deviceLines_, context_.allocate(lines, {.device = options_.device}));
    for (const Region* region : {&hostPrivate_, &hostLines_}) {
      RegionRecord& record = *region->record();
      PEERLANE_RETURN_IF_ERROR(
          record.pin.ensure([&] { return executor_->pin(record.base, record.bytes); }));
    }
  }
  fifo_ = std::make_unique<Fifo>(options_.fifoSlots, hostPrivate_.data(), devicePrivate_.data());
  entries_ = reinterpret_cast<port::MemoryEntry*>(devicePrivate_.data() + entriesAt);
  states_ = reinterpret_cast<port::SemaphoreState*>(devicePrivate_.data() + statesAt);
  healths_ = reinterpret_cast<port::SemaphoreHealth*>(hostPrivate_.data() + healthsAt);
  residentState_ = reinterpret_cast<port::ResidentState*>(devicePrivate_.data() + residentAt);
  residentLeft_ = &healths_[options_.semaphores].done;
  auto* const bells = reinterpret_cast<uint64_t*>(hostPrivate_.data() + bellsAt);
  for (uint32_t i = 0; i < kBells; ++i) freeBells_.push_back(bells + i);
  memories_.resize(options_.memories);
  semaphores_.resize(options_.semaphores);
  for (uint32_t id = options_.memories; id-- > 0;) freeMemories_.push_back(id);
  for (uint32_t id = options_.semaphores; id-- > 0;) freeSemaphores_.push_back(id);
  return Status::ok();
}

Status PortCore::makeResident() {
  const uint32_t blocks = options_.residentBlocks;
  if (blocks == 0) return Status::ok();
  if (!executor_ || blocks > kMostResidentBlocks)
    return Status(Code::kInvalidArgument,
                  "a resident port of " + std::to_string(blocks) + " thread blocks on " +
                      options_.device.toString() + "; GPUs take 1 to " +
                      std::to_string(kMostResidentBlocks) + ", the host none");
  PEERLANE_ASSIGN(resident_, executor_->makeResidentPort(residentState_, residentLeft_, blocks));
  return Status::ok();
}

namespace {

Status stillUnderWay(const std::string& what, Progress::Clock::time_point begin) {
  return Status(Code::kTimeout,
                "waited " + durationInWords(Progress::Clock::now() - begin) + " for " + what);
}

// `leaving`: names the thing that is to leave the service.
std::string beforeItLeaves(const std::string& leaving) {
  return ", as long as which " + leaving + " of the port cannot go";
}

}  // namespace

// Two words of the device's own memory, the second one first: the first says that both are there.
Status PortCore::writeWords(std::byte* words, uint64_t first, uint64_t second) {
  PEERLANE_RETURN_IF_ERROR(wordsQueue_->store({.address = words + sizeof(uint64_t)}, second));
  PEERLANE_RETURN_IF_ERROR(wordsQueue_->store({.address = words}, first));
  return settle(*wordsQueue_, kSettleTime);
}

// Requires: the lock. For queues whose work waits for no peer's request.
Status PortCore::settle(PortQueue& queue, Duration timeout) {
  const auto begin = Clock::now();
  const auto deadline = Progress::deadlineIn(timeout);
  while (!queue.isIdle()) {
    (void)queue.advance();
    if (Clock::now() >= deadline) return stillUnderWay("a queue of the port to be idle", begin);
    cpuRelax();
  }
  return queue.health();
}

// Waits until all requests that were made before this call have reached the queues. Does not wait
// where nothing takes requests: the proxy was stopped, or this is its own thread. Requires: not the
// lock.
Status PortCore::awaitTaken(const std::vector<std::shared_ptr<PortQueueSlot>>& connections,
                            const std::string& leaving, Clock::time_point deadline) {
  uint64_t behindFifo = 0, hostRequests = 0;
  {
    const Entered lock(*this);
    behindFifo = fifo_->position() + options_.fifoSlots;
    hostRequests = hostAsked_;
  }
  const auto begin = Clock::now();
  std::vector<uint64_t> behindBacklog;
  std::atomic<bool> isTaken{false};
  const auto words = [&] {
    return (isTaken.load() ? "requests that were asked for before to get to their queues"
                           : "the proxy to take the requests that were asked for before") +
           beforeItLeaves(leaving);
  };
  const Progress::ListedWait listed(context_.arrivals().progress(), words, begin, deadline);
  while (proxy_->isRunning() && !proxy_->onThread()) {
    {
      const Entered lock(*this);
      if (!isTaken && isTakenUpTo(behindFifo) &&
          hostAsked_ - hostRequests_.size() >= hostRequests) {
        isTaken = true;
        for (const auto& connection : connections)
          behindBacklog.push_back(connection->drained + connection->backlog.size());
      }
      bool isDrained = isTaken;
      for (size_t i = 0; isDrained && i < connections.size(); ++i)
        isDrained = connections[i]->drained >= behindBacklog[i];
      if (isDrained) break;
    }
    if (Clock::now() >= deadline) return stillUnderWay(words(), begin);
    proxy_->wake();
    std::this_thread::sleep_for(kSettleNap);
  }
  return Status::ok();
}

// Waits until the work that the queues and the resident port have so far touches memory no more.
// The proxy serves all callers meanwhile, and may ask for more. Requires: not the lock.
Status PortCore::settleBehind(const std::vector<std::shared_ptr<PortQueueSlot>>& connections,
                              const std::string& leaving, Clock::time_point deadline) {
  std::vector<std::pair<PortQueue*, PortQueue::Mark>> waiting;
  uint64_t launch = 0;  // of the resident port
  const auto begin = Clock::now();
  std::atomic<size_t> busy{connections.size()};
  const auto words = [&] {
    const size_t queues = busy.load();
    return (queues == 0 ? "the resident port to end its requests"
                        : "requests under way in " + std::to_string(queues) +
                              " queues of the port to end") +
           beforeItLeaves(leaving);
  };
  const Progress::ListedWait listed(context_.arrivals().progress(), words, begin, deadline);
  for (bool isFirst = true;; isFirst = false) {
    bool hasLeft = false;
    {
      const Entered lock(*this);
      if (isFirst && resident_) launch = resident_->launches();
      hasLeft = !resident_ || resident_->hasLeft(launch);
      for (const auto& connection : connections) {
        if (!isFirst) break;
        waiting.emplace_back(connection->queue.get(), std::make_shared<std::atomic<bool>>(false));
        connection->queue->mark(waiting.back().second);
      }
      const bool isServed = proxy_->isRunning() && !proxy_->onThread();
      std::erase_if(waiting, [&](const auto& each) {
        if (!isServed) (void)each.first->advance();
        return each.second->load(std::memory_order_acquire) || each.first->isIdle();
      });
    }
    busy.store(waiting.size());
    if (waiting.empty() && hasLeft) return Status::ok();
    if (Clock::now() >= deadline) return stillUnderWay(words(), begin);
    std::this_thread::sleep_for(kSettleNap);
  }
}

Result<MemoryId> PortCore::addMemory(PortMemory memory) {
  const Entered lock(*this);
  if (isClosed_) return Status(Code::kClosed, "the service was closed");
  if (freeMemories_.empty())
    return Status(Code::kUnavailable,
                  "the service has room for " + std::to_string(options_.memories) +
                      " memories (ProxyServiceOptions::memories), and all is taken");
  const MemoryId id = freeMemories_.back();
  PEERLANE_RETURN_IF_ERROR(writeWords(
      reinterpret_cast<std::byte*>(entries_ + id),
      reinterpret_cast<uintptr_t>(memory.inlineAddress(executor_ != nullptr)), memory.bytes));
  freeMemories_.pop_back();
  memories_[id] = std::make_shared<PortMemory>(std::move(memory));
  return id;
}

Result<MemoryId> PortCore::addLocal(const Region& region) {
  if (!region)
    return Status(Code::kInvalidArgument, "an empty Region; take one from registerRegion()");
  RegionRecord& record = *region.record();
  const Device owner = record.memory.device;
  if (!executor_ && owner.kind != DeviceKind::kHost)
    return Status(Code::kNotSupported, "memory of " + owner.toString() +
                                           " in a service of the host; make one for " +
                                           owner.toString());
  if (!record.isStillThere(0, record.bytes))
    return Status(Code::kRevoked, "the memory was freed without unregistering it");
  if (executor_ && owner.kind == DeviceKind::kHost) {
    PEERLANE_RETURN_IF_ERROR(
        record.pin.ensure([&] { return executor_->pin(record.base, record.bytes); }));
  } else if (executor_ && owner != executor_->device()) {
    PEERLANE_RETURN_IF_ERROR(executor_->open(record.memory, record.base));
  }
  if (!record.gate.enter()) return record.whyClosed();
  auto added = addMemory({.local = region,
                          .isOfHost = owner.kind == DeviceKind::kHost,
                          .address = record.base,
                          .mayBeCut = owner.kind == DeviceKind::kHost && record.memory.mayBeCut,
                          .bytes = record.bytes,
                          .access = Access::kRemoteReadWrite});
  if (!added.isOk()) record.gate.leave();
  return added;
}

// Null: by an agent only.
Result<std::byte*> PortCore::reachRemote(const ImportedRegion& imported) const {
  const RemoteMemory& memory = imported.memory;
  if (isCuda(memory.grant.kind)) return executor_ ? memory.on(executor_->device()) : nullptr;
  if (memory.mapped == nullptr || !executor_) return memory.mapped;
  PinSlot& pin = const_cast<ImportedRegion&>(imported).pin;
  PEERLANE_RETURN_IF_ERROR(
      pin.ensure([&] { return executor_->pin(memory.mapped, memory.grant.bytes); }));
  return memory.mapped;
}

Result<MemoryId> PortCore::addRemote(const RemoteRegion& region, Duration timeout) {
  if (!region) return Status(Code::kInvalidArgument, "an empty RemoteRegion");
  PEERLANE_RETURN_IF_ERROR(region.peer()->usable());
  const bool isOfHost = region.reference().device.kind == DeviceKind::kHost;
  PortMemory memory{.peer = region.peer(),
                    .remote = region,
                    .isOfHost = isOfHost,
                    .bytes = region.bytes(),
                    .access = region.access()};
  LocalMemory copying{.ofHost = MemoryKind::kPrivate};
  if (executor_) copying = {.ofDevice = MemoryKind::kCudaPrivate, .onStream = true};
  // Memory that has to be staged is not imported.
  if (isOfHost || region.peer()->links().whyStaged(region.reference(), copying).empty()) {
    PEERLANE_RETURN_IF_ERROR(region.prepare(timeout));
    memory.imported = region.imported();
    if (!memory.imported)
      return Status(Code::kNotSupported, "a port cannot reach the region: " + region.description());
    PEERLANE_ASSIGN(memory.address, reachRemote(*memory.imported));
    memory.mayBeCut = memory.imported->memory.mayBeCut;
    if (!memory.imported->gate.enter()) return memory.imported->whyClosed();
  }
  const auto imported = memory.imported;
  auto added = addMemory(std::move(memory));
  if (!added.isOk() && imported) imported->gate.leave();
  return added;
}

Status PortCore::removeMemory(MemoryId id, Duration timeout) {
  const auto deadline = Progress::deadlineIn(timeout);
  std::vector<std::shared_ptr<PortQueueSlot>> connections;
  std::shared_ptr<PortMemory> memory;
  {
    const Entered lock(*this);
    connections = connections_;
  }
  const std::string name = "memory " + std::to_string(id);
  PEERLANE_RETURN_IF_ERROR(awaitTaken(connections, name, deadline));
  {
    const Entered lock(*this);
    const bool isAgain = leavingMemories_.contains(id);
    if (!isAgain && memoryAt(id) == nullptr)
      return Status(Code::kInvalidArgument,
                    "memory " + std::to_string(id) + " is not one of the service");
    PEERLANE_RETURN_IF_ERROR(writeWords(reinterpret_cast<std::byte*>(entries_ + id), 0, 0));
    if (!isAgain) leavingMemories_[id] = std::exchange(memories_[id], nullptr);
    memory = leavingMemories_[id];
    // Requests made before may name it in any queue.
    connections = connections_;
  }
  Status settled = settleBehind(connections, name, deadline);
  if (settled.code() == Code::kTimeout) return settled;
  {
    const Entered lock(*this);
    const auto leaving = leavingMemories_.find(id);
    // Somebody else has removed it, too, and the id may be another one's.
    if (leaving == leavingMemories_.end() || leaving->second != memory) return Status::ok();
    leavingMemories_.erase(leaving);
    freeMemories_.push_front(id);  // the last to be given out again: a late request may name it
    memory->letGo();
  }
  return Status::ok();
}

std::unique_ptr<PortQueue> PortCore::takeSpareQueue() {
  const Entered lock(*this);
  if (spareQueues_.empty()) return nullptr;
  std::unique_ptr<PortQueue> spare = std::move(spareQueues_.back());
  spareQueues_.pop_back();
  return spare;
}

Result<std::shared_ptr<PortQueueSlot>> PortCore::connect(const Peer& peer) {
  PEERLANE_RETURN_IF_ERROR(peer.status());
  PeerCore& core = *peer.core();
  auto connection = std::make_shared<PortQueueSlot>();
  connection->peer = peer;
  const bool mapsWords = core.link().traits().mapsWords();
  connection->isByDevice = executor_ && mapsWords;
  std::unique_ptr<PortQueue> straight;
  if (connection->isByDevice) {
    straight = takeSpareQueue();
    if (!straight) {
      PEERLANE_ASSIGN(straight, executor_->makeQueue());
    }
    connection->engine = "ce";
  } else {
    connection->mailbox = core.mailboxes().borrow();
    straight = std::make_unique<cpu::CpuQueue>(connection->mailbox, &core.copier());
    connection->engine = mapsWords ? "cpu" : "agent";
  }
  connection->queue = std::make_unique<TransferQueue>(peer, std::move(straight));
  const Entered lock(*this);
  if (isClosed_) return Status(Code::kClosed, "the service was closed");
  connections_.push_back(connection);
  return connection;
}

Result<PortChannelHandle> PortCore::channel(const SemaphoreSlot& semaphore, MemoryId remote,
                                            MemoryId local) {
  const Entered lock(*this);
  const PortMemory* const far = memoryAt(remote);
  const PortMemory* const near = memoryAt(local);
  if (far == nullptr || !far->peer)
    return Status(Code::kInvalidArgument, "memory " + std::to_string(remote) +
                                              " is no peer's; addMemory() of a RemoteRegion (the "
                                              "order is: remote, local)");
  if (near == nullptr || near->peer)
    return Status(Code::kInvalidArgument,
                  "memory " + std::to_string(local) + " is not local; addMemory() of a Region");
  if (far->peer != semaphore.connection->peer.core())
    return Status(Code::kInvalidArgument, "memory " + std::to_string(remote) +
                                              " belongs to another peer than the semaphore");
  for (const MemoryId id : {remote, local}) {
    PortMemory& memory = *memories_[id];
    if (memory.isRevoked()) return revokedMemory(id);
    const auto user = semaphores_[semaphore.number];
    const auto isUser = [&](const auto& known) { return known.lock() == user; };
    if (std::ranges::none_of(memory.users, isUser)) memory.users.push_back(user);
  }
  PortChannelHandle handle;
  handle.semaphore = semaphore.handle;
  handle.fifo = fifo_->handle();
  handle.memories = entries_;
  handle.memoryCount = options_.memories;
  handle.number = semaphore.number;
  handle.remote.memory = remote;
  handle.local.memory = local;
  handle.remoteEntry = {far->inlineAddress(executor_ != nullptr), far->bytes};
  handle.localEntry = {near->inlineAddress(executor_ != nullptr), near->bytes};
  if (resident_) {
    handle.resident.state = residentState_;
    handle.residentBytes = options_.residentBytes;
  }
  std::copy(std::begin(options_.inlineBytes), std::end(options_.inlineBytes), handle.inlineBytes);
  // With one hardware queue the copy engine may come after the very kernel that waits for it, so it
  // is never chosen by size.
  if (hasOneQueue())
    std::fill(std::begin(handle.inlineBytes), std::end(handle.inlineBytes), ~uint64_t{0});
  return handle;
}

Status PortCore::setHandler(uint32_t kind, ProxyService::Handler handler) {
  if (kind >= kMostIds)
    return Status(Code::kInvalidArgument, "request kind " + std::to_string(kind) +
                                              "; kinds are below " + std::to_string(kMostIds));
  const Entered lock(*this);
  if (handler)
    handlers_[kind] = std::make_shared<ProxyService::Handler>(std::move(handler));
  else
    handlers_.erase(kind);
  handlerChanges_.fetch_add(1, std::memory_order_relaxed);
  // Things to which the handler of before refers may go now.
  if (!proxy_->onThread())
    for (const uint64_t before = runs_; isHandling_ && runs_ == before;) hasHandled_.wait(mutex_);
  return Status::ok();
}

// Null: all are on their way.
uint64_t* PortCore::takeBell() {
  const Entered lock(*this);
  if (freeBells_.empty()) return nullptr;
  uint64_t* const word = freeBells_.back();
  freeBells_.pop_back();
  std::atomic_ref<uint64_t>(*word).store(0, std::memory_order_relaxed);
  bells_.push_back({word, Clock::now()});
  return word;
}

Status PortCore::wakeOn(DeviceStream stream) {
  if (!executor_)
    return Status(Code::kInvalidArgument, "wakeOn() is for services of a GPU; call wake()");
  // A callback takes the driver hundreds of microseconds, and the stream's later work waits for it.
  // So the proxy is woken now, and looks for the word that the stream stores. A graph that is
  // captured now rings at each replay.
  if (!executor_->isCapturing(stream)) {
    proxy_->wake();
    if (uint64_t* const word = takeBell(); word != nullptr) {
      // Not under the lock: the driver blocks a caller that finds a stream full, maybe until the
      // proxy has carried something out.
      Status stored = executor_->storeOn(stream, word, 1);
      if (!stored.isOk()) std::atomic_ref<uint64_t>(*word).store(1, std::memory_order_relaxed);
      return stored;
    }
  }
  std::weak_ptr<PortCore>* bell = nullptr;
  {
    const Entered lock(*this);
    if (bell_ == nullptr) bell_ = lend(weak_from_this());
    bell = bell_;
  }
  return executor_->callHost(
      stream,
      [](void* lent) {
        if (const auto core = static_cast<std::weak_ptr<PortCore>*>(lent)->lock())
          core->proxy_->wake();
      },
      bell);
}

Status PortCore::status() const {
  const MutexLock lock(mutex_);
  return failure_;
}

// Requires: its queue is idle. Freeing a device's queue would wait for the device, and every thread
// that needs the driver then would wait, too, the proxy as well: so the queue is kept for the next
// connection.
void PortCore::retire(PortQueueSlot& connection) {
  if (connection.mailbox != nullptr) {
    connection.mailbox->resetCode();
    connection.peer.core()->mailboxes().giveBack(connection.mailbox);
    connection.mailbox = nullptr;
  }
  if (!connection.isByDevice) return;
  const bool isGood = connection.queue->health().isOk();
  (isGood ? spareQueues_ : failedQueues_).push_back(connection.queue->takeStraight());
}

void PortCore::abandon(const std::shared_ptr<PortQueueSlot>& connection) {
  PEERLANE_LOG_WARN(
      "requests of a port to {} are still under way: the memory that they need is kept",
      connection->peer.contextId());
  keepForGood(connection);
  for (const auto& semaphore : semaphores_) keepForGood(semaphore);
  for (const auto& [id, memory] : leavingMemories_) keepForGood(memory);
}

// Ends the service. Requests that kernels make after that are dropped.
void PortCore::close() {
  if (proxy_) proxy_->stop();  // open() may have failed
  std::vector<std::shared_ptr<SemaphoreSlot>> all;
  std::vector<MemoryId> memories;
  {
    const Entered lock(*this);
    if (std::exchange(isClosed_, true)) return;
    if (fifo_) fifo_->close();
    for (const auto& semaphore : semaphores_)
      if (semaphore) all.push_back(semaphore);
    for (MemoryId id = 0; id < memories_.size(); ++id)
      if (memories_[id] || leavingMemories_.contains(id)) memories.push_back(id);
  }
  for (const auto& semaphore : all) (void)removeSemaphore(semaphore, kSettleTime);
  for (const MemoryId id : memories) (void)removeMemory(id, kSettleTime);
  std::vector<std::shared_ptr<PeerCore>> peers;
  {
    const Entered lock(*this);
    const auto deadline = Progress::deadlineIn(kSettleTime);
    while (resident_ && !resident_->hasLeft() && Clock::now() < deadline) cpuRelax();
    resident_.reset();
    for (const auto& connection : connections_) {
      if (settle(*connection->queue, kSettleTime).code() == Code::kTimeout)
        abandon(connection);
      else
        retire(*connection);
    }
    connections_.clear();
    spareQueues_.clear();
    failedQueues_.clear();
    leavingNumbers_.clear();
    peers = std::exchange(peers_, {});
  }
  // Not under the lock: this waits for the progress thread, where callbacks may ask the service.
  for (const Region* region : {&devicePrivate_, &deviceLines_, &hostPrivate_, &hostLines_}) {
    if (!*region) continue;
    // Lines stay until the peers that import them have let go.
    if (!peers.empty() && (region == &deviceLines_ || region == &hostLines_))
      retireRegion(region->record(), peers);
    else
      (void)context_.unregister(*region, kSettleTime);
  }
}

}  // namespace peerlane
