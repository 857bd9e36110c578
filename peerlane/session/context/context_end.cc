// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/context_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/context/farewell.h"
#include "peerlane/session/context/invitations.h"
#include "peerlane/session/context/peer_table.h"

namespace peerlane {
namespace {

// Memory of a context that has ended, which somebody may still write to by its address: nobody else
// gets its place while this process lives.
struct Kept {
  Mutex mutex;
  std::vector<std::shared_ptr<const void>> memory PEERLANE_GUARDED_BY(mutex);
};

void keepForGood(std::shared_ptr<const void> memory) {
  static auto* const kept = new Kept;
  const MutexLock lock(kept->mutex);
  kept->memory.push_back(std::move(memory));
}

std::string inWords(const LentRegions& lent) {
  if (lent.count == 0) return {};
  std::string text = ", and may still write to ";
  text += lent.count == 1
              ? lent.first
              : std::to_string(lent.count) + " regions of " + std::to_string(lent.bytes) +
                    " bytes, of which one is " + lent.first;
  if (lent.kept == lent.count) return text + ": the memory is kept";
  if (lent.kept != 0) text += ": " + std::to_string(lent.kept) + " are kept";
  return text + "; do not use " + (lent.kept != 0 ? "the others' memory" : "the memory") +
         " for anything else before that process has ended";
}

}  // namespace

void LentRegions::add(const RegionRecord& record, bool isKept) {
  if (count++ == 0)
    first = fmt::format("region {} ({} bytes at {})", record.allocation, record.bytes,
                        static_cast<const void*>(record.base));
  bytes += record.bytes;
  kept += isKept ? 1 : 0;
}

void ContextEnd::begin() {
  if (around_.progress.onLoopThread()) return closeAll();
  // Not waited for without a limit: a callback of the user's that does not return, or waits for a
  // lock of the thread that calls exit(), would keep the process for ever.
  around_.progress.post([this, owner = around_.owner] {
    if (const auto alive = owner.lock()) closeAll();
  });
}

// Progress thread.
void ContextEnd::closeAll() {
  around_.closeDoors();
  around_.arrivals.close();
  around_.invitations.close();
  const auto peers = around_.peers.beginClosing();
  around_.progress.notifyWaiters();
  for (const auto& peer : peers) peer->close();
}

void ContextEnd::await(Clock::time_point deadline, Leaver leaver) {
  // exit() may be called in a callback: then nobody can wait for the answers.
  if (around_.progress.onLoopThread()) return;
  // A peer is gone when the last copy to or from it has ended, and when it has answered the
  // goodbye, before which it reads all that was said to it.
  (void)around_.progress.wait(
      [this, leaver] {
        return leaver == Leaver::kProcess ? around_.peers.haveSaidAll() : around_.peers.haveLeft();
      },
      std::min(deadline, Clock::now() + std::chrono::nanoseconds(around_.config.peerTimeout)));
}

void ContextEnd::finish() {
  begin();
  await(Clock::now() + kGoodbyePatience, Leaver::kContext);
  // Finished tasks leave by a turn; what users still hold keeps only dead peers alive. A goodbye
  // that lies here already is read by the rounds of the loop in stop().
  (void)around_.progress.call([this] {
    around_.progress.turn();
    around_.absentees.stop();
  });
  around_.progress.stop();
  letGoOfTheRest();
}

// A peer that said no goodbye in time (a frozen process) is let go of without one.
void ContextEnd::letGoOfTheRest() {
  // They last until their memory is kept: with a peer its slab leaves the table of regions.
  const auto rest = around_.peers.takeRest();
  for (const auto& [number, peer] : rest)
    if (!peer->mayStillWrite()) around_.regions.forgetPeer(number);
  auto lent = keepWhatIsLent();
  for (const auto& [number, peer] : rest)
    if (peer->hasLeft())
      PEERLANE_LOG_INFO("peer {} (process {}) said goodbye, and did not hear this side's in time",
                        number, peer->processId());
    else
      PEERLANE_LOG_WARN("peer {} (process {}) did not say goodbye{}", number, peer->processId(),
                        inWords(std::exchange(lent[number], {})));
  for (const auto& [number, regions] : lent)
    if (regions.count != 0)
      PEERLANE_LOG_WARN("peer {} left without a goodbye{}", number, inWords(regions));
}

// A region is one line for no peer: a peer may have thousands.
std::map<RegionTable::PeerNumber, LentRegions> ContextEnd::keepWhatIsLent() {
  std::map<RegionTable::PeerNumber, LentRegions> lent;
  for (const auto& record : around_.regions.imported()) {
    const auto owned = record->owned.get();
    const auto acquired = record->acquired.get();
    // Of a GPU: a peer that mapped it holds what it writes to. Of other memory its provider is not
    // told that it is free.
    if (record->memory.device.kind == DeviceKind::kHost) {
      if (owned != nullptr) keepForGood(owned);
      if (acquired) keepForGood(acquired);
    }
    for (const RegionTable::PeerNumber number : around_.regions.importers(record->allocation))
      lent[number].add(*record, /*isKept=*/owned != nullptr);
  }
  return lent;
}

}  // namespace peerlane
