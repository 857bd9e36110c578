// SPDX-License-Identifier: Apache-2.0
//
// Context: the library's presence in a process: its registered memory, its peers, its progress
// engine. Several contexts per process are normal. Peers connect pairwise, at any time, and may
// leave at any time; there is no communicator to set up first. Thread-safe. In a forked child every
// call but the destructor fails with kNotSupported.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"
#include "peerlane/memory/region.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class Arrivals;
class DeviceExecutor;
class MemoryProvider;
struct Invited;

struct ContextOptions {
  // Taken from the environment when absent.
  std::optional<Config> config{};
  // Where to listen besides the Unix socket that every context has: "auto" (all chosen interfaces,
  // both IP versions, PEERLANE_PORT_RANGE), "10.0.0.1:4000", "[::1]:0", "eth0:10.0.0.1:4000" (that
  // interface must have the address). Empty: only processes of this host can connect.
  std::vector<std::string> listen{};
  // 64 hexadecimal digits or 43 characters of base64url, for peers that connect by address and
  // secret. Empty: a random secret.
  std::string secret{};
  // The GPUs whose memory this context uses: it refuses memory of other GPUs, and makes no CUDA
  // context on them. create() loads all kernels, because CUDA cannot load one while another kernel
  // runs and waits. Empty: host memory only. Errors of create(): kNotSupported (no CUDA in this
  // build, no driver), kInvalidArgument (no such GPU).
  std::vector<Device> devices{};
  // Threads that help the one that copies, 0 to 64: with transfers between host memories of one
  // host of 512 KiB or more, contiguous or in blocks. They are made by create(), spread over the
  // NUMA nodes, and sleep while there is nothing to help with; they are the context's, and no post
  // waits for them while they help another. 0: a transfer is copied by the thread that posts it, or
  // by the progress thread. Errors of create(): kInvalidArgument, kUnavailable (the system has no
  // more threads).
  uint32_t copyThreads = 0;
};

struct MemoryOptions {
  Device device{};
  HugePages hugePages = HugePages::kAuto;
  std::optional<int> numaNode{};
  Access access = Access::kRemoteReadWrite;
};

class Invitation;

class Context {
 public:
  using Duration = std::chrono::nanoseconds;

  // Errors: kInvalidArgument (environment, addresses, secret), kSystem.
  static Result<std::unique_ptr<Context>> create(ContextOptions options = {});
  // Closes every peer, and ends every region for peers and transfers. Handles may outlive the
  // context: memory that allocate() made stays mapped until the last Region that names it ends, and
  // descriptors and mappings of a peer stay until the last Peer, RemoteRegion, Transfer, ... of it
  // ends. Waits at most 2 s for peers to answer, and without a limit for running callbacks to
  // return: a static Context with a callback that never returns keeps exit() from ending.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // 32 hexadecimal digits, unique.
  std::string id() const;
  // The ticket: one printable word with which another process connects here. It contains the
  // secret: every process that has it may connect.
  std::string ticket() const;
  // The secret alone, for peers that connect by address.
  std::string secretText() const;
  // Addresses this context listens on.
  std::vector<std::string> addresses() const;

  // `ticket`: the word itself, "@file", "env:NAME", or "-" (standard input). Blocks until the peer
  // can be used. Errors: kInvalidArgument, kCorrupt (not a ticket), kPermissionDenied (wrong
  // secret), kNotSupported (versions, both named), kUnavailable (no address answered; each with its
  // reason), kTimeout.
  Result<Peer> connect(std::string_view ticket, Duration timeout = std::chrono::seconds(10));
  // By address ("10.0.0.1:4000", "host:4000", "unix:@name") and secret. "eth0:10.0.0.1:4000", as
  // the other side may have it, is accepted as well: an interface of that name must exist here, and
  // has no other effect.
  Result<Peer> connect(const std::string& address, std::string_view secret,
                       Duration timeout = std::chrono::seconds(10));
  // The next peer that connected here. A peer that has left since then is returned only if it left
  // messages (limits::kPeersLeft). Errors: kTimeout.
  Result<Peer> accept(Duration timeout = std::chrono::seconds(10));
  // A descriptor that is readable while a peer waits for accept(). Do not read from it: call
  // accept() with a timeout of 0. Lifetime: the context's.
  Result<int> acceptFd();
  // Instead of accept(): the progress thread calls `callback` for each peer that connects from now
  // on.
  void onPeer(std::function<void(Peer)> callback);
  std::vector<Peer> peers() const;
  // A ticket for one peer alone. kNotSupported in a forked child.
  Result<Invitation> invite();

