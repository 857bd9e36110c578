// SPDX-License-Identifier: Apache-2.0
//
// RegionLife: the regions of one context from their registration until nobody can touch their
// memory any more: it registers and allocates, asks every importer to let go of a region that is
// unregistered, waits for them, and puts a region in quarantine while a silent peer may still write
// to it. A region whose memory its provider takes back, or that was freed without being
// unregistered (GPU memory, which it finds by itself, and cached host memory that is watched), is
// let go of in the same way, and stays in the table as Revoked until its user unregisters it.
//
// Threads: any, but for the calls that say otherwise. The progress thread takes a region out, but
// for one that nobody uses or imports: the thread that unregisters it. Under its lock no call of
// the engine or a peer is made; the lock of RegionTable may be taken. Owner: the context's state.
// Posts that ask the importers keep it alive; the calls that peers, absentees and devices make
// later do not.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/counted_map.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/metrics.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_providers.h"
#include "peerlane/memory/region.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/memory/registration_cache.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/context/freed_regions.h"
#include "peerlane/session/context/quarantine_lines.h"
#include "peerlane/session/context/region_holders.h"
#include "peerlane/session/context/region_revocation.h"
#include "peerlane/session/wire/ticket.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class Absentees;
class PeerTable;

class RegionLife {
 public:
  using Duration = std::chrono::nanoseconds;

  struct Surroundings {
    ContextId context;
    Progress& progress;
    Metrics& metrics;
    MemoryProviders& providers;
    RegionTable& regions;
    const PeerTable& peers;
    Absentees& absentees;
    const std::vector<std::unique_ptr<Transport>>& transports;
    std::weak_ptr<void> owner;  // the context's state
  };
  explicit RegionLife(Surroundings around);

  // As the calls of Context.
  Result<Region> add(std::byte* base, size_t bytes, Access access);
  Result<Region> allocate(size_t bytes, const AllocateOptions& options, Access access);
  Result<Region> regionOf(std::byte* address, size_t bytes, Access access);
  Status unregister(std::span<const Region> regions, Duration timeout);
  Result<uint64_t> addProvider(std::shared_ptr<MemoryProvider> provider, int priority);
  Status removeProvider(uint64_t id, Duration timeout);
  // One line for each region, for dumps.
  std::string describe() const;

  // --- Progress thread ---
  // Looks for GPU memory that was freed, now and every half second until stopSweeping().
  void sweep();
  // No memory that is freed is noticed from now on, but by those who use it.
  void stopSweeping();

 private:
  using Clock = std::chrono::steady_clock;
  using Record = std::shared_ptr<RegionRecord>;

  using Revocation = RegionRevocation;
  using Cause = Revocation::Cause;
  using RevocationRef = std::shared_ptr<Revocation>;
  using Revocations = std::vector<RevocationRef>;
  using Goal = Revocation::Goal;  // letGo or gone

  Region handleOf(Record record) const;
  Status watch(const Record& record);
  Status revoke(const Record& record, Duration timeout);
  RevocationRef beginRevocation(const Record& record, Cause cause);
  RevocationRef beginRevocation(const Record& record, Cause cause, Revocations& toAsk);
  bool endAtOnce(const RevocationRef& revocation);
  void ask(Revocations revocations);
  Status await(std::span<const RevocationRef> revocations, Goal goal, Clock::time_point deadline,
               Clock::time_point begin);
  void awaitRevoked(const RevocationRef& revocation, Goal goal, Clock::time_point deadline);
  void askToFinish(const RevocationRef& revocation);
  Status lookOnceMore(const Revocations& left, Goal goal, Clock::time_point begin,
                      Clock::time_point deadline);
  void tryFinish(const RevocationRef& revocation);
  void takenOut(const RevocationRef& revocation);
  void tryFinishLater(const RevocationRef& revocation);
  bool unpin(const RevocationRef& revocation);
  void quarantine(const RevocationRef& revocation);

  const Surroundings around_;
  const RegionHolders holders_;
  const std::array<uint8_t, 16> id_;  // of the context, as its regions carry it
  RegistrationCache cache_;
  FreedRegions freed_;
  Timer sweepTimer_;  // progress thread, as the next two
  QuarantineLines quarantineLines_;
  LogLimit revokedLines_;
  Mutex mutex_;
  CountedMap<uint64_t, RevocationRef> revocations_ PEERLANE_GUARDED_BY(mutex_);  // by allocation
};

}  // namespace peerlane
