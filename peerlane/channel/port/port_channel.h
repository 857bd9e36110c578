// SPDX-License-Identifier: Apache-2.0
//
// Port channels, the host's side. A ProxyService carries out the requests that threads of one
// device make inside kernels (port_channel_device.h has the device's side); semaphores pair it with
// services of peers. The device may be the host: then CPU threads call. Thread-safe.
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
// Everything can be added and removed while the service runs. But everything that a kernel uses
// must stay until that kernel has ended: the library cannot see which handles kernels hold.
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
  // The device whose threads call: a GPU of the context, or the host.
  Device device{};
  // Slots of the FIFO, of 16 bytes, a power of two; a request takes one slot, a long one two.
  uint32_t fifoSlots = 512;
  // Room for semaphores and memories, at most 2^20 each. A semaphore takes 128 bytes of the device
  // and 128 of the host.
  uint32_t semaphores = 1024;
  uint32_t memories = 4096;
  // How long the proxy polls without a pause after work. When absent: forty times
  // PEERLANE_SPIN_US, 2 ms at most unless PEERLANE_SPIN_US is more, where the process has 8 cores;
  // else PEERLANE_SPIN_US.
  std::optional<std::chrono::nanoseconds> spin{};
  // The proxy's longest nap when it is idle: it sees the first request so late at most, unless
  // wake() or wakeOn() came before. Naps grow from 10 us, after a rest of up to 20 ms, to this,
  // after 200 ms. 1 ms costs about 1 % of a core.
  std::chrono::nanoseconds longestNap = std::chrono::milliseconds(1);
  // Services of GPUs: thread blocks of the resident port (a resident kernel), which copies, with no
  // host in between, what is too much for inline and too little for the copy engine. It stays on
  // the GPU while there is work, and 200 us longer; a call that finds it asleep goes by the copy
  // engine and wakes it. 0: there is no resident port. 8 blocks fill a link.
  uint32_t residentBlocks = 0;
  // Where the handle names no engine: calls of up to so many bytes go by the resident port.
  uint64_t residentBytes = 4 * 1024 * 1024;
  // Where the handle names no engine: calls of up to so many bytes go inline, for one thread, one
  // warp, one block.
  uint64_t inlineBytes[port::kTeamKinds] = {256, 16 * 1024, 256 * 1024};
};

// A queue to a peer. The proxy carries out the requests of one connection in order, those of
// several connections side by side. Cheap handle; the connection stays while the service and a
// handle or semaphore does.
class PortConnection {
 public:
  PortConnection() = default;
  explicit operator bool() const { return slot_ != nullptr; }
  // "ce", "cpu", "agent": the engine that carries out calls that do not go inline.
  std::string engine() const;

 private:
  friend class ProxyService;
  friend class PortCore;
  explicit PortConnection(std::shared_ptr<PortQueueSlot> slot) : slot_(std::move(slot)) {}
  std::shared_ptr<PortQueueSlot> slot_;
};

// A pair of counters, one at each side, which many channels may share. Cheap handle.
class PortSemaphore {
 public:
  PortSemaphore() = default;
  explicit operator bool() const { return slot_ != nullptr; }
  // For kernels, by value. Signals need a peer that is mapped (outbound is not null); else signal
  // by a channel.
  PortSemaphoreHandle deviceHandle() const;
  // OK, or the first error, since which the semaphore's requests are not carried out any more:
  // kInvalidArgument (a request named something that is not there), kPeerLost, kPeerSilent, kClosed
  // (removed, here or there), ... While the semaphore has not ended: the last call that was refused
  // to a thread itself (kInvalidArgument), which ends nothing.
  Status status() const;

  // --- By the host, after everything that it asked for before ---
  // Adds to the counter that the peer waits for.
  Status signal(uint64_t count = 1) const;
  // Consumes signals of the peer, as the device's wait() does. Services of the host only; else
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
  // Which engine carries out which calls, and why, as text for people.
  std::string explain() const;

