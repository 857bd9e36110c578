// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_engine.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>

#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

constexpr int kMostAnswers = 256, kMostRequests = 128;  // of a lane in a turn
// Even when nothing is expected: a peer that died wakes nobody.
constexpr uint64_t kLongestSleepNs = 50'000'000, kSleepWithWorkNs = 2'000'000;

uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Engine::Engine(Context& context)
    : context_(context),
      portChanges_(context.device.record().portChanges),
      gidChanges_(context.device.record().gidChanges),
      pkeyChanges_(context.device.record().pkeyChanges) {
  // Signals are the program's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Engine::~Engine() {
  isStopping_ = true;
  context_.wakeEngine();
  thread_.join();
}

void Engine::run() {
  uint64_t busyAt = nanoseconds();
  while (!isStopping_) {
    const uint64_t now = nanoseconds();
    bool did = false, hasWork = false;
    uint64_t next = UINT64_MAX;
    {
      const MutexLock lock(context_.mutex_);
      did = turn(now);
      hasWork = hasWork_;
      next = nextTime_;
    }
    if (did) busyAt = now;
    if (context_.isAwaited() || (!did && now - busyAt < context_.settings.spinNs)) {
      std::this_thread::yield();
    } else if (!did) {
      sleep(next, hasWork);
    }
  }
}

bool Engine::turn(uint64_t now) {
  noticeDevice();
  for (QueuePair* rung = context_.rung_.exchange(nullptr); rung != nullptr;) {
    QueuePair* next = rung->nextRung;
    rung->isRung.store(false, std::memory_order_seq_cst);
    context_.makeActive(*rung);
    rung = next;
  }
  const bool took = takePackets(now);
  return drivePairs(now) || took;
}

void Engine::noticeDevice() {
  DeviceRecord& device = context_.device.record();
  const auto raise = [&](ibv_event_type type) { context_.raise({{.port_num = 1}, type}); };
  if (const uint32_t changes = device.portChanges; changes != portChanges_) {
    portChanges_ = changes;
    raise(device.portState == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
  }
  if (const uint32_t changes = device.gidChanges; changes != gidChanges_) {
    gidChanges_ = changes;
    raise(IBV_EVENT_GID_CHANGE);
  }
  if (const uint32_t changes = device.pkeyChanges; changes != pkeyChanges_) {
    pkeyChanges_ = changes;
    raise(IBV_EVENT_PKEY_CHANGE);
  }
}

template <class Use>
void Engine::forLanes(Use&& use) const {
  Endpoint& endpoint = context_.fabric.endpoint(context_.endpoint);
  for (int word = 0; word < kMostLanes / 64; ++word)
    for (uint64_t bits = endpoint.incoming[word]; bits != 0; bits &= bits - 1)
      use(context_.fabric.lane(word * 64 + std::countr_zero(bits)));
}

bool Engine::takePackets(uint64_t now) {
  bool did = false;
  std::vector<Lane*> closed;
  forLanes([&](Lane& lane) {
    did = takeAnswers(lane, now) || did;
    did = takeRequests(lane, now) || did;
    if ((lane.ends & Lane::kWriter) == 0) closed.push_back(&lane);
  });
  for (Lane* lane : closed)
    if (context_.fabric.requests(*lane).isEmpty() && context_.fabric.answers(*lane).isEmpty())
      context_.fabric.leaveLane(lane, Lane::kReader);
  return did;
}

bool Engine::takeAnswers(Lane& lane, uint64_t now) {
  PacketRing& ring = context_.fabric.answers(lane);
  int taken = 0;
  for (; taken < kMostAnswers; ++taken) {
    const Packet* packet = ring.front();
    if (packet == nullptr) break;
    QueuePair* pair = context_.find(packet->destinationQueuePair);
    if (pair != nullptr && context_.isPortUp()) {
      context_.makeActive(*pair);
      pair->sender.take(*packet, now);
    }
    ring.pop(packet);
  }
  if (taken > 0 && ring.takeWish()) context_.fabric.wake(lane.from);
  return taken > 0;
}

bool Engine::takeRequests(Lane& lane, uint64_t now) {
  PacketRing& ring = context_.fabric.requests(lane);
  int taken = 0;
  for (; taken < kMostRequests; ++taken) {
    const Packet* packet = ring.front();
    if (packet == nullptr) break;
    Lane* back = context_.laneTo(lane.from);
    if (back != nullptr && !context_.fabric.answers(*back).hasRoom(0)) {
      context_.fabric.answers(*back).askForRoom();
      break;
    }
    QueuePair* pair = context_.find(packet->destinationQueuePair);
    if (pair != nullptr && context_.isPortUp()) {
      context_.makeActive(*pair);
      pair->responder.take(*packet, now);
    }
    ring.pop(packet);
  }
  if (taken > 0 && ring.takeWish()) context_.fabric.wake(lane.from);
  return taken > 0;
}

bool Engine::drivePairs(uint64_t now) {
  bool did = false;
  nextTime_ = UINT64_MAX;
  std::vector<QueuePair*>& active = context_.active_;
  // Pairs have no order among each other.
  if (context_.settings.order != Order::kIbta)
    std::shuffle(active.begin(), active.end(), context_.random_);
  for (size_t i = 0; i < active.size(); ++i) {
    QueuePair& pair = *active[i];
    did = pair.turn(now) || did;
    nextTime_ = std::min({nextTime_, pair.sender.nextTime(), pair.responder.nextTime()});
  }
  std::erase_if(active, [](QueuePair* pair) {
    pair->isActive = !pair->sender.isIdle() || !pair->responder.isSettled();
    return !pair->isActive;
  });
  hasWork_ = !active.empty();
  return did;
}

bool Engine::mustLook() const {
  if (isStopping_) return true;
  if (!context_.isHeld() && context_.rung_.load() != nullptr) return true;
  bool hasPacket = false;
  forLanes([&](Lane& lane) {
    hasPacket = hasPacket || !context_.fabric.requests(lane).isEmpty() ||
                !context_.fabric.answers(lane).isEmpty();
  });
  return hasPacket;
}

void Engine::assist() {
  bool did = false;
  if (context_.mutex_.tryLock()) {
    did = turn(nanoseconds());
    context_.mutex_.unlock();
  }
  // The peer may be waiting for this very processor.
  if (!did) std::this_thread::yield();
}

void Engine::sleep(uint64_t until, bool hasWork) {
  Endpoint& endpoint = context_.fabric.endpoint(context_.endpoint);
  const uint32_t seen = endpoint.signal;
  endpoint.sleep.store(context_.isHeld() ? kHeld : kAsleep, std::memory_order_seq_cst);
  uint64_t longest = hasWork ? kSleepWithWorkNs : kLongestSleepNs;
  const uint64_t now = nanoseconds();
  if (until <= now || mustLook()) {
    longest = 0;
  } else if (until != UINT64_MAX) {
    longest = std::min(longest, until - now);
  }
  if (longest > 0)
    waitOnWord(endpoint.signal, seen, longest);
  else
    std::this_thread::yield();  // a ring is full, or a test holds what is there
  endpoint.sleep = kAwake;
}

}  // namespace peerlane::softhca
