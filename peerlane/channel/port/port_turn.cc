// SPDX-License-Identifier: Apache-2.0
//
// PortCore: the work of the proxy's thread, a turn at a time. Requests are taken in the order of
// the FIFO and handed to the queues of their connections; nothing here waits, so no connection
// holds up another. An error ends its semaphore, at both sides, and nothing else.
#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/channel/port/port_core.h"
#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/shared_log_limit.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kRequestsPerTurn = 64;
// More than that under way on one connection, and the FIFO waits for it.
constexpr size_t kMostBacklog = 65536;
constexpr std::chrono::milliseconds kLookInterval{1};
// Of these, one looks at all else: whether a peer is gone, above all.
constexpr uint32_t kLooksPerQuietTurn = 8;
constexpr std::chrono::microseconds kShortestListen{50};

std::string faultText(uint64_t fault) {
  const uint64_t detail = fault & ((uint64_t{1} << port::kFaultShift) - 1);
  switch (static_cast<port::Fault>(fault >> port::kFaultShift)) {
    case port::Fault::kOutOfRange:
      return "a thread named offset " + std::to_string(detail) + ", outside the memory";
    case port::Fault::kNotMapped:
      return "a thread asked for an inline copy, but memory " + std::to_string(detail) +
             " is not mapped for reading and writing; take the engine kAuto or kCe";
    case port::Fault::kTooLarge:
      return "a thread asked for " + std::to_string(detail) +
             " bytes, or an id or offset that no request can name";
    case port::Fault::kMisaligned:
      return "a thread asked for packets at an offset, or of a size, of " + std::to_string(detail) +
             "; packets lie at multiples of 16, and carry multiples of 8 bytes from multiples of 8";
    case port::Fault::kNone: break;
  }
  return "a thread's request was refused";
}

// A kernel that goes wrong, and a peer that leaves, can cause thousands of lines. Of the process,
// because several services are for one program.
SharedLogLimit& lines() {
  static auto* const limit = new SharedLogLimit;
  return *limit;
}
void sayEnded(const SemaphoreSlot& semaphore, const Status& why) {
  if (const auto leftOut = lines().take())
    PEERLANE_LOG_WARN("semaphore {} (tag {}) of a port has ended: {}{}", semaphore.number,
                      semaphore.tag, why.toString(), *leftOut);
}
void sayRefused(const Status& why) {
  if (const auto leftOut = lines().take())
    PEERLANE_LOG_WARN("a port's request was refused: {}{}", why.toString(), *leftOut);
}

}  // namespace

Proxy::Turn PortCore::turn() {
  // A proxy that has nothing to do looks a thousand times a second.
  if (isQuiet_.load(std::memory_order_relaxed) && !fifo_->hasNext() &&
      ++quietLooks_ % kLooksPerQuietTurn != 0)
    return Proxy::Turn::kIdle;
  // Threads that add or remove go first.
  if (entering_.load(std::memory_order_relaxed) != 0) return Proxy::Turn::kMoved;
  const MutexLock lock(mutex_);
  bool moved = false, pending = false, isFull = false;
  for (const auto& connection : connections_)
    isFull = isFull || connection->backlog.size() >= kMostBacklog;
  for (uint32_t taken = 0; taken < kRequestsPerTurn && !isFull;) {
    PlacedRequest placed;
    if (!pop(placed)) break;
    taken += take(placed, kRequestsPerTurn - taken);
    moved = true;
  }
  while (!hostRequests_.empty()) {
    const PlacedRequest placed = hostRequests_.front();
    hostRequests_.pop_front();
    (void)take(placed, 1);
    moved = true;
  }
  for (size_t i = 0; i < connections_.size(); ++i) {
    PortQueueSlot& connection = *connections_[i];
    moved |= drain(connection);
    const auto advanced = connection.queue->advance();
    moved |= advanced == PortQueue::Advance::kMoved;
    pending |= advanced == PortQueue::Advance::kPending || !connection.backlog.empty();
    if (const Status health = connection.queue->health(); !health.isOk())
      endConnection(connection, health);
  }
  moved |= serveResident();
  listen();
  // However much there is to do: a thread that waits for a peer that is gone must hear of that.
  lookAtPeers();
  const bool isMoved = moved || publish();
  const bool isPending = pending || isResidentWanted_;
  isQuiet_.store(!isMoved && !isPending && bells_.empty() && dirty_.empty(),
                 std::memory_order_relaxed);
  if (isMoved) return Proxy::Turn::kMoved;
  return isPending ? Proxy::Turn::kPending : Proxy::Turn::kIdle;
}

