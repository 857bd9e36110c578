// SPDX-License-Identifier: Apache-2.0
//
// PortCore: how semaphores meet those of peers, on the caller's thread, and how they go.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "peerlane/channel/port/port_core.h"
#include "peerlane/core/mutex.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Result<std::shared_ptr<SemaphoreSlot>> PortCore::addSemaphore(
    const std::shared_ptr<PortQueueSlot>& connection, uint32_t tag, Duration timeout) {
  if (!connection)
    return Status(Code::kInvalidArgument, "an empty PortConnection; take one from connect()");
  const auto deadline = Progress::deadlineIn(timeout);
  PeerCore& peer = *connection->peer.core();
  auto semaphore = std::make_shared<SemaphoreSlot>();
  semaphore->core = weak_from_this();
  semaphore->tag = tag;
  semaphore->connection = connection;
  const auto bootstrap = PortBootstrap::of(peer);
  PEERLANE_ASSIGN(semaphore->serial, bootstrap->begin(tag));
  {
    const Entered lock(*this);
    collectNumbers();
    const bool isOurs =
        std::find(connections_.begin(), connections_.end(), connection) != connections_.end();
    Status refused;
    if (isClosed_)
      refused = Status(Code::kClosed, "the service was closed");
    else if (!isOurs)
      refused = Status(Code::kInvalidArgument, "a connection of another service");
    else if (freeSemaphores_.empty())
      refused = Status(Code::kUnavailable,
                       "the service has room for " + std::to_string(options_.semaphores) +
                           " semaphores (ProxyServiceOptions::semaphores), and all is taken");
    if (!refused.isOk()) {
      bootstrap->end(tag, nullptr);
      return refused;
    }
    semaphore->number = freeSemaphores_.back();
    freeSemaphores_.pop_back();
    if (std::find(peers_.begin(), peers_.end(), connection->peer.core()) == peers_.end())
      peers_.push_back(connection->peer.core());
  }
  const Status met = bootstrapSemaphore(*semaphore, deadline);
  if (!met.isOk()) {
    (void)PortBootstrap::sendNote(peer, {.kind = PortNote::Kind::kGaveUp,
                                         .tag = tag,
                                         .serial = semaphore->serial,
                                         .code = met.code(),
                                         .text = std::string(met.message())});
    forgetSemaphore(semaphore);
    return met;
  }
  {
    const Entered lock(*this);
    semaphores_[semaphore->number] = semaphore;
  }
  bootstrap->onEnded(tag,
                     [weak = std::weak_ptr(semaphore), core = weak_from_this()](const Status& why) {
                       const auto alive = weak.lock();
                       if (const auto owner = core.lock(); alive && owner)
                         owner->end(*alive, why, false);
                     });
  return semaphore;
}

