// SPDX-License-Identifier: Apache-2.0
#include "explore/arming_protocol.h"

#include <array>
#include <compare>

namespace peerlane::explorer {
namespace {

// Where a thread stands. The steps of a turn are those of SharedQueues::poll().
enum class At : uint8_t {
  kOutside,  // is about to poll
  kTurn,     // wants the turn
  kEvents,   // has it; looks for an event
  kDrain,    // takes completions
  kDecide,   // looks who polls
  kEvents2,  // has armed: the second look
  kDrain2,   //
  kLetGo,    //
  kLeave,    // a turn has found nothing: stops polling
  kAsleep,   // on the channel's descriptor
};

struct Thread {
  At at = At::kOutside;
  bool isPolling = false;  // counted in the bell's word
  bool moved = false;      // in this turn
  auto operator<=>(const Thread&) const = default;
};

struct Machine {
  const ArmingRules* rules = nullptr;
  std::array<Thread, 2> threads{};
  uint32_t toCome = 0;   // completions
  uint32_t waiting = 0;  // in the queue
  bool isDeviceArmed = false;
  bool hasEvent = false;  // the descriptor is readable
  bool isArmed = false;   // as the queues know
  bool isTurning = false;
  auto operator<=>(const Machine&) const = default;

  std::vector<Step<Machine>> steps() const {
    std::vector<Step<Machine>> steps;
    if (toCome != 0) {
      Step<Machine> step{"a completion comes", *this};
      --step.next.toCome;
      ++step.next.waiting;
      step.next.hasEvent |= std::exchange(step.next.isDeviceArmed, false);
      steps.push_back(std::move(step));
    }
    for (const size_t i : {size_t{0}, size_t{1}}) {
      Step<Machine> step{"thread " + std::to_string(i), *this};
      if (step.next.run(step.next.threads[i], step.what)) steps.push_back(std::move(step));
    }
    return steps;
  }
  std::string stuck() const {
    return waiting == 0 ? "" : std::to_string(waiting) + " completions wait, and all sleep";
  }

 private:
  bool nobodyPolls() const { return !threads[0].isPolling && !threads[1].isPolling; }
  void takeEvent() {
    if (!isArmed || !hasEvent) return;
    hasEvent = false;
    if (rules->forgetsArming) isArmed = false;
  }
  void drain(Thread& thread) {
    thread.moved |= waiting != 0;
    waiting = 0;
  }

  // One step of a thread. False: it can take none.
  bool run(Thread& thread, std::string& what) {
    switch (thread.at) {
      case At::kOutside:
        what += " enters";
        thread.isPolling = true;
        thread.at = At::kTurn;
        return true;
      case At::kTurn: return begin(thread, what);
      case At::kEvents:
      case At::kEvents2:
        what += " looks for an event";
        takeEvent();
        thread.at = thread.at == At::kEvents ? At::kDrain : At::kDrain2;
        return true;
      case At::kDrain:
      case At::kDrain2:
        what += " empties the queue";
        drain(thread);
        thread.at = thread.at == At::kDrain ? At::kDecide : At::kLetGo;
        return true;
      case At::kDecide: return decide(thread, what);
      case At::kLetGo: return letGo(thread, what);
      case At::kLeave:
        what += " leaves";
        thread.isPolling = false;
        thread.at = rules->looksAfterLeaving ? At::kTurn : At::kAsleep;
        return true;
      case At::kAsleep:
        if (!hasEvent) return false;
        what += " is woken";
        thread.at = At::kTurn;
        return true;
    }
    return false;
  }

  bool begin(Thread& thread, std::string& what) {
    if (!isTurning) {
      what += " has the turn";
      isTurning = true;
      thread.moved = false;
      thread.at = At::kEvents;
      return true;
    }
    what += " finds the turn taken";
    // A thread that polls tries again in any case.
    if (!thread.isPolling && !rules->looksAgainIfTaken)
      thread.at = At::kAsleep;
    else if (thread.isPolling)
      return false;
    else
      thread.at = At::kOutside;
    return true;
  }

  bool decide(Thread& thread, std::string& what) {
    thread.at = At::kLetGo;
    if (!nobodyPolls() || isArmed || !rules->armsWhereNobodyPolls) {
      what += " need not arm";
      return true;
    }
    what += " arms";
    isDeviceArmed = isArmed = true;
    if (rules->looksAfterArming) thread.at = At::kEvents2;
    return true;
  }

  bool letGo(Thread& thread, std::string& what) {
    what += thread.moved ? " lets go, having moved" : " lets go";
    isTurning = false;
    thread.at = thread.moved       ? (thread.isPolling ? At::kTurn : At::kOutside)
                : thread.isPolling ? At::kLeave
                                   : At::kAsleep;
    thread.moved = false;
    return true;
  }
};

}  // namespace

SearchReport exploreArming(const ArmingRules& rules) {
  return search(Machine{.rules = &rules, .toCome = rules.completions});
}

}  // namespace peerlane::explorer
