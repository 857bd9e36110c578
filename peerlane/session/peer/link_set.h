// SPDX-License-Identifier: Apache-2.0
//
// LinkSet: the links to one peer, best first, and which of them reaches which memory. A link that
// fails leaves its work to the others: what it had not confirmed ends with its failure, and is not
// repeated. Owned by PeerCore. LinkNegotiation fills it on the progress thread; the links are
// constant once the peer is ready, and may then be read by any thread. poll() is for the thread
// that has the turn; attach(), fail() and close() are the progress thread's.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "peerlane/memory/memory_provider.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/link.h"

namespace peerlane {

// How bytes get from memory of this side to a region of the peer, or back.
struct LinkRoute {
  enum class By : uint8_t {
    kNothing,  // no link does it straight
    kMapping,  // the processor that copies reaches both
    kAgent,    // the link's agent copies
  };
  By by = By::kNothing;
  const Link* link = nullptr;
};

// Why the link's agent does not copy this memory of this side, of a kind of which it copies others.
// Empty: it does.
inline std::string whyNotTaken(const Link& link, const RegionRecord& record) {
  if (record.memory.device.kind == DeviceKind::kHost || !link.traits().takes) return {};
  const Status taken = link.traits().takes(record);
  return taken.isOk() ? std::string() : std::string(taken.message());
}

// The memory of this side that takes part in a transfer.
struct LocalMemory {
  std::optional<MemoryKind> ofHost{};
  std::optional<MemoryKind> ofDevice{};
  bool onStream = false;  // in the order of a stream, so a GPU copies
  Device place{};         // of the first of it
};

class LinkSet {
 public:
  // The links were made: one of them carries words. The next functions require it.
  bool isMade() const { return words_.load(std::memory_order_acquire) != nullptr; }
  // The link for counters and other words; another one after it has failed.
  Link& words() const { return *words_.load(std::memory_order_acquire); }
  // The link that attached it.
  Link& of(const RemoteMemory& memory) const;
  // Those that have not failed, best first.
  std::vector<Link*> live() const;
  // The first of them that maps memory of devices for the devices of this side; else null.
  const Link* mapsDevices() const;
  // The first of them, among `names` in that order, that grants memory of this kind; else null.
  Link* granting(const MemoryKind& kind, const std::vector<std::string>& names) const;
  Link* named(std::string_view name) const;
  bool isLive(const Link& link) const;
  // Devices, at either side, may add to counters: these are lines then
  // (program/words/counter_line.h).
  bool devicesAdd() const { return devicesAdd_; }
  // Transports that make no link between the two, each with the reason.
  const std::vector<control::Refusal>& refused() const { return refused_; }
  // The peer may write memory of this side without an agent of this side.
  bool peerWritesAlone() const;

  // The best link that reaches both, a region of the peer and memory of this side. Of links that
  // only their devices tell apart (LinkRails) it is the one whose device is nearest to this side's
  // memory, and of those that are as near the first. `kind`: empty where the reference does not say
  // it, then whatever is at the device counts. Allocates nothing.
  LinkRoute route(const RegionReference& region, const LocalMemory& local) const;
  // The same for one that is imported: over the link that attached it, or not at all.
  LinkRoute routeOver(const RemoteMemory& memory, const LocalMemory& local) const;
  // The same for any kind of the peer's memory.
  LinkRoute route(const MemoryKind& remote, const LocalMemory& local) const;
  // The link of route(), where it is one of several that only their devices tell apart; else null.
  // Allocates nothing.
  const Link* nearest(const RegionReference& region, const LocalMemory& local) const {
    if (!hasRails_) return nullptr;
    const Link* const link = route(region, local).link;
    return link != nullptr && link->traits().rails ? link : nullptr;
  }
  // Why a link that is tried does not reach both, or is not the nearest that does, each link with
  // its reason; those that were never made, too.
  std::vector<control::Refusal> whyNot(const MemoryKind& remote, const LocalMemory& local) const;
  // How far the device of a link is from this side's memory, for people; empty where that decides
  // nothing.
  static std::string nearnessOf(const Link& link, const LocalMemory& local);
  // Why bytes cannot go straight between a region of the peer and this side's memory. Empty when
  // they can, as far as is known before the import.
  std::string whyStaged(const RegionReference& region, const LocalMemory& local) const;
  // Why GPUs of the peer cannot reach this memory of this side's. Empty when they can, as far as is
  // known here.
  std::string whyOutOfReach(const MemoryDescription& memory) const;

  // --- The thread that has the turn ---
  // True when something moved.
  bool poll();
  // The kTryAgain of the first link that is still being made, which keeps the peer from being
  // ready; else OK.
  Status pending() const { return firstWith(Code::kTryAgain); }
  // The same for kPeerSilent: the peer takes nothing over that link.
  Status silence() const { return firstWith(Code::kPeerSilent); }
  // A link has failed since the last call.
  bool hasNewFailure() { return newFailure_.exchange(false, std::memory_order_acq_rel); }

  // --- Progress thread ---
  // kCorrupt where there is no such link; the link's own errors.
  Result<RemoteMemory> attach(const std::string& name, Grant grant);
  // Links that have failed by their own account and were not given up yet.
  std::vector<Link*> failed() const;
  // Gives one up: nothing new goes over it. The caller closes it once the others have taken over.
  // Not OK: no other link carries words.
  Status fail(Link& link, const Status& why);
  void close(Code code);
  // In a forked child: nothing is freed, because locks may be held for ever.
  void abandon();
  // For LinkNegotiation.
  void refuse(std::string transport, std::string reason, const LinkAbilities& abilities);
  bool isRefused(const std::string& transport) const;
  void add(std::unique_ptr<Link> link);
  // `name` is given up before the peer is ready.
  void drop(const std::string& name);
  void open() { words_.store(firstForWords(), std::memory_order_release); }
  void setDevicesAdd(bool mayAdd) { devicesAdd_ = mayAdd; }

 private:
  struct Made {
    std::unique_ptr<Link> link;
    std::atomic<bool> isGivenUp{false};  // release by fail(), acquire by all others
    std::string why;                     // written before isGivenUp
    std::atomic<bool> isTold{false};     // its failure; by the thread with the turn
  };
  Link* firstForWords() const;
  LinkRoute route(const MemoryKind* remote, MemoryPlace place, const LocalMemory& local) const;
  Status firstWith(Code code) const;
  bool isLive(const Made& made) const { return !made.isGivenUp.load(std::memory_order_acquire); }
  // "; cuda_ipc: ..." for each transport that was refused and would reach memory at `place`.
  std::string refusalsOf(MemoryPlace place, const char* before, const char* after) const;
  std::string whyNot(const Link& link, const MemoryKind& remote, const LocalMemory& local) const;
  static std::string whyFarther(const Link& link, const Link& taken, const LocalMemory& local);

  std::vector<std::unique_ptr<Made>> made_;  // best first
  std::atomic<Link*> words_{nullptr};        // release by the progress thread, acquire by all
  std::atomic<bool> newFailure_{false};
  bool devicesAdd_ = false;
  bool hasRails_ = false;
  std::vector<control::Refusal> refused_;
  std::vector<LinkAbilities> refusedAbilities_;  // of each, as far as they are known here
};

}  // namespace peerlane