Status PortCore::bootstrapSemaphore(SemaphoreSlot& semaphore, Clock::time_point deadline) {
  PeerCore& peer = *semaphore.connection->peer.core();
  const auto bootstrap = PortBootstrap::of(peer);
  const uint32_t number = semaphore.number;
  const uint64_t lineAt = uint64_t{number} * sizeof(port::SemaphoreLine);
  // A number that was used before begins anew. Nobody signals yet.
  {
    const Entered lock(*this);
    std::byte* const state = reinterpret_cast<std::byte*>(states_ + number);
    PEERLANE_RETURN_IF_ERROR(writeWords(state, 0, 0));
    PEERLANE_RETURN_IF_ERROR(writeWords(state + 16, 0, 0));
    if (executor_) PEERLANE_RETURN_IF_ERROR(writeWords(deviceLines_.data() + lineAt, 0, 0));
    std::memset(hostLines_.data() + lineAt, 0, sizeof(port::SemaphoreLine));
    healths_[number] = {};
  }
  PortNote hello{.kind = PortNote::Kind::kHello, .tag = semaphore.tag, .serial = semaphore.serial};
  hello.hostLine = {.isThere = true, .region = hostLines_.share(), .offset = lineAt};
  if (executor_)
    hello.deviceLine = {.isThere = true, .region = deviceLines_.share(), .offset = lineAt};
  std::optional<PortNote> answer;
  while (!answer) {
    // In each round: the peer may have believed that it had met a use that gave up.
    PEERLANE_RETURN_IF_ERROR(PortBootstrap::sendNote(peer, hello));
    PEERLANE_ASSIGN(const PortNote theirs, bootstrap->awaitHello(peer, semaphore.tag, deadline));
    PortNote ready{
        .kind = PortNote::Kind::kReady, .tag = semaphore.tag, .serial = semaphore.serial};
    ready.answers = theirs.serial;
    if (Status reached = reachLine(semaphore, theirs, ready.usesHostLine, deadline);
        !reached.isOk()) {
      if (bootstrap->isStanding(semaphore.tag, theirs.serial)) return reached;
      continue;  // its service may be gone since; another one may come
    }
    PEERLANE_RETURN_IF_ERROR(bootstrap->answer(peer, ready));
    PEERLANE_ASSIGN(answer, bootstrap->awaitReady(peer, semaphore.tag, deadline));
    if (!answer) leaveLine(semaphore);
  }
  semaphore.isOfHost = !executor_;
  const bool isHostLine = answer->usesHostLine || !executor_;
  std::byte* const inbound = (isHostLine ? hostLines_ : deviceLines_).data() + lineAt;
  semaphore.handle.inbound = reinterpret_cast<port::SemaphoreLine*>(inbound);
  semaphore.handle.state = states_ + number;
  semaphore.handle.health = healths_ + number;
  // A word that a copy engine stores for its own threads lies with them; one that a CPU stores lies
  // in the host's memory.
  const bool byCpu = executor_ && !semaphore.connection->isByDevice;
  auto* const done = byCpu ? &healths_[number].done : &states_[number].done;
  semaphore.handle.done = done;
  semaphore.doneWord = {.address = reinterpret_cast<std::byte*>(done)};
  return Status::ok();
}

// Where this side signals: at the peer's line on its device if that is mapped here, else at the one
// on its host.
Status PortCore::reachLine(SemaphoreSlot& semaphore, const PortNote& hello, bool& usesHostLine,
                           Clock::time_point deadline) {
  const PeerCore& peer = *semaphore.connection->peer.core();
  usesHostLine = !(executor_ && hello.deviceLine.isThere && peer.links().mapsDevices() != nullptr);
  const LinePlace& line = usesHostLine ? hello.hostLine : hello.deviceLine;
  if (!line.isThere) return Status(Code::kCorrupt, "the peer named no line for signals");
  PEERLANE_ASSIGN(semaphore.peerLinesHandle, semaphore.connection->peer.importRegion(line.region));
  const uint64_t bytes = semaphore.peerLinesHandle.bytes();
  if (line.offset % sizeof(port::SemaphoreLine) != 0 || line.offset > bytes ||
      bytes - line.offset < sizeof(port::SemaphoreLine))
    return Status(Code::kCorrupt, "the peer's line for signals is not in the region it named");
  PEERLANE_RETURN_IF_ERROR(semaphore.peerLinesHandle.prepare(deadline - Clock::now()));
  const std::shared_ptr<ImportedRegion> imported = semaphore.peerLinesHandle.imported();
  if (!imported)
    return Status(Code::kNotSupported, "the peer's line for signals is not reached: " +
                                           semaphore.peerLinesHandle.description());
  PEERLANE_ASSIGN(std::byte* const lines, reachRemote(*imported));
  if (!imported->gate.enter())
    return Status(Code::kPeerLost, peer.name() + " takes its line for signals back");
  semaphore.peerLines = imported;
  if (lines == nullptr) {
    semaphore.outbound = {.remote = &semaphore.peerLines->memory,
                          .offset = line.offset + offsetof(port::WordPair, second)};
    return Status::ok();
  }
  auto* const mapped = reinterpret_cast<port::SemaphoreLine*>(lines + line.offset);
  semaphore.outbound = {.address = reinterpret_cast<std::byte*>(&mapped->words.second)};
  // Threads of a GPU have no atomic operations on memory of the host.
  if (!executor_ || !usesHostLine) semaphore.handle.outbound = mapped;
  return Status::ok();
}