bool PortCore::pop(PlacedRequest& placed) {
  if (!popped_.empty()) {
    placed = popped_.front();
    popped_.pop_front();
    return true;
  }
  if (!fifo_->pop(placed.request)) return false;
  placed.position = fifo_->position();
  return true;
}

// Returns how many: a run of the user's goes to its handler at once, `most` of them.
uint32_t PortCore::take(const PlacedRequest& placed, uint32_t most) {
  const port::PortRequest& request = placed.request;
  if ((request.verbs & port::kCustomVerb) != 0) return handle(placed, most);
  if ((request.verbs & port::kWakeVerb) != 0) isResidentWanted_ = true;
  const auto semaphore =
      request.semaphore < semaphores_.size() ? semaphores_[request.semaphore] : nullptr;
  if (!semaphore) {
    fail(Status(
        Code::kInvalidArgument,
        "a request names semaphore " + std::to_string(request.semaphore) + ", which is not there"));
    return 1;
  }
  PortQueueSlot& connection = *semaphore->connection;
  if (!connection.backlog.empty() || !connection.queue->hasRoom())
    connection.backlog.push_back(placed);
  else
    carryOut(*semaphore, placed);
  return 1;
}

// With the requests of the same kind that follow directly.
uint32_t PortCore::handle(const PlacedRequest& first, uint32_t most) {
  const uint32_t kind = first.request.semaphore;
  const auto found = handlers_.find(kind);
  if (found == handlers_.end()) {
    fail(Status(Code::kInvalidArgument, "a request of kind " + std::to_string(kind) +
                                            ", which has no handler (ProxyService::onRequest)"));
    return 1;
  }
  const auto handler = found->second;
  run_.assign(1, first);
  for (PlacedRequest next; run_.size() < most && pop(next);) {
    if ((next.request.verbs & port::kCustomVerb) == 0 || next.request.semaphore != kind) {
      popped_.push_front(next);
      break;
    }
    run_.push_back(next);
  }
  isHandling_ = true;
  const uint64_t changes = handlerChanges_.load(std::memory_order_relaxed);
  // It may add and remove, also itself: then the rest is for another one, or nobody.
  mutex_.unlock();
  Status failed;
  auto next = run_.begin();
  do {
    const Status handled = (*handler)(next->request);
    if (!handled.isOk() && failed.isOk()) failed = handled;
  } while (++next != run_.end() && handlerChanges_.load(std::memory_order_relaxed) == changes);
  mutex_.lock();
  popped_.insert(popped_.begin(), next, run_.end());
  const auto handled = static_cast<uint32_t>(next - run_.begin());
  isHandling_ = false;
  ++runs_;
  hasHandled_.notifyAll();
  if (!failed.isOk()) fail(failed.withContext("request of kind " + std::to_string(kind)));
  return handled;
}

// The proxy looks for a stream that is on its way after a thousandth of the time that the stream
// has taken so far: soon for those that are about to get there, and seldom for the others.
void PortCore::listen() {
  if (bells_.empty()) return;
  const auto now = Clock::now();
  Duration most = options_.longestNap;
  const auto rang = std::erase_if(bells_, [&](const Bell& bell) PEERLANE_REQUIRES(mutex_) {
    if (std::atomic_ref<uint64_t>(*bell.word).load(std::memory_order_acquire) == 0) {
      most = std::min(most, std::max<Duration>((now - bell.since) / 1000, kShortestListen));
      return false;
    }
    freeBells_.push_back(bell.word);
    return true;
  });
  if (rang != 0) proxy_->wake();
  proxy_->napAtMost(most);
}

bool PortCore::drain(PortQueueSlot& connection) {
  bool moved = false;
  while (!connection.backlog.empty() && connection.queue->hasRoom()) {
    const PlacedRequest placed = connection.backlog.front();
    connection.backlog.pop_front();
    ++connection.drained;
    // Its semaphore may have been removed meanwhile, and the number be another one's.
    const auto semaphore = semaphores_[placed.request.semaphore];
    if (semaphore && placed.request.verbs != 0) carryOut(*semaphore, placed);
    moved = true;
  }
  return moved;
}

