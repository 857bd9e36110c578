// SPDX-License-Identifier: Apache-2.0
//
// RegionTable: the registered memory of one context: the rights of peers, the peers that imported
// it, and whether its owner may have it back. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/counted_map.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/memory/memory_providers.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/memory/region_exports.h"
#include "peerlane/memory/use_gate.h"
#include "peerlane/os/mappings/free_watch.h"
#include "peerlane/os/mappings/freed_list.h"

namespace peerlane {

struct RegionRecord;

// A reference to the holder of a region's memory. Other threads may ask the holder while the region
// ends. Thread-safe.
template <typename T>
class MemoryHold {
 public:
  MemoryHold& operator=(std::shared_ptr<T> held) {
    const MutexLock lock(mutex_);
    held_ = std::move(held);
    return *this;
  }
  // Null: nothing does. It stays, as long as the caller has it, also when it is taken.
  std::shared_ptr<T> get() const {
    const MutexLock lock(mutex_);
    return held_;
  }
  std::shared_ptr<T> take() {
    const MutexLock lock(mutex_);
    return std::exchange(held_, nullptr);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<T> held_ PEERLANE_GUARDED_BY(mutex_);
};

// The watch of host memory of one region that the program may free without a word. When a part was
// freed, wasFreed() is true when the call that frees it has returned and FreeWatch::settle() after
// it, and it has put the region into the list. Where peers reach the region its gate is closed, too
// (kRevoked), because it is no more than the program asked for. Else it is a whole mapping, with
// other parts that are still in use, and only the registrations with devices are given up.
// Thread-safe.
class RegionFrees final : public FreedList::Link, private FreeWatch::Listener {
 public:
  explicit RegionFrees(RegionRecord& region) : region_(region) {}
  ~RegionFrees() { end(); }

  // Where the region is put when it was freed. Before anybody else knows the region.
  void setList(std::shared_ptr<FreedList> list) { list_ = std::move(list); }
  // Watches the region, whose part this is, from now on; more calls do nothing. Errors: those of
  // FreeWatch::watch(), which stay; kUnavailable for a second, because each try looks at all
  // mappings of the process.
  Status watch(const RegionRecord& region);
  void end();
  bool isWatched() const { return isWatched_.load(std::memory_order_acquire); }
  // A thread that enters the gate and then finds it false is seen in the gate by one that found it
  // true.
  bool wasFreed() const { return wasFreed_.load(std::memory_order_acquire); }
  // Null: it is at its end.
  std::shared_ptr<RegionRecord> record() const;

 private:
  void freed() noexcept override;

  RegionRecord& region_;
  std::shared_ptr<FreedList> list_;
  bool isLent_ = false;                 // before the watch begins
  std::atomic<bool> isWatched_{false};  // or was
  std::atomic<bool> wasFreed_{false};
  Mutex mutex_;
  Status refused_ PEERLANE_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point refusedAt_ PEERLANE_GUARDED_BY(mutex_){};
  std::unique_ptr<FreeWatch::Range> range_ PEERLANE_GUARDED_BY(mutex_);
};

// One registered range. Immutable except for what holds the memory, the gate, the pin, the flags
// isCached and isOverlapped, and the set of devices that were let in.
struct RegionRecord : std::enable_shared_from_this<RegionRecord> {
  uint64_t allocation = 0;  // never used twice in one context
  uint64_t generation = 0;  // random: a forged or stale reference does not match
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  Access access = Access::kLocal;
  MemoryDescription memory;
  MemoryHold<Allocation> owned;         // memory from Context::allocate
  bool isOurs = false;                  // it is that, or was, and the host's
  MemoryHold<AcquiredMemory> acquired;  // else: by which its provider holds it for us
  UseGate gate;
  // Kept by a registration cache (RegistrationCache): the program may free the memory without
  // telling the library.
  std::atomic<bool> isCached{false};
  // Another region of the table has some of its bytes, or had.
  std::atomic<bool> isOverlapped{false};
  // GPU memory: true when no part of [offset, +bytes) was freed since the registration. 40 ns for
  // each chunk.
  bool isStillThere(uint64_t offset, uint64_t length) const;
  // For links that give the memory to a device. Errors: kNotSupported (with each refused form),
  // kRevoked, the provider's.
  Result<ExportedRange> exportFor(const Importer& importer, uint64_t offset, uint64_t length) const;
  Result<MemoryFacts> facts() const;
  // For a caller that found the gate closed: kRevoked, or kClosed (it is being unregistered, or
  // was).
  Status whyClosed() const;
  std::shared_ptr<HeldMemory> held() const;  // null: memory that no provider holds (any more)
  PinSlot pin;  // host memory that devices of this process reach; released when the gate is drained
  // What links made of it for peers. Ends when the region is removed from its table.
  mutable RegionExports exports;
  // Of a cached region of host memory: links begin the watch before a device has its pages.
  mutable RegionFrees frees{*this};
  // GPU memory: which other GPUs of this process reach it. The set covers GPUs 0 to 63; for others
  // the answer is false.
  bool isOpenTo(Device device) const {
    return (openTo.load(std::memory_order_acquire) & bitOf(device)) != 0;
  }
  void setOpenTo(Device device) { openTo.fetch_or(bitOf(device), std::memory_order_release); }
  std::atomic<uint64_t> openTo{0};

