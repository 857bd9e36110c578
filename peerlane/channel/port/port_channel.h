// SPDX-License-Identifier: Apache-2.0
//
// Port channels, the host's side: a ProxyService carries out what threads of one device ask for
// inside kernels (port_channel_device.h has their side); semaphores pair it with services of
// peers. The device may be the host: then CPU threads call. Thread-safe.
//
//   auto service = peerlane::ProxyService::create(context, {.device = gpu}).value();
//   auto connection = service->connect(peer).value();
//   auto semaphore = service->addSemaphore(connection, /*tag=*/7).value();   // the peer does, too
//   auto local = service->addMemory(region).value();
//   auto remote = service->addMemory(theirs).value();                        // a RemoteRegion
//   auto channel = service->channel(semaphore, remote, local).value();
//   PEERLANE_RETURN_IF_ERROR(service->start());
//   kernel<<<...>>>(channel.deviceHandle());
//
// Everything can be added and removed while the service runs. What a kernel uses must stay until
// that kernel has ended: nobody can see which handles kernels hold.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/port/port_channel_device.h"
#include "peerlane/memory/region.h"
#include "peerlane/program/device/device_stream.h"
#include "peerlane/session/context/context.h"

namespace peerlane {

class PortCore;
struct PortQueueSlot;
struct SemaphoreSlot;

using MemoryId = uint32_t;

struct ProxyServiceOptions {
  // Whose threads call: a GPU of the context, or the host.
  Device device{};
  // Slots of 16 bytes of the FIFO, a power of two; a request takes one, a long one two.
  uint32_t fifoSlots = 512;
  // Room, at most 2^20 each. A semaphore takes 128 bytes of the device and 128 of the host.
  uint32_t semaphores = 1024;
  uint32_t memories = 4096;
  // How long the proxy looks without a pause after work; PEERLANE_SPIN_US when absent.
  std::optional<std::chrono::nanoseconds> spin{};
  // Its longest nap when idle: the first request is seen so late at most, unless wake() or wakeOn()
  // came before. 1 ms costs about 1 % of a core.
  std::chrono::nanoseconds longestNap = std::chrono::milliseconds(1);
  // Services of GPUs: thread blocks of the resident port, which copies what is too much for inline
  // and too little for the copy engine with no host in between. It stays on the GPU while there is
  // work, and 200 us longer; the call that finds it asleep goes by the copy engine and wakes it.
  // 0: there is none. 8 fill a link.
  uint32_t residentBlocks = 0;
  // Up to so many bytes go by it, where the handle does not say which engine.
  uint64_t residentBytes = 4 * 1024 * 1024;
  // Inline up to so many bytes for one thread, one warp, one block, where the handle does not say
  // which engine.
  uint64_t inlineBytes[port::kTeamKinds] = {256, 16 * 1024, 256 * 1024};
};

// A way to a peer: requests of one connection are carried out in order, those of several side by
// side. Cheap handle; the connection stays while the service and a handle or semaphore does.
class PortConnection {
 public:
  PortConnection() = default;
  explicit operator bool() const { return slot_ != nullptr; }
  // "ce", "cpu", "agent": who carries out what does not go inline.
  std::string engine() const;

 private:
  friend class ProxyService;
  friend class PortCore;
  explicit PortConnection(std::shared_ptr<PortQueueSlot> slot) : slot_(std::move(slot)) {}
  std::shared_ptr<PortQueueSlot> slot_;
};

// A pair of counters, one at each side, that may serve many channels. Cheap handle.
class PortSemaphore {
 public:
  PortSemaphore() = default;
  explicit operator bool() const { return slot_ != nullptr; }
  // For kernels, by value. Signals need a peer that is mapped (outbound is not null); else signal
  // by a channel.
  PortSemaphoreHandle deviceHandle() const;
  // OK, or why its requests are not carried out any more: the first error. kInvalidArgument (a
  // request that named what is not there), kPeerLost, kPeerSilent, kClosed (removed, here or
  // there), ... Where it has not ended: the last call that a thread itself was refused
  // (kInvalidArgument), which ends nothing.
  Status status() const;

  // --- By the host, behind what it asked for before ---
  // Adds to what the peer waits for.
  Status signal(uint64_t count = 1) const;
  // Consumes signals of the peer's, as the device's wait() does. Services of the host only; else
  // kNotSupported.
  Status wait(uint64_t count, std::chrono::nanoseconds timeout) const;

 private:
  friend class ProxyService;
  friend class PortCore;
  friend class PortChannel;
  explicit PortSemaphore(std::shared_ptr<SemaphoreSlot> slot) : slot_(std::move(slot)) {}
  std::shared_ptr<SemaphoreSlot> slot_;
};

// A semaphore, and the two memories whose offsets the short calls mean. Cheap handle.
class PortChannel {
 public:
  PortChannel() = default;
  explicit operator bool() const { return static_cast<bool>(semaphore_); }
  // For kernels, by value. `engine` kInline is for memory that is mapped on both sides
  // (isMapped()).
  PortChannelHandle deviceHandle(PortEngine engine = PortEngine::kAuto) const;
  bool isMapped() const;
  const PortSemaphore& semaphore() const { return semaphore_; }
  Status status() const { return semaphore_.status(); }
  // Who carries out what, and why, for people.
  std::string explain() const;