void PortCore::carryOut(SemaphoreSlot& semaphore, const PlacedRequest& placed) {
  const port::PortRequest& request = placed.request;
  PortQueue& queue = *semaphore.connection->queue;
  if (placed.position == 0)
    ++semaphore.hostCarried;
  else
    semaphore.lastPosition = placed.position;
  if (semaphore.hasEnded.load(std::memory_order_acquire)) return;
  Status status;
  if ((request.verbs & (port::kPutVerb | port::kGetVerb)) != 0) status = move(semaphore, request);
  if (status.isOk() && (request.verbs & port::kSignalVerb) != 0) {
    semaphore.stored += request.value;
    status = queue.store(semaphore.outbound, semaphore.stored);
  }
  if (!status.isOk()) return end(semaphore, status, true);
  if (placed.position == 0) return;
  if ((request.verbs & port::kFlushVerb) != 0) {
    semaphore.published = placed.position;
    const Status published = queue.store(semaphore.doneWord, placed.position);
    if (!published.isOk()) return end(semaphore, published, true);
  } else if (!std::exchange(semaphore.isDirty, true)) {
    dirty_.push_back(semaphores_[semaphore.number]);
  }
}

Result<const PortMemory*> PortCore::memoryFor(const SemaphoreSlot& semaphore, uint32_t id,
                                              uint64_t offset, uint64_t bytes,
                                              std::optional<Access> remoteNeeds) const {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, "memory " + std::to_string(id) + " " + why);
  };
  const PortMemory* const memory = memoryAt(id);
  if (memory == nullptr) return refuse("is not there");
  if (memory->isRevoked()) return revokedMemory(id);
  if ((memory->peer != nullptr) != remoteNeeds.has_value())
    return refuse(remoteNeeds ? "is local; the peer's is needed here"
                              : "is the peer's; local memory is needed here");
  if (remoteNeeds && memory->peer != semaphore.connection->peer.core())
    return refuse("belongs to another peer than the semaphore");
  if (remoteNeeds && !allows(memory->access, *remoteNeeds))
    return Status(Code::kPermissionDenied, "memory " + std::to_string(id) + " grants " +
                                               accessName(memory->access) + "; this needs " +
                                               accessName(*remoteNeeds));
  if (offset > memory->bytes || bytes > memory->bytes - offset)
    return refuse("has " + std::to_string(memory->bytes) + " bytes; " + std::to_string(bytes) +
                  " from " + std::to_string(offset) + " on are not in it");
  return memory;
}

Status PortCore::move(SemaphoreSlot& semaphore, const port::PortRequest& request) {
  const bool isPut = (request.verbs & port::kPutVerb) != 0;
  const auto needs = [](bool isRemote, Access access) {
    return isRemote ? std::optional(access) : std::nullopt;
  };
  PEERLANE_ASSIGN(const PortMemory* const to,
                  memoryFor(semaphore, request.to, request.toOffset, request.bytes,
                            needs(isPut, Access::kRemoteWrite)));
  PEERLANE_ASSIGN(const PortMemory* const from,
                  memoryFor(semaphore, request.from, request.fromOffset, request.bytes,
                            needs(!isPut, Access::kRemoteRead)));
  if (request.bytes == 0) return Status::ok();
  const PortQueueSlot& connection = *semaphore.connection;
  // The copy engine needs addresses; for memory of the host that is not mapped the CPU has an
  // agent. The CPU makes no plain copy of memory that may be cut: a transfer moves it.
  const auto isReached = [&](const PortMemory& memory) {
    return connection.isByDevice ? memory.address != nullptr : memory.isOfHost && !memory.mayBeCut;
  };
  const auto place = [](const PortMemory& memory, uint64_t offset) {
    if (memory.address != nullptr) return PortAddress{.address = memory.address + offset};
    return PortAddress{.remote = &memory.imported->memory, .offset = offset};
  };
  if (isReached(*to) && isReached(*from))
    return connection.queue->copy(place(*to, request.toOffset), place(*from, request.fromOffset),
                                  request.bytes);
  const PortMemory& near = isPut ? *from : *to;
  const PortMemory& far = isPut ? *to : *from;
  const Block block{&near.local, isPut ? request.fromOffset : request.toOffset, &far.remote,
                    isPut ? request.toOffset : request.fromOffset, request.bytes};
  return connection.queue->transfer(isPut, block);
}

