// SPDX-License-Identifier: Apache-2.0
//
// An opened device: the tables that verbs.h calls through, everything that was made in it, and the
// engine that does the device's work in a thread of its own. One lock for all that is set up and
// for the engine's turns; posting and polling take locks of their queues only.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/fake/software_hca/hca_device.h"
#include "tests/fake/software_hca/hca_events.h"
#include "tests/fake/software_hca/hca_faults.h"
#include "tests/fake/software_hca/hca_memory.h"

namespace peerlane::softhca {

class CompletionQueue;
class Engine;
class QueuePair;

class Context {
 public:
  // Null with errno.
  static Context* open(Device& device);
  // What those of this process wrote into late regions is seen from now on. The caller holds no
  // context's lock.
  static void flushAll();
  ~Context();
  Context(const Context&) = delete;
  static Context& of(ibv_context* face) {
    return *reinterpret_cast<Context*>(verbs_get_ctx(face)->priv);
  }
  ibv_context* face() { return &verbs_.context; }

  Device& device;
  Fabric& fabric;
  const Settings settings;
  const int endpoint;
  Faults faults;
  Regions regions{*this};

  // The lock of everything below and of all objects' set-up. Whoever sets up goes before the
  // engine.
  class PEERLANE_SCOPED_CAPABILITY Locked {
   public:
    explicit Locked(Context& context) PEERLANE_ACQUIRE(context.mutex_) : context_(context) {
      ++context_.waiting_;
      context_.mutex_.lock();
      --context_.waiting_;
    }
    ~Locked() PEERLANE_RELEASE() { context_.mutex_.unlock(); }
    Locked(const Locked&) = delete;

   private:
    Context& context_;
  };
  bool isAwaited() const { return waiting_ > 0; }

  bool isLikeRxe() const { return settings.behaviour == Behaviour::kRxe; }
  bool isPortUp() const { return device.record().portState == IBV_PORT_ACTIVE && !isRemoved(); }
  bool isRemoved() const { return isRemoved_.load(std::memory_order_acquire); }
  void remove();

  // --- Pairs ---

  void add(QueuePair* pair);
  void remove(QueuePair* pair);
  QueuePair* find(uint32_t number) const;
  const std::map<uint32_t, QueuePair*>& pairs() const { return pairs_; }
  void failUsersOf(const CompletionQueue& queue);
  // Of pairs that are gone.
  SoftwareHcaCounts ended{};
  uint32_t domains = 0, completionQueues = 0, sharedQueues = 0;

  // --- The engine ---

  // After a post. True: it had to be woken. Any thread, no lock.
  bool ring(QueuePair& pair);
  void makeActive(QueuePair& pair);
  Lane* laneTo(int endpoint);
  void wakePeer(uint32_t pair);
  void wakeEngine() { fabric.wake(endpoint); }
  void assist();  // see Engine
  uint64_t random() { return random_(); }
  bool mayBegin();
  bool isHeld() const { return allowance_.load() == 0; }
  void allow(int64_t requests);  // -1: any number
  std::atomic<bool> measured{false};
  bool isMeasured() const { return measured.load(std::memory_order_relaxed); }
  // As Locked says.
  bool isSettled() const;

  // --- Events; any thread ---

  void raise(const ibv_async_event& event) { events.push(event); }
  EventQueue<ibv_async_event> events;

 private:
  friend class Engine;
  Context(Device& device, Settings settings, int endpoint);

  verbs_context verbs_{};
  Mutex mutex_;
  std::atomic<int> waiting_{0};
  std::atomic<bool> isRemoved_{false};
  std::map<uint32_t, QueuePair*> pairs_;
  std::atomic<QueuePair*> rung_{nullptr};  // a stack
  std::vector<QueuePair*> active_;
  struct Outgoing {
    Lane* lane = nullptr;
    uint32_t generation = 0;
  };
  std::vector<Outgoing> outgoing_;  // by endpoint
  std::mt19937_64 random_;
  std::atomic<int64_t> allowance_{-1};
  std::unique_ptr<Engine> engine_;
};

}  // namespace peerlane::softhca
