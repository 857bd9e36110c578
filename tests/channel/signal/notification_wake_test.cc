// SPDX-License-Identifier: Apache-2.0
//
// A thread that polls notifications loses its core at the worst moment, and the message that comes
// meanwhile still makes the descriptor readable. This binary replaces the unlock of the C library's
// mutexes by one that stands still where the test wants it.
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/core/thread_sleeps.h"

namespace {

// Of the thread that polls: the unlocks that it has counted, and the one at which it stands.
struct Stand {
  bool counts = false;
  int seen = 0;
  int at = 0;  // none
};
constinit thread_local Stand stand;
std::atomic<bool> isStanding{false};
std::atomic<bool> mayGoOn{false};

}  // namespace

extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
  if (stand.counts && ++stand.seen == stand.at) {
    isStanding.store(true);
    while (!mayGoOn.load()) std::this_thread::yield();
  }
  return real(mutex);
}

namespace peerlane {
namespace {

// No heartbeat wakes anybody while a test lasts.
Config withoutHeartbeats() {
  Config config = configFor(kMapped);
  config.heartbeat = std::chrono::minutes(10);
  config.peerTimeout = std::chrono::minutes(60);
  return config;
}

bool pollStanding(const Peer& peer, int at, int& unlocks) {
  stand = {.counts = true, .at = at};
  const bool isTaken = pollNotification(peer).isOk();
  unlocks = stand.seen;
  stand = {};
  return isTaken;
}

TEST(NotificationWake, WhoeverStandsBeforeAnUnlockHidesNoMessage) {
  const ContextPair pair(withoutHeartbeats());
  PeerCore& receiver = *pair.toA.core();
  int engine = 0;
  ASSERT_OK(receiver.progress().call([&] { engine = gettid(); }));
  const auto engineSleeps = [&] { return threadSleeps(engine); };
  pollfd wanted{MUST(notificationFd(pair.toA)), POLLIN, 0};
  int unlocks = 0;
  ASSERT_FALSE(pollStanding(pair.toA, 0, unlocks));
  ASSERT_GE(unlocks, 1);
  for (int at = 1; at <= unlocks; ++at) {
    ASSERT_TRUE(soon(engineSleeps));
    isStanding.store(false);
    mayGoOn.store(false);
    bool isTaken = false;
    std::thread poller([&] {
      int same = 0;
      isTaken = pollStanding(pair.toA, at, same);
    });
    EXPECT_TRUE(soon([] { return isStanding.load(); }));
    const uint64_t woken = receiver.metrics().wakeups().value();
    const Notify empty{.message = std::span<const std::byte>()};
    EXPECT_OK(MUST(notify(pair.toB, empty)).wait(kSoon));
    // It has looked in vain, or has told of the message.
    EXPECT_TRUE(soon([&] { return receiver.metrics().wakeups().value() != woken; }));
    EXPECT_TRUE(soon(engineSleeps));
    mayGoOn.store(true);
    poller.join();
    if (!isTaken) {
      EXPECT_EQ(poll(&wanted, 1, 20'000), 1) << "it stood at unlock " << at << " of " << unlocks;
      EXPECT_OK(pollNotification(pair.toA).status());
    }
    EXPECT_EQ(pollNotification(pair.toA).status().code(), Code::kTryAgain);
  }
}

}  // namespace
}  // namespace peerlane