// Nobody waits for these words; threads of the device that find them go inline again.
bool PortCore::publish() {
  if (dirty_.empty()) return false;
  bool moved = false;
  for (auto& semaphore : std::exchange(dirty_, {})) {
    PortQueue& queue = *semaphore->connection->queue;
    if (!queue.hasRoom()) {
      dirty_.push_back(std::move(semaphore));
      continue;
    }
    semaphore->isDirty = false;
    if (semaphore->hasEnded.load(std::memory_order_acquire) ||
        semaphore->published >= semaphore->lastPosition)
      continue;
    semaphore->published = semaphore->lastPosition;
    (void)queue.store(semaphore->doneWord, semaphore->published);
    moved = true;
  }
  return moved;
}

// A wish that came while a launch was about to leave is kept for the next one.
bool PortCore::serveResident() {
  if (!isResidentWanted_ || !resident_ || !resident_->hasLeft()) return false;
  isResidentWanted_ = false;
  if (const Status launched = resident_->launch(); !launched.isOk()) fail(launched);
  return true;
}

void PortCore::lookAtPeers() {
  const auto now = Clock::now();
  if (now - lookedAtPeers_ < kLookInterval) return;
  lookedAtPeers_ = now;
  for (const auto& connection : connections_)
    if (const Code code = connection->peer.core()->failureCode(); code != Code::kOk)
      endConnection(*connection, connection->peer.status());
  dropConnections();
  lookAtMemories();
}

// Those that neither a handle nor a semaphore holds.
void PortCore::dropConnections() {
  std::erase_if(connections_,
                [this](const std::shared_ptr<PortQueueSlot>& connection) PEERLANE_REQUIRES(mutex_) {
                  const bool isHeld = connection.use_count() > 1;
                  if (isHeld || !connection->backlog.empty() || !connection->queue->isIdle())
                    return false;
                  retire(*connection);
                  return true;
                });
}

void PortCore::endConnection(const PortQueueSlot& connection, const Status& why) {
  for (const auto& semaphore : semaphores_)
    if (semaphore && semaphore->connection.get() == &connection) end(*semaphore, why, true);
}

void PortCore::end(SemaphoreSlot& semaphore, const Status& why, bool tellPeer) {
  {
    const MutexLock lock(semaphore.statusMutex);
    if (!semaphore.ended.isOk()) return;
    semaphore.ended = why;
    semaphore.hasEnded.store(true, std::memory_order_release);
    // Under the mutex: the service's end ends all semaphores before that memory goes.
    if (semaphore.handle.health != nullptr) {
      std::atomic_ref<uint64_t>(semaphore.handle.health->ended)
          .store(static_cast<uint64_t>(why.code()), std::memory_order_release);
      if (why.code() != Code::kClosed)
        semaphore.connection->peer.core()->metrics().poisonings().add();
    }
  }
  if (why.code() != Code::kClosed) sayEnded(semaphore, why);
  if (tellPeer)
    (void)PortBootstrap::sendNote(*semaphore.connection->peer.core(),
                                  {.kind = PortNote::Kind::kEnded,
                                   .tag = semaphore.tag,
                                   .serial = semaphore.serial,
                                   .code = why.code(),
                                   .text = std::string(why.message())});
}

void PortCore::fail(const Status& why) {
  sayRefused(why);
  if (failure_.isOk()) failure_ = why;
}

Status PortCore::endOf(SemaphoreSlot& semaphore) {
  // A proxy that was not started tells nobody.
  const PeerCore& peer = *semaphore.connection->peer.core();
  if (const Code code = peer.failureCode(); code != Code::kOk && !proxy_->isRunning())
    end(semaphore, semaphore.connection->peer.status(), true);
  const MutexLock lock(semaphore.statusMutex);
  return semaphore.ended;
}

