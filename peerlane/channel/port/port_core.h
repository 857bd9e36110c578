// SPDX-License-Identifier: Apache-2.0
//
// PortCore: the state and work of one ProxyService: the memory that its device and the proxy share,
// the tables by which requests name things, and the queues that carry requests out. The proxy's
// thread takes turns; a thread that adds or removes something does it between two of them, under
// the same lock. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/channel/port/port_bootstrap.h"
#include "peerlane/channel/port/port_channel.h"
#include "peerlane/channel/port/transfer_queue.h"
#include "peerlane/core/mutex.h"
#include "peerlane/os/process.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/ring/port_queue.h"
#include "peerlane/progress/fifo.h"
#include "peerlane/progress/proxy.h"

namespace peerlane {

struct PortQueueSlot;
struct SemaphoreSlot;

// For callers that name memory that was taken back.
Status revokedMemory(MemoryId id);

// One memory that requests may name: a region of this side, or, with a peer, one of the peer's.
struct PortMemory {
  Region local{};
  std::shared_ptr<PeerCore> peer{};
  RemoteRegion remote{};
  std::shared_ptr<ImportedRegion> imported{};  // null: only transfers reach it
  bool isOfHost = true;                        // the CPU, or an agent, reaches it
  std::byte* address = nullptr;                // where the device reaches it; null: it does not
  bool mayBeCut = false;                       // of the host: the CPU makes no plain copies of it
  uint64_t bytes = 0;
  Access access = Access::kLocal;

  // The address by which threads of the device copy by themselves; null: they ask the proxy. They
  // check no rights, so it is null unless they may both read and write the memory; and null for
  // threads of the CPU where the memory may be cut, because their copy would end the process.
  std::byte* inlineAddress(bool isOfGpu) const {
    return access == Access::kRemoteReadWrite && (isOfGpu || !mayBeCut) ? address : nullptr;
  }
  // Its provider took it back, or it was freed, here or at the peer.
  bool isRevoked() const;
  // Leaves its gates, once. Nothing of the service touches it any more.
  void letGo();

  // Under the core's lock.
  std::vector<std::weak_ptr<SemaphoreSlot>> users{};  // of channels
  // Of a revoked one: what may still touch it.
  bool isEnding = false;
  std::vector<std::pair<std::shared_ptr<PortQueueSlot>, PortQueue::Mark>> under{};
  bool isLetGo = false;
};

// A request and where it stood in the FIFO; 0: the host's own.
struct PlacedRequest {
  port::PortRequest request;
  uint64_t position = 0;
};

// The state of a PortConnection.
struct PortQueueSlot {
  Peer peer;
  bool isByDevice = false;               // by the copy engine of the service's GPU; else by the CPU
  Mailbox* mailbox = nullptr;            // of the CPU's
  std::unique_ptr<TransferQueue> queue;  // under the core's lock, as the next
  std::deque<PlacedRequest> backlog;     // came while the queue had no room
  uint64_t drained = 0;                  // of the backlog, so far
  std::string engine;                    // constant
};

// The state of a PortSemaphore.
struct SemaphoreSlot {
  std::weak_ptr<PortCore> core;
  uint32_t number = 0;
  uint32_t tag = 0;
  uint64_t serial = 0;
  std::shared_ptr<PortQueueSlot> connection;
  PortSemaphoreHandle handle;  // constant once it is added, as the next three
  bool isOfHost = false;       // the host can count what the peer signals
  PortAddress outbound;        // the word of the peer's line that the proxy stores
  PortAddress doneWord;
  std::shared_ptr<ImportedRegion> peerLines;
  RemoteRegion peerLinesHandle;

  // Under the core's lock.
  uint64_t stored = 0;        // what the proxy has signalled in all
  uint64_t lastPosition = 0;  // position after the last request that was carried out
  uint64_t published = 0;     // what `doneWord` was given
  uint64_t hostRequests = 0;  // asked for by the host, and those carried out
  uint64_t hostCarried = 0;
  bool isDirty = false;  // in the list of those that have something to publish
  bool isRemoved = false;