  // Registers memory that stays the caller's. Errors: kInvalidArgument (not mapped, 0 bytes),
  // kPermissionDenied (remote write on read-only memory), kRevoked (its provider takes it back
  // meanwhile), the provider's. A range that is not all of one provider is refused.
  Result<Region> registerRegion(void* pointer, size_t bytes, Access access);
  // A region that holds memory which the program did not register: one from the registration cache,
  // or a new one, with at least `access`. The region is all of the allocation for GPU memory (for
  // VMM memory in chunks, all chunks that hold it), and all of the mapping for host memory, so that
  // many buffers share a registration. The library keeps 4096 of them and drops those whose memory
  // was freed; the program must not unregister them. To find one again costs a fraction of a
  // microsecond. Offsets are from Region::data().
  //
  // Host memory is for transfers of the CPU: a GPU that has pinned it would reach the old pages
  // after a free. With kLocal the memory has to be the program's when it calls, and until what it
  // then posts has ended: the library does not ask the system again about a mapping that it knows,
  // so for pages that were unmapped since it answers with the region of that mapping, whose
  // status() is OK, and what is posted with these bytes ends as docs/memory.md says of memory that
  // goes without a word. Memory that the program maps there anew is served by the same region. With
  // more than kLocal the region is [pointer, +bytes) alone, and the system is asked to tell when it
  // is freed: then the region is Revoked, for peers too. Where it does not (private memory and
  // userfaultfd are needed), such access is refused with kInvalidArgument and the reason. While a
  // region is watched, a call that frees memory of its mapping waits for a thread of the library,
  // tens of microseconds. Ask again for each transfer: a region that was found before some of its
  // mapping was freed still serves the rest, but no NIC reaches it directly any more. Errors: as
  // registerRegion(), kUnavailable (no descriptor or thread; pages in memory for peers were given
  // back by madvise() in the last 10 s).
  Result<Region> regionOf(const void* pointer, size_t bytes, Access access);
  // Makes and registers memory of the kind that peers reach best. Zeroed. Freed by unregister().
  Result<Region> allocate(size_t bytes, const MemoryOptions& options = {});
  // Refuses new transfers from now on, and waits until running ones ended and every peer that
  // imported the region has confirmed that it no longer uses it. OK: only the caller uses the
  // memory. kTimeout: a transfer or a peer still uses it, or the progress thread was too busy to
  // answer; call again. kPeerSilent: a silent peer may still write to it; the region is quarantined
  // (dump() shows it) until that peer is heard again or its end is proven; call again to find out.
  // OK also when the region was unregistered before. Memory of allocate() is freed when the region
  // ends. A region that is Revoked stays so, and in dump(), until it is unregistered.
  Status unregister(const Region& region, Duration timeout = std::chrono::seconds(10));
  // The same for several, all of which the peers are asked for before one is waited for: a thousand
  // regions take little longer than one. Errors: the first region's that has one; the others are
  // unregistered nevertheless. kInvalidArgument (an empty Region, or one of another context): none
  // is.
  Status unregister(std::span<const Region> regions, Duration timeout = std::chrono::seconds(10));

  // Lets this context use memory of a kind that the library does not know. Of two providers that
  // own a range the one with the higher priority is asked first (memory_provider.h: those of the
  // library have 0, host, and 100, CUDA), of equals the one that was added first. The context and
  // every region of its memory share the provider, which may serve several contexts. Returns the
  // number to remove it by. Errors: kInvalidArgument (null; a priority of 0 or less, which is never
  // asked).
  Result<uint64_t> addProvider(std::shared_ptr<MemoryProvider> provider, int priority = 200);
  // Nothing is registered with the provider any more, and the regions that it holds are Revoked, as
  // by invalidateMemory(). Errors: kInvalidArgument (no such number); as invalidateMemory(): the
  // provider is removed, and a peer may still reach memory of it.
  Status removeProvider(uint64_t id, Duration timeout = std::chrono::seconds(10));

  // All pending operations, every peer and every region, for people.
  std::string dump() const;
  // Counters in Prometheus' text format.
  std::string metrics() const;
  const Config& config() const;
  // Deletes the files that the sockets of this process's contexts have in PEERLANE_SOCKET_DIR; they
  // cannot be connected to afterwards. They go by themselves with their contexts and at exit(), so
  // this is for a handler of a signal that ends the process: it is async-signal-safe.
  static void removeSocketFiles();
  // Whether a context with these settings may use links to other hosts.
  static bool allowsNetwork(const Config& config);

  // False in a forked child of the process that made the context: calls fail there with
  // kNotSupported, and destruction leaves all as it is (docs/threads.md). Takes no lock.
  bool isOfThisProcess() const;

  // Library's own: the peers that no call has taken yet (arrivals.h). Lifetime: the context's.
  Arrivals& arrivals() const;
  // Library's own: the executor that runs Programs on `device`, one that the context was created
  // with. Errors: kInvalidArgument naming the devices that it has.
  Result<std::shared_ptr<DeviceExecutor>> executor(Device device) const;

 private:
  friend class Invitation;
  class State;
  explicit Context(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// A ticket with a secret of its own, for one peer: accept() of this invitation returns the peer
// that connects with it, Context::accept() and onPeer() do not. The ticket is valid until accept()
// has returned a peer, the invitation was cancelled or destroyed, or the context has ended. A
// connection attempt that fails does not use it up, and neither does a peer that leaves before
// accept() returned it. If several peers connect before that, accept() returns the first, and the
// others wait for reopen() until the invitation ends. A peer that has left again is returned after
// those that are still connected, and only if it left messages (limits::kPeersLeft). Thread-safe.
class Invitation {
 public:
  Invitation() = default;
  ~Invitation() { cancel(); }
  Invitation(Invitation&&) = default;
  Invitation& operator=(Invitation&& other) noexcept;

  explicit operator bool() const { return invited_ != nullptr; }
  // As Context::ticket(). Contains the secret.
  std::string ticket() const;
  // The peer that connected with the ticket, once. Errors: kTimeout (the invitation stays open),
  // kCancelled, kClosed (the context has ended, or accept() returned the peer before).
  Result<Peer> accept(Context::Duration timeout = std::chrono::seconds(10));
  // Lets another peer connect with the ticket after accept() returned one. False: the invitation
  // was cancelled, the context has ended, or accept() has not returned a peer.
  bool reopen();
  // Ends the invitation: a thread that waits in accept() gets kCancelled, and peers that connected
  // and were not accepted are closed.
  void cancel();

 private:
  friend class Context;
  Invitation(std::weak_ptr<Context::State> context, std::shared_ptr<Invited> invited)
      : context_(std::move(context)), invited_(std::move(invited)) {}
  std::weak_ptr<Context::State> context_;
  std::shared_ptr<Invited> invited_;
};

}  // namespace peerlane