Status PortCore::statusOf(SemaphoreSlot& semaphore) {
  PEERLANE_RETURN_IF_ERROR(endOf(semaphore));
  const uint64_t fault = port::loadRelaxed(&semaphore.handle.health->fault);
  return fault == 0 ? Status::ok() : Status(Code::kInvalidArgument, faultText(fault));
}

Status PortCore::ask(const std::shared_ptr<SemaphoreSlot>& semaphore, port::PortRequest request) {
  PEERLANE_RETURN_IF_ERROR(endOf(*semaphore));
  request.semaphore = semaphore->number;
  if (!port::isEncodable(request))
    return Status(Code::kInvalidArgument, "a size, an offset or a count that is too large");
  {
    const Entered lock(*this);
    if (isClosed_) return Status(Code::kClosed, "the service was closed");
    ++semaphore->hostRequests;
    ++hostAsked_;
    hostRequests_.push_back({.request = request});
  }
  proxy_->wake();
  return Status::ok();
}

// Requests that others make meanwhile do not hold it up: it passes each station once, in their
// order.
Status PortCore::flush(const std::shared_ptr<SemaphoreSlot>& semaphore, Duration timeout) {
  const auto begin = Clock::now();
  const auto deadline = Progress::deadlineIn(timeout);
  PortQueueSlot& connection = *semaphore->connection;
  const std::shared_ptr<PeerCore>& peer = connection.peer.core();
  std::atomic<const char*> station{"the proxy to take them"};
  const auto words = [&] {
    return "the requests of the semaphore of tag " + std::to_string(semaphore->tag) + " to " +
           peer->name() + " to be carried out; next is " + station.load() +
           (proxy_->isRunning() ? "" : ", which is not running (Proxy::start)");
  };
  std::optional<Progress::ListedWait> listed;
  uint64_t behindFifo = 0, hostRequests = 0, behindBacklog = 0, launch = 0;
  {
    const Entered lock(*this);
    // Requests that were pushed before this call are in the ring's slots.
    behindFifo = fifo_->position() + options_.fifoSlots;
    if (resident_) launch = resident_->launches();
    hostRequests = semaphore->hostRequests;
  }
  PortQueue::Mark passed;
  for (bool isTaken = false;;) {
    PEERLANE_RETURN_IF_ERROR(endOf(*semaphore));
    {
      const Entered lock(*this);
      // The resident port may have more, and requests that it refused come by the FIFO.
      const bool hasLeft = !resident_ || resident_->hasLeft(launch);
      if (!isTaken && semaphore->hostCarried >= hostRequests && isTakenUpTo(behindFifo)) {
        isTaken = true;
        station = "the connection's queue to get to them";
        behindBacklog = connection.drained + connection.backlog.size();
      }
      if (isTaken && !passed && connection.drained >= behindBacklog) {
        passed = std::make_shared<std::atomic<bool>>(false);
        station = "the end of the queue's requests";
        connection.queue->mark(passed);
      }
      if (hasLeft && passed && (passed->load() || connection.queue->isIdle())) {
        PEERLANE_RETURN_IF_ERROR(connection.queue->health());
        return endOf(*semaphore);
      }
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      listed.reset();
      return peer->progress().timedOut(words, begin);
    }
    if (!listed) listed.emplace(peer->progress(), words, begin, deadline);
    proxy_->wake();
    std::this_thread::yield();
  }
}

std::string PortCore::dump() {
  const Entered lock(*this);
  std::string text = "port of " + options_.device.toString() + ", FIFO at " +
                     std::to_string(fifo_->position()) + ", " +
                     (proxy_->isRunning() ? "running" : "stopped") + ", " +
                     std::to_string(connections_.size()) + " connections, " +
                     std::to_string(options_.memories - freeMemories_.size()) + " memories\n";
  for (const auto& semaphore : semaphores_) {
    if (!semaphore) continue;
    text += "  semaphore " + std::to_string(semaphore->number) + " (tag " +
            std::to_string(semaphore->tag) + ") to " + semaphore->connection->peer.contextId() +
            " by " + semaphore->connection->engine + ": signalled " +
            std::to_string(semaphore->stored) + " by the proxy, " +
            std::to_string(semaphore->connection->backlog.size()) + " requests held back, " +
            statusOf(*semaphore).toString() + "\n";
  }
  return text;
}

}  // namespace peerlane