  // --- By the host: handed to the proxy; status() tells what became of them ---
  Status put(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const;
  Status get(uint64_t localOffset, uint64_t remoteOffset, uint64_t bytes) const;
  Status putWithSignal(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const;
  // Returns when all of the semaphore's requests were carried out, also those that threads of the
  // device have made before. kTimeout also where the proxy was not started.
  Status flush(std::chrono::nanoseconds timeout = std::chrono::seconds(30)) const;

 private:
  friend class ProxyService;
  friend class PortCore;
  PortChannel(PortSemaphore semaphore, MemoryId remote, MemoryId local, PortChannelHandle handle)
      : semaphore_(std::move(semaphore)), remote_(remote), local_(local), handle_(handle) {}
  PortSemaphore semaphore_;
  MemoryId remote_ = 0;
  MemoryId local_ = 0;
  PortChannelHandle handle_;
};

class ProxyService {
 public:
  using Duration = std::chrono::nanoseconds;

  // Errors: kInvalidArgument (an option, a device that the context was not created with),
  // kOutOfMemory. Lifetime: the context outlives it. Several for one device are normal.
  static Result<std::unique_ptr<ProxyService>> create(Context& context,
                                                      const ProxyServiceOptions& options = {});
  // Ends all semaphores, at the peers too. Requires: no kernel uses a handle any more.
  ~ProxyService();
  ProxyService(const ProxyService&) = delete;
  ProxyService& operator=(const ProxyService&) = delete;

  // The proxy's thread begins, or goes on. Requests made before wait in the FIFO.
  Status start();
  // It ends after what it is doing; requests stay in the FIFO for the next start().
  void stop();
  // The proxy looks now, and without a pause for a while: ahead of a kernel that will ask.
  void wake();
  // The same, and once more when `stream` gets there. Where it is being captured, only then, at
  // each replay: a callback of the driver's, for which what is behind it in the graph waits. (On a
  // stream, too, while 256 others are on their way.)
  Status wakeOn(DeviceStream stream);

  // Memory that requests may name. Local memory: of the device, of the host (pinned for a GPU until
  // it is unregistered), of another GPU that it has a path to. Regions stay in use until they are
  // removed. Errors: kUnavailable (no room: ProxyServiceOptions::memories), kNotSupported, kClosed,
  // those of RemoteRegion::prepare.
  Result<MemoryId> addMemory(const Region& region);
  Result<MemoryId> addMemory(const RemoteRegion& region,
                             Duration timeout = std::chrono::seconds(10));
  // What was asked for before is carried out; requests that name it are refused from then on, and
  // end their semaphores. Returns when none is under way. (While the proxy is stopped, and in a
  // handler, what waits in the FIFO is not waited for, and refused later.) kTimeout: some are under
  // way, call again. kInvalidArgument: there is no such memory (any more).
  Status removeMemory(MemoryId memory, Duration timeout = std::chrono::seconds(10));

  // A queue of its own to this peer; nothing is asked of the peer.
  Result<PortConnection> connect(const Peer& peer);
  // Pairs with the peer's call for the same tag on the same connection of contexts; a tag can be
  // used again once the semaphore was removed at both sides. Blocks until the peer has called.
  // It may have ended with kTimeout when this returns: the peer gave up at that moment; remove it
  // and add it anew. Errors: kTimeout, kUnavailable (no room, the tag is in use here), kPeerLost.
  Result<PortSemaphore> addSemaphore(const PortConnection& connection, uint32_t tag,
                                     Duration timeout = std::chrono::seconds(10));
  // What was asked for before is carried out, as for removeMemory(). Then it ends with kClosed at
  // both sides; returns when nothing of it is under way. OK also where it was removed already.
  Status removeSemaphore(const PortSemaphore& semaphore,
                         Duration timeout = std::chrono::seconds(10));
  // `remote` and `local` as addMemory() returned them.
  Result<PortChannel> channel(const PortSemaphore& semaphore, MemoryId remote, MemoryId local);

  // Requests of the user's own (PortChannelHandle::request, kinds below 2^20) go to `handler`, on
  // the proxy's thread; it must not wait for the proxy. Null: none any more. The one before is not
  // called any more when this returns (but where a handler calls this). An error it returns becomes
  // status().
  using Handler = std::function<Status(const port::PortRequest&)>;
  Status onRequest(uint32_t kind, Handler handler);

  // OK, or the first error that belongs to no semaphore: of a handler, a request that named no
  // semaphore.
  Status status() const;
  // So often the proxy has slept; for tests.
  uint64_t naps() const;
  // Semaphores, memories, what is under way, for people.
  std::string dump() const;

 private:
  explicit ProxyService(std::shared_ptr<PortCore> core) : core_(std::move(core)) {}
  std::shared_ptr<PortCore> core_;
};

}  // namespace peerlane
