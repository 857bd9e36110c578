// SPDX-License-Identifier: Apache-2.0
#include "explore/poison_protocol.h"

#include <algorithm>
#include <compare>
#include <string>
#include <utility>

namespace peerlane::explorer {
namespace {

constexpr uint8_t kPoisoned = 255;

struct Mapped {
  const PoisonRules* rules = nullptr;
  uint8_t cancels = 0;
  uint8_t count = 0;
  bool hasFailed = false;  // the status
  // The executor: commits up to `enqueued` are, those up to `run` have stored their count.
  enum class Executor : uint8_t { kIdle, kEnqueue, kLook, kRun } executor = Executor::kIdle;
  uint8_t enqueued = 0;
  uint8_t run = 0;
  // Who gives up.
  enum class Canceller : uint8_t { kIdle, kPoison, kTell } canceller = Canceller::kIdle;
  uint8_t replaced = 0;  // by its poison
  // The task. `seen`: commits up to this one were passed, as it knows.
  enum class Task : uint8_t { kNone, kIdle, kAssert, kDecide } task = Task::kNone;
  uint8_t seen = 0;
  uint8_t told = 0;    // by others, for it
  uint8_t letGo = 0;   // of commits up to this one
  uint8_t waiter = 0;  // commits that it has waited for
  auto operator<=>(const Mapped&) const = default;

  std::vector<Step<Mapped>> steps() const {
    std::vector<Step<Mapped>> steps;
    const auto add = [&](bool (Mapped::*act)(std::string&, std::string&)) {
      Step<Mapped> step{"", *this};
      if ((step.next.*act)(step.what, step.fault)) steps.push_back(std::move(step));
    };
    add(&Mapped::execute);
    add(&Mapped::giveUp);
    add(&Mapped::turn);
    add(&Mapped::poll);
    add(&Mapped::wait);
    return steps;
  }
  std::string stuck() const {
    if (waiter != rules->commits)
      return "a waiter waits for commit " + std::to_string(waiter + 1) + " for ever";
    if (letGo != enqueued) return "commit " + std::to_string(letGo + 1) + " keeps its memory";
    return {};
  }

 private:
  static uint8_t passedBy(uint8_t value) { return value == kPoisoned ? 0 : value; }
  void beginTask() {
    if (rules->assertsAgain && task == Task::kNone) task = Task::kIdle;
  }

  bool execute(std::string& what, std::string&) {
    what = "the executor ";
    switch (executor) {
      case Executor::kIdle:
        if (enqueued == rules->commits || hasFailed) return false;
        what += "sees that the queue is well";
        executor = Executor::kEnqueue;
        return true;
      case Executor::kEnqueue:
        ++enqueued;
        what += "has enqueued commit " + std::to_string(enqueued);
        executor = rules->looksAfterEnqueue ? Executor::kLook : Executor::kRun;
        return true;
      case Executor::kLook:
        what += hasFailed ? "sees that the queue has failed" : "looks once more";
        if (hasFailed) beginTask();
        executor = Executor::kRun;
        return true;
      case Executor::kRun:
        run = count = enqueued;
        what += "has copied, and stores the count " + std::to_string(count);
        executor = Executor::kIdle;
        return true;
    }
    return false;
  }

  bool giveUp(std::string& what, std::string&) {
    switch (canceller) {
      case Canceller::kIdle:
        if (cancels == 0) return false;
        --cancels;
        what = "the canceller tells the status";
        hasFailed = true;
        canceller = Canceller::kPoison;
        return true;
      case Canceller::kPoison:
        what = "the canceller poisons the count";
        replaced = std::exchange(count, kPoisoned);
        canceller = Canceller::kTell;
        return true;
      case Canceller::kTell:
        what = "the canceller begins the task";
        if (rules->knowsWhatItPoisoned) told = std::max(told, passedBy(replaced));
        replaced = 0;
        canceller = Canceller::kIdle;
        beginTask();
        return true;
    }
    return false;
  }

  void endAllUpTo(uint8_t last, std::string& fault) {
    if (last > run) fault = "memory is let go of while the executor copies";
    letGo = std::max(letGo, last);
  }
  bool turn(std::string& what, std::string& fault) {
    what = "the task ";
    switch (task) {
      case Task::kNone: return false;
      case Task::kIdle:
        // A turn that finds nothing is none.
        if (count == kPoisoned && told <= seen && letGo != enqueued) return false;
        what += "sees the count " + std::to_string(count);
        seen = std::max({seen, told, passedBy(count)});
        task = Task::kAssert;
        return true;
      case Task::kAssert: {
        what += "asserts the poison";
        const uint8_t before = std::exchange(count, kPoisoned);
        if (rules->knowsWhatItPoisoned) seen = std::max(seen, passedBy(before));
        task = Task::kDecide;
        return true;
      }
      case Task::kDecide:
        what += "lets go of what was passed";
        endAllUpTo(rules->waitsForPassing ? seen : enqueued, fault);
        task = letGo == enqueued || !rules->staysUntilPassed ? Task::kNone : Task::kIdle;
        return true;
    }
    return false;
  }
  // The poster, while all is well.
  bool poll(std::string& what, std::string& fault) {
    const uint8_t passed = passedBy(count);
    if (hasFailed || passed <= letGo) return false;
    what = "the poster lets go of commits up to " + std::to_string(passed);
    endAllUpTo(passed, fault);
    return true;
  }
  bool wait(std::string& what, std::string&) {
    if (waiter == rules->commits || count <= waiter) return false;
    ++waiter;
    what = count == kPoisoned ? "the waiter is released" : "the waiter has seen the count";
    return true;
  }
};

}  // namespace

SearchReport explorePoison(const PoisonRules& rules) {
  return search(Mapped{.rules = &rules, .cancels = rules.cancels});
}

}  // namespace peerlane::explorer
