// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/region_life.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "peerlane/core/deadline.h"
#include "peerlane/core/log.h"
#include "peerlane/memory/invalidation.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/session/context/peer_table.h"

namespace peerlane {
namespace {

// How long GPU memory that was freed without being unregistered may stay unnoticed.
constexpr std::chrono::milliseconds kSweepInterval{500};
// Between looks whether a region is free: a posting thread that lets go of it tells nobody.
constexpr std::chrono::milliseconds kSlice{1};
constexpr std::chrono::milliseconds kLongestSlice{16};
// For the progress thread to look at regions once more, when the caller's time is over.
constexpr std::chrono::milliseconds kLastLook{100};
// Between looks whether it is only a silent peer that an invalidation waits for.
constexpr std::chrono::nanoseconds kSilenceLook = std::chrono::milliseconds(500);

std::array<uint8_t, 16> rawId(const ContextId& id) {
  std::array<uint8_t, 16> raw{};
  std::transform(id.bytes().begin(), id.bytes().end(), raw.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  return raw;
}

Status checkOwn(const Region& region, const std::array<uint8_t, 16>& context) {
  if (!region) return Status(Code::kInvalidArgument, "unregister: an empty Region");
  if (region.owner() == context) return Status::ok();
  return Status(Code::kInvalidArgument, "region " + std::to_string(region.record()->allocation) +
                                            " is registered with another context");
}

}  // namespace

RegionLife::RegionLife(Surroundings around)
    : around_(std::move(around)),
      holders_(around_.regions, around_.peers, around_.absentees),
      id_(rawId(around_.context)),
      cache_(around_.regions, around_.providers,
             [this](const Record& made) {
               PEERLANE_RETURN_IF_ERROR(freed_.hear(*made));
               return watch(made);
             }),
      freed_(around_.progress, around_.regions, around_.owner,
             [this](const Record& freed) { (void)beginRevocation(freed, Cause::kFreed); }) {}

Region RegionLife::handleOf(Record record) const {
  return Region(std::move(record), id_);
}

Result<Region> RegionLife::add(std::byte* base, size_t bytes, Access access) {
  PEERLANE_ASSIGN(auto acquired, around_.providers.acquire(base, bytes));
  PEERLANE_ASSIGN(MemoryDescription memory, acquired->held().describe());
  PEERLANE_ASSIGN(auto record, around_.regions.begin(base, bytes, access, std::move(memory),
                                                     nullptr, std::move(acquired)));
  Status watched = watch(record);
  if (watched.isOk()) watched = around_.regions.publish(*record);
  if (!watched.isOk()) {
    (void)beginRevocation(record, Cause::kUnregistered);
    return watched;
  }
  return handleOf(std::move(record));
}

// Its provider may take the memory back from now on, and have the region end before this returns;
// it may have done so already, or may have been removed, while the region was being made. Requires:
// nobody finds the region yet.
Status RegionLife::watch(const Record& record) {
  const std::shared_ptr<AcquiredMemory> memory = record->acquired.get();
  PEERLANE_RETURN_IF_ERROR(memory->onInvalidation(
      [this, owner = around_.owner, weak = std::weak_ptr(record)](Duration timeout) {
        const auto alive = owner.lock();
        const Record known = weak.lock();
        return alive && known ? revoke(known, timeout) : Status::ok();
      }));
  if (around_.providers.has(memory->provider())) return Status::ok();
  return Status(Code::kUnavailable, "provider \"" + std::string(memory->provider().name()) +
                                        "\" was removed while it registered memory");
}

void RegionLife::stopSweeping() {
  sweepTimer_ = {};
  quarantineLines_.stop();
  freed_.stop();
}

Result<Region> RegionLife::allocate(size_t bytes, const AllocateOptions& options, Access access) {
  PEERLANE_ASSIGN(auto memory, around_.providers.allocate(bytes, options));
  PEERLANE_ASSIGN(MemoryDescription description, memory->describe());
  // The mapping of this side stays writable; no other process can make one that is.
  if (access == Access::kRemoteRead && description.kind == MemoryKind::kShared) {
    const Status sealed = sealAgainstWriters(description.backing.get());
    if (!sealed.isOk() && sealed.code() != Code::kNotSupported) return sealed;
    if (sealed.isOk()) description.text += ", which others can only read";
  }
  std::byte* base = memory->data();
  PEERLANE_ASSIGN(auto record, around_.regions.add(base, bytes, access, std::move(description),
                                                   std::move(memory)));
  return handleOf(std::move(record));
}

// The caller waits for nobody. A stale one that a transfer still uses leaves when that has ended.
Result<Region> RegionLife::regionOf(std::byte* address, size_t bytes, Access access) {
  std::vector<Record> stale;
  auto found = cache_.find(address, bytes, access, stale);
  for (const Record& record : stale)
    (void)beginRevocation(record, record->gate.isRevoked() ? Cause::kFreed : Cause::kUnregistered);
  if (!found.isOk()) return found.status();
  return handleOf(std::move(*found));
}

Status RegionLife::unregister(std::span<const Region> regions, Duration timeout) {
  for (const Region& region : regions) PEERLANE_RETURN_IF_ERROR(checkOwn(region, id_));
  // Before anything is changed: it could not be waited for.
  if (around_.progress.onLoopThread())
    return Status(Code::kInvalidArgument,
                  "unregister was called from a callback on the progress thread");
  const auto begin = Clock::now();
  const auto deadline = Progress::deadlineIn(timeout);
  // All are asked for before one is waited for.
  Revocations begun, toAsk;
  for (const Region& region : regions)
    if (auto revocation = beginRevocation(region.record(), Cause::kUnregistered, toAsk))
      begun.push_back(std::move(revocation));  // else an earlier call timed out, and it ended since
  if (!toAsk.empty()) ask(std::move(toAsk));
  return await(begun, &Revocation::gone, deadline, begin);
}

// The provider of the memory takes it back. Links let go of it last, so that as few transfers as
// possible fail at them, but also if a peer does not: a device may be all that reaches it.
Status RegionLife::revoke(const Record& record, Duration timeout) {
  const auto deadline = deadlineIn(timeout);
  const RevocationRef revocation = beginRevocation(record, Cause::kInvalidated);
  if (!revocation) return Status::ok();
  const auto begin = Clock::now();
  Status letGo;
  // Without a limit, too, a peer that stands still does not hold the provider up for ever.
  do {
    letGo = await({&revocation, 1}, &Revocation::letGo,
                  Progress::deadlineIn(std::min(timeLeft(deadline), kSilenceLook)), begin);
  } while (letGo.code() == Code::kTimeout && Clock::now() < deadline);
  const Status exports = record->exports.revoke(timeLeft(deadline));
  return letGo.isOk() ? exports : letGo;
}

Result<uint64_t> RegionLife::addProvider(std::shared_ptr<MemoryProvider> provider, int priority) {
  if (priority <= MemoryProviders::kHostPriority)
    return Status(Code::kInvalidArgument,
                  "a memory provider of priority " + std::to_string(priority) +
                      " is never asked: the one for host memory, of priority " +
                      std::to_string(MemoryProviders::kHostPriority) +
                      ", takes whatever is mapped; give a higher one");
  return around_.providers.add(std::move(provider), priority);
}

Status RegionLife::removeProvider(uint64_t id, Duration timeout) {
  // Of any context: as for invalidateMemory().
  if (LoopThreadScope::isHere())
    return Status(Code::kInvalidArgument,
                  "a memory provider was removed from a callback on a progress thread");
  const auto deadline = deadlineIn(timeout);
  PEERLANE_ASSIGN(const auto provider, around_.providers.remove(id));
  Status first;
  for (const uint64_t ticket : around_.regions.ticketsOf(*provider)) {
    const Status revoked = invalidateMemory(ticket, timeLeft(deadline));
    if (first.isOk()) first = revoked;
  }
  return first;
}

std::string RegionLife::describe() const {
  std::string text;
  for (const RegionView& region : around_.regions.view())
    text += "  region " + std::to_string(region.allocation) + " " + std::to_string(region.bytes) +
            " bytes " + regionStateName(region.state) + ", " + std::to_string(region.pins) +
            " transfers, " + std::to_string(region.importers) + " importers, " + region.memory +
            "\n";
  return text;
}

RegionLife::RevocationRef RegionLife::beginRevocation(const Record& record, Cause cause) {
  Revocations toAsk;
  RevocationRef revocation = beginRevocation(record, cause, toAsk);
  if (!toAsk.empty()) ask(std::move(toAsk));
  return revocation;
}

// No transfer may begin with the region from now on, and its importers are to be asked to let go,
// if it is in `toAsk` then. One that is unregistered leaves the table; others stay there, unless
// nobody would unregister them. Null: it is gone already.
RegionLife::RevocationRef RegionLife::beginRevocation(const Record& record, Cause cause,
                                                      Revocations& toAsk) {
  RevocationRef revocation;
  bool isNew = false;
  {
    const MutexLock lock(mutex_);
    if (const auto found = revocations_.find(record->allocation); found != revocations_.end()) {
      revocation = found->second;
    } else {
      if (around_.regions.find(record->allocation, record->generation).status().code() ==
          Code::kInvalidArgument)
        return nullptr;
      revocation = std::make_shared<Revocation>();
      revocation->record = record;
      revocation->cause = cause;
      revocations_[record->allocation] = revocation;
      isNew = true;
    }
  }
  const bool isTakenBack =
      cause == Cause::kUnregistered || record->isCached.load(std::memory_order_relaxed);
  const bool wasTakenBack = isTakenBack && revocation->isTakenBack.exchange(true);
  if (isTakenBack && !wasTakenBack)
    around_.regions.setState(record->allocation, RegionState::kClosing);
  else if (isNew)
    around_.regions.setState(record->allocation, RegionState::kRevoked);
  if (isNew || !record->gate.isRevoked())
    record->gate.close(cause == Cause::kUnregistered ? Code::kClosed : Code::kRevoked);
  if (cause != Cause::kUnregistered) around_.regions.countRevocation();
  if (isNew) {
    if (!isTakenBack || !endAtOnce(revocation)) toAsk.push_back(revocation);
  } else if (isTakenBack && !wasTakenBack) {
    around_.progress.post(
        [this, alive = around_.owner.lock(), revocation] { tryFinish(revocation); });
  }
  return revocation;
}

// Takes the region out where no peer, transfer or device is to be waited for: most regions of a
// program are only its own, and to wake the progress thread for each would take longer than all
// else. True: it is gone.
bool RegionLife::endAtOnce(const RevocationRef& revocation) {
  const RegionRecord& record = *revocation->record;
  if (!record.gate.drained() || !around_.regions.importers(record.allocation).empty()) return false;
  if (!unpin(revocation) || !record.exports.close() ||
      !around_.regions.removeUnlessLent(record.allocation))
    return false;
  revocation->letGo.store(true, std::memory_order_release);
  takenOut(revocation);
  return true;
}

// One after the other, because all have the same time. The status is that of the first one that is
// left.
Status RegionLife::await(std::span<const RevocationRef> revocations, Goal goal,
                         Clock::time_point deadline, Clock::time_point begin) {
  Revocations left;
  for (const RevocationRef& revocation : revocations) {
    if (revocation->has(goal)) continue;
    const auto words = [this, &revocation] { return holders_.inWords(*revocation); };
    const Progress::ListedWait listed(around_.progress, words, begin, deadline);
    awaitRevoked(revocation, goal, deadline);
    if (!revocation->has(goal)) left.push_back(revocation);
  }
  return left.empty() ? Status::ok() : lookOnceMore(left, goal, begin, deadline);
}

// Revocations are sent by the progress thread, those for one peer together.
void RegionLife::ask(Revocations revocations) {
  around_.progress.post([this, alive = around_.owner.lock(), revocations = std::move(revocations)] {
    {
      RegionHolders::Asking asking;
      for (const RevocationRef& revocation : revocations) {
        const auto done = [this, owner = around_.owner, revocation] {
          revocation->holders.fetch_sub(1);
          if (const auto still = owner.lock()) tryFinish(revocation);
        };
        const bool isFreed = revocation->cause != Cause::kUnregistered;
        holders_.ask(*revocation->record, isFreed, revocation->holders, done, asking);
      }
    }
    for (const RevocationRef& revocation : revocations) {
      revocation->holders.fetch_sub(1);
      tryFinish(revocation);
    }
  });
}

// Until the deadline, or an error that lookOnceMore() meets as well; `revocation` says whether the
// goal is reached.
void RegionLife::awaitRevoked(const RevocationRef& revocation, Goal goal,
                              Clock::time_point deadline) {
  const auto done = [revocation, goal] {
    return revocation->has(goal) ||
           (!revocation->asked.load(std::memory_order_acquire) && revocation->isFree());
  };
  // Growing, because each begins with a look without a pause, where there are cores for that.
  for (auto slice = kSlice;; slice = std::min(2 * slice, kLongestSlice)) {
    // Not a wait that takes turns: the progress thread leaves its work to such a thread, and would
    // have to be woken for each message, which it alone may read.
    const Status waited =
        around_.progress.waitAsleep(done, std::min(deadline, Clock::now() + slice));
    if (revocation->has(goal)) return;
    if (waited.isOk())
      askToFinish(revocation);
    else if (waited.code() != Code::kTimeout)
      return;
    if (Clock::now() >= deadline) return;
  }
}

void RegionLife::askToFinish(const RevocationRef& revocation) {
  if (revocation->asked.exchange(true)) return;
  around_.progress.post([this, owner = around_.owner, revocation] {
    if (const auto alive = owner.lock()) tryFinish(revocation);
    // A post that is refused looks as if it used the region: then it is asked again.
    // Otherwise only a device that has to let go of its pages is left to wait for.
    if (!revocation->unpinning.load()) revocation->asked.store(false, std::memory_order_release);
  });
}

// The progress thread alone takes regions out, and knows who is silent. It may stand in a callback,
// so it is not waited for for long either: once for all regions, however many there are.
Status RegionLife::lookOnceMore(const Revocations& left, Goal goal, Clock::time_point begin,
                                Clock::time_point deadline) {
  const auto nameOf = [](const RevocationRef& revocation) {
    return "region " + std::to_string(revocation->record->allocation);
  };
  Status first;
  const auto look = [&] {
    for (const RevocationRef& revocation : left) {
      tryFinish(revocation);
      if (revocation->has(goal)) continue;
      quarantine(revocation);
      if (!first.isOk()) continue;
      if (revocation->quarantined)
        first = Status(Code::kPeerSilent, nameOf(revocation) +
                                              " is quarantined: a peer that is silent, or "
                                              "left without a goodbye, may still write to it");
      else
        first = Status(Code::kTimeout, "waited " + durationInWords(Clock::now() - begin) + " for " +
                                           holders_.inWords(*revocation));
    }
  };
  const Status looked = around_.progress.call(look, std::max(deadline, Clock::now() + kLastLook));
  const std::string more =
      left.size() == 1 ? "" : ", and " + std::to_string(left.size() - 1) + " more,";
  if (looked.code() == Code::kTimeout)
    return looked.withContext(nameOf(left.front()) + more + " is not let go of yet");
  PEERLANE_RETURN_IF_ERROR(looked);
  return first;
}

// Progress thread.
void RegionLife::tryFinish(const RevocationRef& revocation) {
  if (revocation->gone.load(std::memory_order_acquire)) return;
  if (!revocation->isFree()) return;
  if (!unpin(revocation)) return;
  if (std::exchange(revocation->quarantined, false)) around_.metrics.quarantinedRegions().add(-1);
  const RegionRecord& record = *revocation->record;
  // For memory that a provider takes back its call does so (revoke()).
  if (!revocation->letGo.exchange(true) && revocation->cause == Cause::kFreed)
    if (const Status left = record.exports.revoke(Duration(0));
        !left.isOk() && revokedLines_.allows())
      PEERLANE_LOG_WARN("region {} was revoked: {}{}", record.allocation, left.toString(),
                        revokedLines_.leftOut());
  if (!revocation->isTakenBack.load()) {
    around_.regions.setState(record.allocation, RegionState::kRevoked);
    return around_.progress.notifyWaiters();
  }
  // A link on another thread still asks the provider of the memory, or has just taken it back.
  if (!revocation->record->exports.close()) return tryFinishLater(revocation);
  revocation->again = {};  // here: the last reference may go on another thread
  around_.regions.remove(record.allocation);
  takenOut(revocation);
}

// The region has left the table.
void RegionLife::takenOut(const RevocationRef& revocation) {
  revocation->record->owned.take();
  revocation->record->acquired.take();
  {
    const MutexLock lock(mutex_);
    revocations_.erase(revocation->record->allocation);
  }
  revocation->gone.store(true, std::memory_order_release);
  around_.progress.notifyWaiters();
}

// Progress thread.
void RegionLife::tryFinishLater(const RevocationRef& revocation) {
  revocation->again = around_.progress.loop().after(
      kSlice, [this, owner = around_.owner, weak = std::weak_ptr(revocation)] {
        const auto alive = owner.lock();
        if (const auto known = weak.lock(); alive && known) tryFinish(known);
      });
}

// The thread that may take the region out. True once no device reaches the memory; where that is
// later, tryFinish() will be called.
bool RegionLife::unpin(const RevocationRef& revocation) {
  if (!revocation->unpinning.exchange(true))
    revocation->record->pin.release(
        [this, owner = around_.owner, revocation, caller = std::this_thread::get_id()] {
          revocation->unpinned.store(true, std::memory_order_release);
          const auto alive = owner.lock();
          if (!alive || std::this_thread::get_id() == caller) return;
          around_.progress.post([this, alive, revocation] { tryFinish(revocation); });
        });
  return revocation->unpinned.load(std::memory_order_acquire);
}

// Progress thread. Only silence quarantines; a slow peer is merely waited for.
void RegionLife::quarantine(const RevocationRef& revocation) {
  if (revocation->quarantined) return;
  const uint64_t allocation = revocation->record->allocation;
  const auto silent = holders_.whoIsSilent(allocation);
  if (!silent) return;
  revocation->quarantined = true;
  around_.metrics.quarantinedRegions().add(1);
  around_.regions.setState(allocation, RegionState::kQuarantined);
  quarantineLines_.add(around_.progress.loop(), silent->peer, silent->isAbsent, allocation);
}

// GPU memory that was freed, and perhaps given to somebody else, while it is registered: the
// owner's next post would notice, but peers may never come by here.
void RegionLife::sweep() {
  std::vector<Record> untold;  // of the program's own regions
  for (const Record& record : around_.regions.live()) {
    if (record->memory.device.kind != DeviceKind::kCuda || record->owned.get() != nullptr ||
        record->isStillThere(0, record->bytes))
      continue;
    if (!record->isCached.load(std::memory_order_relaxed)) untold.push_back(record);
    (void)beginRevocation(record, Cause::kFreed);
  }
  if (!untold.empty())
    PEERLANE_LOG_WARN(
        "region {} ({} bytes of {}){} was freed without being unregistered; peers are told to let "
        "go",
        untold[0]->allocation, untold[0]->bytes, untold[0]->memory.device.toString(),
        untold.size() == 1 ? "" : ", and " + std::to_string(untold.size() - 1) + " more,");
  for (const auto& transport : around_.transports) transport->sweep();
  sweepTimer_ = around_.progress.loop().after(kSweepInterval, [this] { sweep(); });
}

}  // namespace peerlane