  mutable Mutex statusMutex;
  Status ended PEERLANE_GUARDED_BY(statusMutex);
  std::atomic<bool> hasEnded{false};
};

class PortCore final : public std::enable_shared_from_this<PortCore> {
 public:
  using Duration = std::chrono::nanoseconds;

  PortCore(Context& context, const ProxyServiceOptions& options)
      : context_(context), options_(options) {}
  ~PortCore();
  Status open();
  void close();
  // kNotSupported in a forked child, where no proxy is; call nothing else there.
  Status usable() const;

  Proxy& proxy() { return *proxy_; }
  Status wakeOn(DeviceStream stream);
  bool hasOneQueue() const { return executor_ && executor_->hasOneQueue(); }
  Result<MemoryId> addLocal(const Region& region);
  Result<MemoryId> addRemote(const RemoteRegion& region, Duration timeout);
  Status removeMemory(MemoryId id, Duration timeout);
  Result<std::shared_ptr<PortQueueSlot>> connect(const Peer& peer);
  Result<std::shared_ptr<SemaphoreSlot>> addSemaphore(
      const std::shared_ptr<PortQueueSlot>& connection, uint32_t tag, Duration timeout);
  Status removeSemaphore(const std::shared_ptr<SemaphoreSlot>& semaphore, Duration timeout);
  Result<PortChannelHandle> channel(const SemaphoreSlot& semaphore, MemoryId remote,
                                    MemoryId local);
  Status setHandler(uint32_t kind, ProxyService::Handler handler);
  Status status() const;
  Status statusOf(SemaphoreSlot& semaphore);
  // The same without refusals to threads of the device, which end nothing.
  Status endOf(SemaphoreSlot& semaphore);
  std::string dump();

  // For the host's own requests.
  Status ask(const std::shared_ptr<SemaphoreSlot>& semaphore, port::PortRequest request);
  Status flush(const std::shared_ptr<SemaphoreSlot>& semaphore, Duration timeout);

 private:
  // The lock between two turns. Not in a forked child, where nobody may let go of it.
  class PEERLANE_SCOPED_CAPABILITY Entered {
   public:
    explicit Entered(PortCore& core) PEERLANE_ACQUIRE(core.mutex_) : core_(core) {
      core_.entering_.fetch_add(1, std::memory_order_relaxed);
      core_.mutex_.lock();
      core_.entering_.fetch_sub(1, std::memory_order_relaxed);
      core_.isQuiet_.store(false, std::memory_order_relaxed);
    }
    ~Entered() PEERLANE_RELEASE() { core_.mutex_.unlock(); }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    PortCore& core_;
  };
  Status make();
  Status makeMemory() PEERLANE_REQUIRES(mutex_);
  Status makeResident() PEERLANE_REQUIRES(mutex_);
  Status writeWords(std::byte* words, uint64_t first, uint64_t second) PEERLANE_REQUIRES(mutex_);
  Status settle(PortQueue& queue, Duration timeout);
  // Whether the FIFO's requests up to that position, which was given out before, are taken.
  bool isTakenUpTo(uint64_t position) const PEERLANE_REQUIRES(mutex_) {
    return (popped_.empty() || popped_.front().position > position) &&
           (!fifo_->hasAny() || fifo_->position() >= position);
  }
  // `leaving`: names the thing that is to leave the service, for the list of waits.
  Status awaitTaken(const std::vector<std::shared_ptr<PortQueueSlot>>& connections,
                    const std::string& leaving, std::chrono::steady_clock::time_point deadline);
  Status settleBehind(const std::vector<std::shared_ptr<PortQueueSlot>>& connections,
                      const std::string& leaving, std::chrono::steady_clock::time_point deadline);
  void retire(PortQueueSlot& connection) PEERLANE_REQUIRES(mutex_);
  void abandon(const std::shared_ptr<PortQueueSlot>& connection) PEERLANE_REQUIRES(mutex_);
  std::unique_ptr<PortQueue> takeSpareQueue();
  uint64_t* takeBell();
  Result<MemoryId> addMemory(PortMemory memory);
  Status bootstrapSemaphore(SemaphoreSlot& semaphore,
                            std::chrono::steady_clock::time_point deadline);
  Status reachLine(SemaphoreSlot& semaphore, const PortNote& hello, bool& usesHostLine,
                   std::chrono::steady_clock::time_point deadline);
  static void leaveLine(SemaphoreSlot& semaphore);
  Result<std::byte*> reachRemote(const ImportedRegion& region) const;
  void forgetSemaphore(const std::shared_ptr<SemaphoreSlot>& semaphore);
  void collectNumbers() PEERLANE_REQUIRES(mutex_);
  void dropRequests(const SemaphoreSlot& semaphore) PEERLANE_REQUIRES(mutex_);
  bool pop(PlacedRequest& placed) PEERLANE_REQUIRES(mutex_);

