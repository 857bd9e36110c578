// SPDX-License-Identifier: Apache-2.0
#include "explore/inbox_protocol.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>

namespace peerlane::explorer {
namespace {

// Where a thread stands. The steps of a user's thread are those of NotificationInbox::pop(), those
// of the progress thread are those of turn() and Progress::run().
enum class At : uint8_t {
  kOutside,  // asleep on the descriptor; between two polls; asleep in the engine
  kLock,     // wants the lock
  kMark,     // a turn: has found it taken
  kRetry,    //
  kTake,     // has the lock; looks into the slab
  kHandOut,  // a turn: makes the descriptor readable
  kUnlock,   //
  kLook,     // has let go; looks whether a turn wants the lock
  kWake,     //
  kDecide,   // the progress thread, after a turn
};

struct Thread {
  At at = At::kOutside;
  bool moved = false;  // by this turn or poll
  bool sees = false;   // that the lock is wanted
  auto operator<=>(const Thread&) const = default;
};

constexpr size_t kEngine = 0;
constexpr size_t kPoller = 1;
constexpr size_t kSleeper = 2;

struct Inbox {
  const InboxRules* rules = nullptr;
  std::array<Thread, 3> threads{};
  uint32_t toCome = 0;
  uint32_t polls = 0;    // that are still made
  uint32_t slab = 0;     // notifications there
  uint32_t waiting = 0;  // in the inbox
  bool isLocked = false;
  bool isWanted = false;
  bool isReadable = false;  // the descriptor
  bool isAsleep = false;    // as the engine says
  bool isRung = false;      // the engine does not sleep on
  auto operator<=>(const Inbox&) const = default;

  std::vector<Step<Inbox>> steps() const {
    std::vector<Step<Inbox>> steps;
    if (toCome != 0 && slab < rules->slots) {
      Step<Inbox> step{"the peer leaves one", *this};
      --step.next.toCome;
      ++step.next.slab;
      step.next.wakeEngine();
      steps.push_back(std::move(step));
    }
    for (size_t i = 0; i < threads.size(); ++i) {
      static constexpr std::array kNames{"the engine", "the poller", "the sleeper"};
      Step<Inbox> step{kNames[i], *this};
      if (step.next.run(i, step.what)) steps.push_back(std::move(step));
    }
    return steps;
  }
  std::string stuck() const {
    return slab + waiting + toCome == 0 ? ""
                                        : "all sleep; " + std::to_string(slab) + " in the slab, " +
                                              std::to_string(waiting) + " in the inbox";
  }

 private:
  void wakeEngine() { isRung |= isAsleep; }
  void take(Thread& thread) {
    const uint32_t count = std::min(slab, rules->room - waiting);
    thread.moved = count != 0;
    slab -= count;
    waiting += count;
  }

  // One step of a thread. False: it can take none.
  bool run(size_t i, std::string& what) {
    Thread& thread = threads[i];
    if (thread.at == At::kOutside) return begin(i, what);
    if (thread.at == At::kLock) return lock(i, what);
    switch (thread.at) {
      case At::kMark:
        what += " says that it wants the lock";
        isWanted |= rules->marksTaken;
        thread.at = rules->triesAgain ? At::kRetry : At::kDecide;
        return true;
      case At::kRetry:
        what += isLocked ? " finds it taken again" : " has the lock at the second try";
        thread.at = isLocked ? At::kDecide : At::kTake;
        isLocked = true;
        return true;
      case At::kTake:
        what += " looks into the slab";
        if (i == kEngine || waiting == 0) take(thread);
        thread.at = At::kHandOut;
        return true;
      case At::kHandOut: handOut(i, what); return true;
      case At::kUnlock:
        what += " lets go";
        isLocked = false;
        thread.at = At::kLook;
        if (!rules->looksAfterUnlock) thread.at = thread.sees ? At::kWake : At::kDecide;
        return true;
      case At::kLook:
        what += " looks who wants the lock";
        thread.sees = std::exchange(isWanted, false);
        thread.at = rules->looksAfterUnlock ? (thread.sees ? At::kWake : At::kDecide) : At::kUnlock;
        return true;
      case At::kWake:
        what += " wakes the engine";
        if (rules->wakesForTaken) wakeEngine();
        thread.at = At::kDecide;
        return true;
      default: return decide(i, what);
    }
  }

  bool begin(size_t i, std::string& what) {
    if (i == kEngine && !std::exchange(isRung, false) && isAsleep) return false;
    if (i == kPoller && polls == 0) return false;
    if (i == kSleeper && !isReadable) return false;
    what += " begins";
    if (i == kEngine) isAsleep = false;
    if (i == kPoller) --polls;
    threads[i] = {.at = At::kLock};
    return true;
  }

  // A turn does not wait for the lock.
  bool lock(size_t i, std::string& what) {
    if (isLocked && i != kEngine) return false;
    what += isLocked ? " finds the lock taken" : " has the lock";
    threads[i].at = isLocked ? At::kMark : At::kTake;
    isLocked = true;
    return true;
  }

  void handOut(size_t i, std::string& what) {
    Thread& thread = threads[i];
    thread.at = rules->looksAfterUnlock ? At::kUnlock : At::kLook;
    if (i == kEngine) {
      what += " tells what it took";
      if (thread.moved && waiting != 0) isReadable = true;
      return;
    }
    what += " takes one out";
    if (waiting == 0) return;
    isWanted |= waiting == rules->room && rules->asksForTurnIfFull;
    --waiting;
    if (waiting == 0)
      isReadable = false;
    else if (thread.moved && rules->tellsOfRest)
      isReadable = true;
  }

  // The engine sleeps after two turns in vain; it says so between the two.
  bool decide(size_t i, std::string& what) {
    Thread& thread = threads[i];
    const bool moved = thread.moved;
    thread = {};
    what += " is done";
    if (i != kEngine) return true;
    if (moved) {
      isAsleep = false;
      thread.at = At::kLock;
    } else if (!isAsleep) {
      isAsleep = true;
      if (rules->looksBeforeSleep) thread.at = At::kLock;
    }
    return true;
  }
};

}  // namespace

SearchReport exploreInbox(const InboxRules& rules) {
  return search(Inbox{.rules = &rules, .toCome = rules.notifications, .polls = rules.polls});
}

}  // namespace peerlane::explorer