  // --- By the host: handed to the proxy; status() tells how they ended ---
  Status put(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const;
  Status get(uint64_t localOffset, uint64_t remoteOffset, uint64_t bytes) const;
  Status putWithSignal(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const;
  // Returns when the proxy has carried out all of the semaphore's requests, also those that threads
  // of the device made before. kTimeout also where the proxy was not started.
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
  // kOutOfMemory. Lifetime: the context must outlive the service. Several services for one device
  // are normal.
  static Result<std::unique_ptr<ProxyService>> create(Context& context,
                                                      const ProxyServiceOptions& options = {});
  // Ends all semaphores, at the peers too. Requires: no kernel uses a handle any more.
  ~ProxyService();
  ProxyService(const ProxyService&) = delete;
  ProxyService& operator=(const ProxyService&) = delete;

  // Starts the proxy's thread, or lets it go on. Requests made before wait in the FIFO.
  Status start();
  // Stops the proxy's thread after its present work; requests stay in the FIFO until the next
  // start().
  void stop();
  // Makes the proxy look now, and without a pause for a while: call it ahead of a kernel that will
  // make requests.
  void wake();
  // The same, and once more when `stream` gets there. On a stream that is being captured the proxy
  // is woken only then, at each replay: by a callback of the driver, for which the later work of
  // the graph waits. (A stream's later work waits for one, too, while 256 other wakeOn() are on
  // their way.)
  Status wakeOn(DeviceStream stream);

  // Adds memory that requests may name. Local memory is that of the device, of the host (pinned for
  // a GPU until it is unregistered), or of another GPU to which the device has a path. Regions stay
  // in use until they are removed. Errors: kUnavailable (no room: ProxyServiceOptions::memories),
  // kNotSupported, kClosed, those of RemoteRegion::prepare.
  Result<MemoryId> addMemory(const Region& region);
  Result<MemoryId> addMemory(const RemoteRegion& region,
                             Duration timeout = std::chrono::seconds(10));
  // The proxy carries out the requests that were made before. It refuses later requests that name
  // the memory, which end their semaphores. Returns when no request that names it is under way.
  // (While the proxy is stopped, and in a handler, this does not wait for requests in the FIFO; the
  // proxy refuses them later.) kTimeout: some are under way, call again. kInvalidArgument: there is
  // no such memory (any more).
  Status removeMemory(MemoryId memory, Duration timeout = std::chrono::seconds(10));

  // Makes a queue to this peer, for this connection alone; the peer is asked for nothing.
  Result<PortConnection> connect(const Peer& peer);
  // Pairs with the peer's call for the same tag on the same connection of contexts. A tag can be
  // used again once the semaphore was removed at both sides. Blocks until the peer has called. The
  // semaphore may have ended with kTimeout already when this returns, because the peer gave up at
  // that moment: remove it and add it anew. Errors: kTimeout, kUnavailable (no room, the tag is in
  // use here), kPeerLost.
  Result<PortSemaphore> addSemaphore(const PortConnection& connection, uint32_t tag,
                                     Duration timeout = std::chrono::seconds(10));
  // The proxy carries out the requests that were made before, as for removeMemory(). Then the
  // semaphore ends with kClosed at both sides. Returns when nothing of it is under way. OK also
  // where it was removed already.
  Status removeSemaphore(const PortSemaphore& semaphore,
                         Duration timeout = std::chrono::seconds(10));
  // `remote` and `local` as addMemory() returned them.
  Result<PortChannel> channel(const PortSemaphore& semaphore, MemoryId remote, MemoryId local);

  // Requests of the user's own (PortChannelHandle::request, kinds below 2^20) go to `handler`, on
  // the proxy's thread; the handler must not wait for the proxy. Null: removes the handler. When
  // this returns, the handler of before is not called any more (except where a handler calls this).
  // An error that a handler returns becomes status().
  using Handler = std::function<Status(const port::PortRequest&)>;
  Status onRequest(uint32_t kind, Handler handler);

  // OK, or the first error that belongs to no semaphore: of a handler, a request that named no
  // semaphore.
  Status status() const;
  // How often the proxy has slept; for tests.
  uint64_t naps() const;
  // Semaphores, memories and operations under way, as text for people.
  std::string dump() const;

 private:
  explicit ProxyService(std::shared_ptr<PortCore> core) : core_(std::move(core)) {}
  std::shared_ptr<PortCore> core_;
};

}  // namespace peerlane