  // --- The proxy's thread ---
  Proxy::Turn turn();
  uint32_t take(const PlacedRequest& placed, uint32_t most) PEERLANE_REQUIRES(mutex_);
  // Lets go of the lock while it calls the handler.
  uint32_t handle(const PlacedRequest& first, uint32_t most) PEERLANE_REQUIRES(mutex_);
  void listen() PEERLANE_REQUIRES(mutex_);
  void carryOut(SemaphoreSlot& semaphore, const PlacedRequest& placed) PEERLANE_REQUIRES(mutex_);
  bool drain(PortQueueSlot& connection) PEERLANE_REQUIRES(mutex_);
  Status move(SemaphoreSlot& semaphore, const port::PortRequest& request) PEERLANE_REQUIRES(mutex_);
  // Null: not there.
  const PortMemory* memoryAt(MemoryId id) const PEERLANE_REQUIRES(mutex_) {
    return id < memories_.size() ? memories_[id].get() : nullptr;
  }
  Result<const PortMemory*> memoryFor(const SemaphoreSlot& semaphore, uint32_t id, uint64_t offset,
                                      uint64_t bytes, std::optional<Access> remoteNeeds) const
      PEERLANE_REQUIRES(mutex_);
  bool publish() PEERLANE_REQUIRES(mutex_);
  bool serveResident() PEERLANE_REQUIRES(mutex_);
  void lookAtPeers() PEERLANE_REQUIRES(mutex_);
  void lookAtMemories() PEERLANE_REQUIRES(mutex_);
  void beginRevoked(MemoryId id) PEERLANE_REQUIRES(mutex_);
  void dropConnections() PEERLANE_REQUIRES(mutex_);

  void end(SemaphoreSlot& semaphore, const Status& why, bool tellPeer);
  void endConnection(const PortQueueSlot& connection, const Status& why) PEERLANE_REQUIRES(mutex_);
  void fail(const Status& why) PEERLANE_REQUIRES(mutex_);

  Context& context_;
  const ProxyServiceOptions options_;
  std::shared_ptr<DeviceExecutor> executor_;  // null: the host's threads call
  Region devicePrivate_;                      // of the device: FIFO counters, memories, states
  Region deviceLines_;                        // of the device: lines that peers add to
  Region hostPrivate_;                        // of the host: the FIFO's ring, health
  Region hostLines_;                          // of the host: lines that agents store
  port::MemoryEntry* entries_ = nullptr;
  port::SemaphoreState* states_ = nullptr;
  port::SemaphoreHealth* healths_ = nullptr;
  uint64_t* residentLeft_ = nullptr;
  std::unique_ptr<ResidentPort> resident_ PEERLANE_GUARDED_BY(mutex_);  // null: none
  bool isResidentWanted_ PEERLANE_GUARDED_BY(mutex_) = false;
  port::ResidentState* residentState_ = nullptr;
  std::unique_ptr<PortQueue> wordsQueue_ PEERLANE_GUARDED_BY(mutex_);  // writes words of the device
  // Made by open(). Requests are taken from it under mutex_; the proxy's thread looks without.
  std::unique_ptr<Fifo> fifo_;
  std::deque<PlacedRequest> popped_
      PEERLANE_GUARDED_BY(mutex_);  // of the FIFO, ahead of what is in it

