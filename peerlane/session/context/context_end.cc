// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/context_end.h"

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

}  // namespace

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
  // Finished tasks leave by a turn; what users still hold keeps only dead peers alive.
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
  for (const auto& [number, peer] : rest) {
    if (!peer->mayStillWrite()) around_.regions.forgetPeer(number);
    PEERLANE_LOG_WARN("peer {} (process {}) did not say goodbye", number, peer->processId());
  }
  for (const auto& record : around_.regions.imported()) {
    const auto owned = record->owned.get();
    const auto acquired = record->acquired.get();
    const bool isOurs = owned != nullptr;
    // Of a GPU: a peer that mapped it holds what it writes to. Of other memory its provider is not
    // told that it is free.
    if (record->memory.device.kind == DeviceKind::kHost && isOurs) keepForGood(owned);
    if (record->memory.device.kind == DeviceKind::kHost && acquired) keepForGood(acquired);
    PEERLANE_LOG_WARN(
        "region {} ({} bytes at {}) may still be written by a peer that did not say goodbye; {}",
        record->allocation, record->bytes, static_cast<const void*>(record->base),
        isOurs ? "it is kept" : "do not use its memory for anything else before that has ended");
  }
}

}  // namespace peerlane
