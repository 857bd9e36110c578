// SPDX-License-Identifier: Apache-2.0
//
// Context: this process as a participant: its memory, its peers, its progress thread. The
// composition root; several per process are normal. There is no world to join: peers connect
// pairwise, come and go. Thread-safe. In a forked child every call but the destructor fails with
// kNotSupported.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
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
struct Invited;

struct ContextOptions {
  // Taken from the environment when absent.
  std::optional<Config> config{};
  // Where to listen besides the Unix socket that every context has: "auto" (all chosen interfaces,
  // both IP versions, PEERLANE_PORT_RANGE), "10.0.0.1:4000", "[::1]:0", "eth0:10.0.0.1:4000" (that
  // interface must have the address). Empty: only processes of this host can connect.
  std::vector<std::string> listen{};
  // 64 hexadecimal digits or 43 characters of base64url, to meet by address + secret. Empty: a
  // random one.
  std::string secret{};
  // The GPUs whose memory is used: memory of others is refused, and no CUDA context is made there.
  // Kernels are loaded now, because later they could not be while one that waits is running. Empty:
  // host memory only. Errors of create(): kNotSupported (no CUDA in this build, no driver),
  // kInvalidArgument (no such GPU).
  std::vector<Device> devices{};
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
  // Closes every peer, and ends every region for peers and transfers. Handles may outlive it:
  // memory that allocate() made stays mapped until the last Region that names it is gone, and
  // descriptors and mappings of a peer stay until the last Peer, RemoteRegion, Transfer, ... of it
  // is. Waits for at most 2 s for peers to answer, and for callbacks that run to return, without a
  // limit: a static Context whose callback stands keeps exit() from ending.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // 32 hexadecimal digits, unique.
  std::string id() const;
  // One printable word with which another process connects here. Contains the secret: whoever has
  // it may connect.
  std::string ticket() const;
  // The secret alone, for meeting by address.
  std::string secretText() const;
  // Addresses this context listens on.
  std::vector<std::string> addresses() const;

  // `ticket`: the word itself, "@file", "env:NAME", or "-" (standard input). Blocks until the peer
  // can be used. Errors: kInvalidArgument, kCorrupt (not a ticket), kPermissionDenied (wrong
  // secret), kNotSupported (versions, both named), kUnavailable (nobody there; each address with
  // its reason), kTimeout.
  Result<Peer> connect(std::string_view ticket, Duration timeout = std::chrono::seconds(10));
  // By address ("10.0.0.1:4000", "host:4000", "unix:@name") and secret. "eth0:10.0.0.1:4000", as
  // the other side may have it, is taken as well: the interface must exist here, and means nothing
  // else.
  Result<Peer> connect(const std::string& address, std::string_view secret,
                       Duration timeout = std::chrono::seconds(10));
  // The next peer that connected here. One that has left since is handed out only where it left
  // messages (limits::kPeersLeft). kTimeout.
  Result<Peer> accept(Duration timeout = std::chrono::seconds(10));
  // A descriptor that is readable while a peer waits for accept(); read nothing from it, accept
  // with a timeout of 0. Lifetime: the context's.
  Result<int> acceptFd();
  // Instead of accept(): called on the progress thread for each peer that connects from now on.
  void onPeer(std::function<void(Peer)> callback);
  std::vector<Peer> peers() const;
  // A ticket for one peer alone. kNotSupported in a forked child.
  Result<Invitation> invite();

  // Registers memory that stays the caller's. Errors: kInvalidArgument (not mapped, 0 bytes),
  // kPermissionDenied (remote write on read-only memory).
  Result<Region> registerRegion(void* pointer, size_t bytes, Access access);
  // A region that holds memory which nobody registered: one that was made for it before, or a new
  // one: of GPU memory all of the allocation (of VMM memory in chunks, all chunks that hold it), of
  // host memory all of the mapping, with at least `access`, so that many buffers share a
  // registration. The library keeps 4096, and lets go of those whose memory was freed; nobody
  // unregisters them. To look one up again costs a fraction of a microsecond. Host memory is for
  // transfers of the CPU and kLocal only: freed and mapped anew it would be the same to us, but not
  // to a GPU that has pinned it. Offsets are from Region::data(). Errors: as registerRegion().
  Result<Region> regionOf(const void* pointer, size_t bytes, Access access);
  // Makes and registers memory of the kind peers reach best. Zeroed. Freed by unregister().
  Result<Region> allocate(size_t bytes, const MemoryOptions& options = {});
  // New transfers are refused from now on; waits until running ones ended and every peer that
  // imported the region let go of it. OK: the memory is the caller's alone. kTimeout: somebody
  // still uses it, or the progress thread was too busy to tell; call again. kPeerSilent: a silent
  // peer may still write to it; the region is quarantined (dump() shows it) until that peer is
  // heard again or proven dead; call again to learn. OK also when it left before. Memory of
  // allocate() is freed when that happens.
  Status unregister(const Region& region, Duration timeout = std::chrono::seconds(10));

  // Everything pending, every peer and region, for people.
  std::string dump() const;
  // Counters in Prometheus' text format.
  std::string metrics() const;
  const Config& config() const;

  // Library's own: the peers that no call has taken yet (arrivals.h). Lifetime: the context's.
  Arrivals& arrivals() const;
  // Library's own: what runs programs on a device that the context was created with; else
  // kInvalidArgument, naming those that it has.
  Result<std::shared_ptr<DeviceExecutor>> executor(Device device) const;

 private:
  friend class Invitation;
  class State;
  explicit Context(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// A ticket with a secret of its own, for one peer: who connects with it is met here, and not by
// Context::accept() or onPeer(). It is worth nothing any more once a peer has connected with it, it
// was cancelled or destroyed, or the context is gone; an attempt that fails half way does not use
// it up, and neither does a peer that leaves before it was taken. Of several that come before, the
// first is taken, and the others wait for reopen() until the invitation ends. Thread-safe.
class Invitation {
 public:
  Invitation() = default;
  ~Invitation() { cancel(); }
  Invitation(Invitation&&) = default;
  Invitation& operator=(Invitation&& other) noexcept;

  explicit operator bool() const { return invited_ != nullptr; }
  // As Context::ticket(). Contains the secret.
  std::string ticket() const;
  // The peer that connected with the ticket, once. kTimeout leaves the invitation open; kCancelled;
  // kClosed (the context is gone, the peer was taken before).
  Result<Peer> accept(Context::Duration timeout = std::chrono::seconds(10));
  // Another peer may connect with the ticket instead of the one that was taken. False: the
  // invitation was cancelled, the context is gone, or nobody was taken.
  bool reopen();
  // Whoever waits in accept() gets kCancelled. Peers that connected and were not taken are closed.
  void cancel();

 private:
  friend class Context;
  Invitation(std::weak_ptr<Context::State> context, std::shared_ptr<Invited> invited)
      : context_(std::move(context)), invited_(std::move(invited)) {}
  std::weak_ptr<Context::State> context_;
  std::shared_ptr<Invited> invited_;
};

}  // namespace peerlane