  // The number of a semaphore that was removed here: threads of the peer may still signal its line.
  struct LeavingNumber {
    std::shared_ptr<PeerCore> peer;
    uint64_t serial = 0;
  };
  // A number that is free again, as the peer's notes tell. An entry must not keep the peer alive.
  struct GoneNumber {
    uint32_t number = 0;
    const PeerCore* peer = nullptr;
    uint64_t serial = 0;
  };
  Mutex goneMutex_;  // lock order: acquired last
  std::vector<GoneNumber> goneNumbers_ PEERLANE_GUARDED_BY(goneMutex_);
  std::atomic<uint32_t> entering_{0};
  std::atomic<bool> isQuiet_{false};  // stored under mutex_: only the FIFO can have more to do
  uint32_t quietLooks_ = 0;           // of the proxy's thread
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<PortMemory>> memories_ PEERLANE_GUARDED_BY(mutex_);
  // No more requests, but old ones.
  std::map<MemoryId, std::shared_ptr<PortMemory>> leavingMemories_ PEERLANE_GUARDED_BY(mutex_);
  std::deque<MemoryId> freeMemories_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<SemaphoreSlot>> semaphores_ PEERLANE_GUARDED_BY(mutex_);
  std::deque<uint32_t> freeSemaphores_ PEERLANE_GUARDED_BY(mutex_);
  std::map<uint32_t, LeavingNumber> leavingNumbers_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PortQueueSlot>> connections_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PortQueue>> spareQueues_
      PEERLANE_GUARDED_BY(mutex_);  // of the device, without a connection
  std::vector<std::unique_ptr<PortQueue>> failedQueues_
      PEERLANE_GUARDED_BY(mutex_);  // the same; kept until the end
  std::vector<std::shared_ptr<SemaphoreSlot>> dirty_ PEERLANE_GUARDED_BY(mutex_);
  std::deque<PlacedRequest> hostRequests_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t hostAsked_ PEERLANE_GUARDED_BY(mutex_) = 0;  // of them, so far
  std::map<uint32_t, std::shared_ptr<ProxyService::Handler>> handlers_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PeerCore>> peers_
      PEERLANE_GUARDED_BY(mutex_);  // that were told of lines
  std::weak_ptr<PortCore>* bell_ PEERLANE_GUARDED_BY(mutex_) =
      nullptr;  // what streams ring; stays for good
  std::chrono::steady_clock::time_point lookedAtPeers_ PEERLANE_GUARDED_BY(mutex_){};
  // Words that streams store to when they get to a wakeOn(); those that are free, and the others.
  struct Bell {
    uint64_t* word = nullptr;
    std::chrono::steady_clock::time_point since;
  };
  std::vector<uint64_t*> freeBells_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<Bell> bells_ PEERLANE_GUARDED_BY(mutex_);
  bool isHandling_ PEERLANE_GUARDED_BY(mutex_) =
      false;  // a handler is being called, outside the lock
  Condition hasHandled_;
  std::vector<PlacedRequest> run_;  // what it is being called with; of the proxy's thread
  uint64_t runs_ PEERLANE_GUARDED_BY(mutex_) = 0;  // so many, so far
  std::atomic<uint64_t> handlerChanges_{0};
  Status failure_ PEERLANE_GUARDED_BY(mutex_);
  bool isClosed_ PEERLANE_GUARDED_BY(mutex_) = false;
  const uint64_t forks_ = forkGeneration();  // of the process that has the proxy

  std::unique_ptr<Proxy> proxy_;
};

}  // namespace peerlane
