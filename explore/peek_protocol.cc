// SPDX-License-Identifier: Apache-2.0
#include "explore/peek_protocol.h"

#include <compare>
#include <string>

namespace peerlane::explorer {
namespace {

constexpr uint8_t kPoisoned = 255;

enum class State : uint8_t { kFree, kMade, kEnqueued, kLeft };

struct Peeks {
  const PeekRules* rules = nullptr;
  // The slot.
  State state = State::kFree;
  uint8_t making = 0;   // in the state word
  uint8_t program = 0;  // whose it is
  uint8_t passed = 0;   // the word that programs store
  // The poster.
  enum class Poster : uint8_t { kIdle, kWritten, kAbort } poster = Poster::kIdle;
  uint8_t makings = 0;
  uint8_t aborted = 0;  // as bits
  // The executor.
  enum class Executor : uint8_t { kIdle, kWait, kPass, kLeave } executor = Executor::kIdle;
  uint8_t running = 0;
  bool isReleased = false;
  // The commit that they wait for.
  State commit = State::kMade;
  uint8_t commits = 0;  // makings that are left
  uint8_t count = 0;
  uint8_t cancels = 0;
  auto operator<=>(const Peeks&) const = default;

  std::vector<Step<Peeks>> steps() const {
    std::vector<Step<Peeks>> steps;
    const auto add = [&](bool (Peeks::*act)(std::string&, std::string&)) {
      Step<Peeks> step{"", *this};
      if ((step.next.*act)(step.what, step.fault)) steps.push_back(std::move(step));
    };
    add(&Peeks::post);
    add(&Peeks::free);
    add(&Peeks::abort);
    add(&Peeks::rollBack);
    add(&Peeks::commitAgain);
    for (uint8_t id = 1; id <= makings; ++id) {
      Step<Peeks> step{"the executor enqueues peek " + std::to_string(id), *this};
      if (step.next.enqueue(id, step.fault)) steps.push_back(std::move(step));
    }
    add(&Peeks::run);
    add(&Peeks::runCommit);
    add(&Peeks::giveUp);
    return steps;
  }
  std::string stuck() const {
    if (executor == Executor::kWait) return "a peek waits for what was taken back";
    if (state == State::kEnqueued) return "a peek is under way for ever";
    return {};
  }

 private:
  // --- Poster ---
  bool post(std::string& what, std::string& fault) {
    if (poster == Poster::kWritten) {
      what = "the poster makes peek " + std::to_string(makings);
      making = makings;
      state = State::kMade;
      poster = Poster::kIdle;
      return true;
    }
    if (poster != Poster::kIdle || state != State::kFree || makings == rules->makings ||
        commit == State::kFree)
      return false;
    program = ++makings;
    what = "the poster writes the program of peek " + std::to_string(makings);
    if (executor != Executor::kIdle) fault = "a program is written while the executor is inside";
    poster = Poster::kWritten;
    return true;
  }
  bool free(std::string& what, std::string&) {
    const bool isOver = rules->freesWhenLeft ? state == State::kLeft
                                             : state == State::kEnqueued && passed == making;
    if (poster != Poster::kIdle || !isOver) return false;
    what = "the poster frees peek " + std::to_string(making);
    state = State::kFree;
    return true;
  }
  bool abort(std::string& what, std::string&) {
    what = "the poster aborts peek " + std::to_string(making);
    if (poster == Poster::kAbort) {
      what += " by a store";
      poster = Poster::kIdle;
    } else if (poster != Poster::kIdle || state != State::kMade) {
      return false;
    } else if (!rules->abortsAtOnce) {
      what += ", after a look";
      poster = Poster::kAbort;
      return true;
    }
    state = State::kFree;
    aborted |= static_cast<uint8_t>(1u << making);
    return true;
  }
  bool rollBack(std::string& what, std::string&) {
    const bool isPeeked = state != State::kFree && rules->rollbackHeedsPeeks;
    if (poster != Poster::kIdle || commit != State::kMade || isPeeked) return false;
    what = "the poster takes the commit back";
    commit = State::kFree;
    return true;
  }
  bool commitAgain(std::string& what, std::string&) {
    if (poster != Poster::kIdle || commit != State::kFree || commits == 0) return false;
    what = "the poster commits again";
    commit = State::kMade;
    --commits;
    return true;
  }

  // --- Executor ---
  bool enqueue(uint8_t id, std::string& fault) {
    if (executor != Executor::kIdle || state != State::kMade) return false;
    if (rules->knowsMaking && making != id) return false;
    if (making != id) fault = "an id that is over enqueues another peek";
    state = State::kEnqueued;
    executor = Executor::kWait;
    running = id;
    return true;
  }
  bool run(std::string& what, std::string& fault) {
    what = "the executor, in peek " + std::to_string(running) + ", ";
    if ((aborted >> running & 1) != 0) fault = "an aborted peek runs";
    switch (executor) {
      case Executor::kIdle: return false;
      case Executor::kWait:
        if (count == 0) return false;
        isReleased = count == kPoisoned;
        what += isReleased ? "is released" : "has seen the count";
        executor = Executor::kPass;
        return true;
      case Executor::kPass:
        what += "says that it was passed";
        if (!isReleased || rules->passesIfReleased) passed = program;
        executor = Executor::kLeave;
        return true;
      case Executor::kLeave:
        what += "leaves";
        if (rules->freesWhenLeft && (!isReleased || rules->passesIfReleased)) state = State::kLeft;
        executor = Executor::kIdle;
        running = 0;
        isReleased = false;
        return true;
    }
    return false;
  }
  bool runCommit(std::string& what, std::string&) {
    if (commit != State::kMade || count == kPoisoned) return false;
    what = "the commit is enqueued and completes";
    commit = State::kEnqueued;
    count = 1;
    return true;
  }
  bool giveUp(std::string& what, std::string&) {
    if (cancels == 0) return false;
    what = "the queue is given up";
    --cancels;
    count = kPoisoned;
    return true;
  }
};

}  // namespace

SearchReport explorePeeks(const PeekRules& rules) {
  return search(Peeks{.rules = &rules,
                      .commits = static_cast<uint8_t>(rules.commits - 1),
                      .cancels = rules.cancels});
}

}  // namespace peerlane::explorer
