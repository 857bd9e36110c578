// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/farewell.h"

#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/os/process.h"

namespace peerlane {
namespace {

struct Speaker {
  std::weak_ptr<void> who;
  Farewell farewell;
};

// Never destroyed: exit() runs while other threads do. A forked child has one of its own, because
// the lock of its parent's may be held for ever; it keeps that one's address, so that leak checkers
// see what it holds.
struct Speakers {
  explicit Speakers(const Speakers* before) : parents(before) {}

  const Speakers* const parents;
  const uint64_t forks = forkGeneration();
  Mutex mutex;
  std::vector<Speaker> all PEERLANE_GUARDED_BY(mutex);
};

std::atomic<Speakers*> speakers{nullptr};

Speakers& ofThisProcess() {
  Speakers* known = speakers.load(std::memory_order_acquire);
  if (known != nullptr && known->forks == forkGeneration()) return *known;
  auto fresh = std::make_unique<Speakers>(known);
  if (speakers.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel))
    return *fresh.release();
  return *known;
}

void sayAll() {
  Speakers& here = ofThisProcess();
  std::vector<Speaker> all;
  {
    const MutexLock lock(here.mutex);
    all.swap(here.all);
  }
  const auto deadline = std::chrono::steady_clock::now() + kGoodbyePatience;
  for (const Speaker& speaker : all)
    if (const auto alive = speaker.who.lock()) speaker.farewell.begin();
  for (const Speaker& speaker : all)
    if (const auto alive = speaker.who.lock()) speaker.farewell.await(deadline);
}

// When the program is loaded, so that it is called behind what the program itself has registered:
// that may use its peers still. Forked children inherit it. Where a link needs something that
// exit() takes away before, it is called then.
[[maybe_unused]] const int kRegistered = (setGoodbyes(&sayAll), std::atexit(sayAll));

}  // namespace

void sayAtExit(std::weak_ptr<void> who, Farewell farewell) {
  Speakers& here = ofThisProcess();
  const MutexLock lock(here.mutex);
  std::erase_if(here.all, [](const Speaker& speaker) { return speaker.who.expired(); });
  here.all.push_back({std::move(who), std::move(farewell)});
}

}  // namespace peerlane