 private:
  static uint64_t bitOf(Device device) {
    return device.index < 64 ? uint64_t{1} << device.index : 0;
  }
};

// kMaking: it is being registered, and nobody finds it. kRevoked: its provider took the memory
// back, or its program freed it, before it was unregistered.
enum class RegionState : uint8_t { kMaking, kLive, kClosing, kQuarantined, kRevoked };
const char* regionStateName(RegionState state);

struct RegionView {  // for dumps
  uint64_t allocation = 0;
  uint64_t bytes = 0;
  RegionState state = RegionState::kLive;
  uint64_t pins = 0;
  size_t importers = 0;
  std::string memory;
};

class RegionTable final : public RegionDirectory {
 public:
  using PeerNumber = uint64_t;

  RegionTable() = default;
  // Ends the exports of regions that are still there: handles may outlive the links that made them.
  ~RegionTable() override;

  // A region that nobody finds before publish(): meanwhile its ticket gets what drains it. Errors:
  // kPermissionDenied for remote write on read-only memory.
  Result<std::shared_ptr<RegionRecord>> begin(std::byte* base, uint64_t bytes, Access access,
                                              MemoryDescription memory,
                                              std::unique_ptr<Allocation> owned,
                                              std::unique_ptr<AcquiredMemory> acquired = nullptr);
  // It is live from now on. Errors: kRevoked (its provider took it back meanwhile, or it was
  // freed).
  Status publish(const RegionRecord& record);
  // Both.
  Result<std::shared_ptr<RegionRecord>> add(std::byte* base, uint64_t bytes, Access access,
                                            MemoryDescription memory,
                                            std::unique_ptr<Allocation> owned,
                                            std::unique_ptr<AcquiredMemory> acquired = nullptr);

  // The live region with this allocation id and generation. Errors: kInvalidArgument, kClosed (it
  // is being unregistered), kRevoked.
  Result<std::shared_ptr<RegionRecord>> find(uint64_t allocation, uint64_t generation) const;

  // RegionDirectory: for agents that serve peers.
  Result<PinnedMemory> pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                           uint64_t bytes, Access wanted) override;
  void unpin(uint64_t allocation) override;
  std::shared_ptr<const RegionRecord> holding(const std::byte* at, uint64_t bytes) const override;
  uint64_t changes() const override { return changes_.load(std::memory_order_acquire); }

  // As find(), and the peer holds an import from then on, and may therefore touch the memory
  // without asking again. Counted: a peer may ask again while its release of an earlier import is
  // on its way. Errors: also kPermissionDenied (registered for local use only).
  Result<std::shared_ptr<RegionRecord>> lend(uint64_t allocation, uint64_t generation,
                                             PeerNumber peer);
  void removeImporter(uint64_t allocation, PeerNumber peer);
  // The peer confirmed that it holds none of this region any more.
  void forgetImporter(uint64_t allocation, PeerNumber peer);
  // The peer has ended: it holds no import any more.
  void forgetPeer(PeerNumber peer);
  std::vector<PeerNumber> importers(uint64_t allocation) const;
  bool importsAny(PeerNumber peer) const;
  // Counts the imports of `from` as imports of `to` from now on.
  void passImports(PeerNumber from, PeerNumber to);
  // The regions that at least one peer imports.
  std::vector<std::shared_ptr<RegionRecord>> imported() const;
  bool isImporter(uint64_t allocation, PeerNumber peer) const;

  // One that is quarantined stays so when it is kClosing.
  void setState(uint64_t allocation, RegionState state);
  // True when the program has unregistered the region, or is doing so, and therefore waits until no
  // peer reaches it. False where it was revoked.
  bool isTakenBack(uint64_t allocation, uint64_t generation) const;
  // The regions that are live.
  std::vector<std::shared_ptr<RegionRecord>> live() const;
  // A region's gate was closed because its memory was taken back or freed.
  void countRevocation() { revocations_.fetch_add(1, std::memory_order_release); }
  // How many. For those who look at their regions only when one was. Any thread, in turns.
  uint64_t revocations() const { return revocations_.load(std::memory_order_acquire); }
  // Of the regions whose memory `provider` holds.
  std::vector<uint64_t> ticketsOf(const MemoryProvider& provider) const;
  // Forgets the region. Requires: its gate is closed and drained, and no peer imports it.
  void remove(uint64_t allocation);
  // The same of a region that is not live any more, unless a peer imports it: then nothing, and
  // false.
  bool removeUnlessLent(uint64_t allocation);

  std::vector<RegionView> view() const;
  size_t quarantined() const;

 private:
  struct Entry {
    std::shared_ptr<RegionRecord> record;
    RegionState state = RegionState::kMaking;
    bool isTakenBack = false;                  // it was kClosing: it may be quarantined since
    std::map<PeerNumber, uint64_t> importers;  // and how many imports
  };
  void noteOverlaps(RegionRecord& added) PEERLANE_REQUIRES(mutex_);
  Result<std::shared_ptr<RegionRecord>> look(uint64_t allocation, uint64_t generation) const
      PEERLANE_REQUIRES(mutex_);
  std::shared_ptr<RegionRecord> takeOut(uint64_t allocation) PEERLANE_REQUIRES(mutex_);

  std::atomic<uint64_t> revocations_{0};
  std::atomic<uint64_t> changes_{0};
  mutable Mutex mutex_;
  CountedMap<uint64_t, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
  // Allocations, by the power of two that their bytes do not exceed: of each size, only those that
  // begin so near below an address can have it, and one large region does not widen the look at
  // small ones.
  using ByBase = std::set<std::pair<const std::byte*, uint64_t>>;
  std::map<uint64_t, ByBase> bySize_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t nextAllocation_ PEERLANE_GUARDED_BY(mutex_) = 1;
};

}  // namespace peerlane