// The peer has taken back the hello in which it was named. Nobody has the semaphore's handle yet.
void PortCore::leaveLine(SemaphoreSlot& semaphore) {
  semaphore.peerLines->gate.leave();
  semaphore.peerLines.reset();
  semaphore.outbound = {};
  semaphore.handle.outbound = nullptr;
}

// Requests that were made and not begun must not be taken for those of the number's next semaphore.
void PortCore::dropRequests(const SemaphoreSlot& semaphore) {
  PlacedRequest placed;
  while (fifo_->pop(placed.request)) {
    placed.position = fifo_->position();
    popped_.push_back(placed);
  }
  const auto isOf = [&](const PlacedRequest& each) {
    return (each.request.verbs & port::kCustomVerb) == 0 &&
           each.request.semaphore == semaphore.number;
  };
  for (auto* const requests : {&popped_, &hostRequests_}) std::erase_if(*requests, isOf);
  // A flush may count the requests that are held back, so they stay, and ask for nothing.
  for (PlacedRequest& held : semaphore.connection->backlog)
    if (isOf(held)) held.request.verbs = 0;
}

void PortCore::forgetSemaphore(const std::shared_ptr<SemaphoreSlot>& semaphore) {
  const std::shared_ptr<PeerCore>& peer = semaphore->connection->peer.core();
  const uint32_t number = semaphore->number;
  {
    const Entered lock(*this);
    if (std::exchange(semaphore->isRemoved, true)) return;
    semaphores_[semaphore->number].reset();
    std::erase(dirty_, semaphore);
    dropRequests(*semaphore);
    leavingNumbers_[number] = {peer, semaphore->serial};
  }
  (void)PortBootstrap::sendNote(
      *peer, {.kind = PortNote::Kind::kGone, .tag = semaphore->tag, .serial = semaphore->serial});
  const GoneNumber gone{number, peer.get(), semaphore->serial};
  PortBootstrap::of(*peer)->end(semaphore->tag, [core = weak_from_this(), gone] {
    // Not under the core's lock: a thread that holds it may wait for this thread.
    const auto alive = core.lock();
    if (!alive) return;
    const MutexLock lock(alive->goneMutex_);
    alive->goneNumbers_.push_back(gone);
  });
  if (semaphore->peerLines) semaphore->peerLines->gate.leave();
}

// Those whose peers have let go, or are no more.
void PortCore::collectNumbers() {
  std::vector<GoneNumber> gone;
  {
    const MutexLock lock(goneMutex_);
    gone.swap(goneNumbers_);
  }
  for (const auto& [number, left] : leavingNumbers_)
    if (left.peer->over()) gone.push_back({number, left.peer.get(), left.serial});
  for (const GoneNumber& each : gone) {
    const auto found = leavingNumbers_.find(each.number);
    if (found == leavingNumbers_.end() || found->second.peer.get() != each.peer ||
        found->second.serial != each.serial)
      continue;
    leavingNumbers_.erase(found);
    freeSemaphores_.push_front(each.number);  // the last to be given out again
  }
}

Status PortCore::removeSemaphore(const std::shared_ptr<SemaphoreSlot>& semaphore,
                                 Duration timeout) {
  if (!semaphore)
    return Status(Code::kInvalidArgument, "an empty PortSemaphore; take one from addSemaphore()");
  if (semaphore->core.lock().get() != this)
    return Status(Code::kInvalidArgument, "a semaphore of another service");
  const auto deadline = Progress::deadlineIn(timeout);
  const std::string leaving = "semaphore " + std::to_string(semaphore->tag);
  if (!semaphore->hasEnded.load(std::memory_order_acquire))
    PEERLANE_RETURN_IF_ERROR(awaitTaken({semaphore->connection}, leaving, deadline));
  end(*semaphore, Status(Code::kClosed, "the semaphore was removed"), true);
  // Nothing more of it is asked for.
  PEERLANE_RETURN_IF_ERROR(settleBehind({semaphore->connection}, leaving, deadline));
  forgetSemaphore(semaphore);
  return Status::ok();
}

}  // namespace peerlane
