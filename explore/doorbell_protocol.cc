// SPDX-License-Identifier: Apache-2.0
#include "explore/doorbell_protocol.h"

#include <array>
#include <compare>
#include <cstddef>
#include <utility>

namespace peerlane::explorer {
namespace {

constexpr uint8_t kSlots = 2;  // of the mailbox, and of commits
constexpr uint8_t kPoisoned = 255;
constexpr size_t kMostMakings = 4;

enum class State : uint8_t { kFree, kMade, kChecked, kEnqueued, kEnded };

// Each commit has one entry: its number is the entry's.
struct Slot {
  State state = State::kFree;
  uint8_t making = 0;
  uint8_t number = 0;
  auto operator<=>(const Slot&) const = default;
};

// What became of a making, for the claims alone.
enum class Fate : uint8_t { kNone, kMade, kTakenBack, kEnqueued };
struct Making {
  uint8_t number = 0;
  Fate fate = Fate::kNone;
  bool isLetGo = false;
  auto operator<=>(const Making&) const = default;
};

// By number; used again.
struct Entry {
  uint8_t making = 0;     // whose it is
  bool hasBytes = false;  // the device has written them
  bool isPerformed = false;
  bool isRight = false;  // performed, and did not fail
  auto operator<=>(const Entry&) const = default;
};

// The steps of whoever makes the queue fail, in the order of the rules.
enum class Fail : uint8_t { kNo, kFirst, kSecond, kThird };

struct Poster {
  enum class At : uint8_t { kIdle, kFilled, kStore, kCompare, kUnclaim } at = At::kIdle;
  uint8_t next = 1;     // the number of the commit that comes
  uint8_t claimed = 0;  // entries
  uint8_t makings = 0;
  auto operator<=>(const Poster&) const = default;
};

struct Executor {
  enum class At : uint8_t { kIdle, kCompare, kCheck, kAllow, kRun } at = At::kIdle;
  uint8_t making = 0;  // in its hands
  uint8_t next = 1;
  auto operator<=>(const Executor&) const = default;
};

struct Server {
  enum class At : uint8_t { kIdle, kCheck, kLoadBell, kRing } at = At::kIdle;
  uint8_t bell = 0;     // as it was read
  uint8_t allowed = 0;  // the same
  uint8_t bytes = 0;    // entries whose bytes it saw, as bits
  uint8_t rung = 0;
  Fail fail = Fail::kNo;
  auto operator<=>(const Server&) const = default;
};

struct Publisher {
  enum class At : uint8_t { kIdle, kComplete } at = At::kIdle;
  bool hasFailed = false;  // the mailbox's code
  Fail fail = Fail::kNo;
  auto operator<=>(const Publisher&) const = default;
};

struct Settler {
  enum class At : uint8_t { kIdle, kExplain, kTake, kExplainTaken } at = At::kIdle;
  uint8_t slot = 0;
  uint8_t making = 0;
  auto operator<=>(const Settler&) const = default;
};

struct Queue {
  const DoorbellRules* rules = nullptr;
  Poster poster{};
  Executor executor{};
  Server server{};
  Publisher publisher{};
  Settler settler{};
  Fail canceller = Fail::kNo;
  uint8_t cancels = 0;
  uint8_t failures = 0;
  uint8_t rogues = 0;
  uint8_t waiter = 0;  // commits that it has waited for
  std::array<Slot, kSlots> slots{};
  std::array<Making, kMostMakings + 1> makings{};
  std::array<Entry, kMostMakings + 1> entries{};
  // The words.
  uint8_t bell = 0, allowed = 0, count = 0;
  bool status = false;
  // The mailbox.
  uint8_t doorbell = 0, handedOut = 0, completion = 0;
  bool isAborted = false;
  bool isRogue = false;   // the device stored what it should not
  bool isUnsure = false;  // the queue was given up, or an entry failed
  auto operator<=>(const Queue&) const = default;

  std::vector<Step<Queue>> steps() const {
    std::vector<Step<Queue>> steps;
    const auto add = [&](bool (Queue::*act)(std::string&, std::string&)) {
      Step<Queue> step{"", *this};
      if ((step.next.*act)(step.what, step.fault)) steps.push_back(std::move(step));
    };
    add(&Queue::post);
    add(&Queue::rollBack);
    for (uint8_t making = 1; making <= poster.makings; ++making) {
      Step<Queue> step{"the executor begins to enqueue making " + std::to_string(making), *this};
      if (step.next.beginEnqueue(making)) steps.push_back(std::move(step));
    }
    add(&Queue::enqueue);
    add(&Queue::storeRogue);
    add(&Queue::look);
    add(&Queue::perform);
    add(&Queue::performBadly);
    add(&Queue::publish);
    add(&Queue::giveUp);
    for (uint8_t slot = 0; slot < kSlots; ++slot) {
      Step<Queue> step{"the settler looks at commit " + std::to_string(slots[slot].number), *this};
      if (step.next.judge(slot)) steps.push_back(std::move(step));
    }
    add(&Queue::settle);
    add(&Queue::wait);
    return steps;
  }
  std::string stuck() const {
    if (waiter + 1 < executor.next)
      return "a waiter waits for commit " + std::to_string(waiter + 1) + " for ever";
    for (const Slot& slot : slots)
      if (slot.state == State::kEnqueued || slot.state == State::kChecked)
        return "commit " + std::to_string(slot.number) + " keeps its memory for ever";
    return {};
  }

 private:
  // --- Poster ---
  static uint8_t slotOf(uint8_t number) { return number % kSlots; }
  bool isFree(const Slot& slot) const {
    return slot.state == State::kFree ||
           (slot.state == State::kEnded && count != kPoisoned && count >= slot.number);
  }
  bool post(std::string& what, std::string& fault) {
    Slot& slot = slots[slotOf(poster.next)];
    if (poster.at == Poster::At::kFilled) {
      what = "the poster makes commit " + std::to_string(poster.next);
      slot = {State::kMade, poster.makings, poster.next++};
      poster.at = Poster::At::kIdle;
      return true;
    }
    if (poster.at != Poster::At::kIdle || poster.makings == rules->makings || status ||
        poster.claimed - completion >= kSlots || !isFree(slot))
      return false;
    const uint8_t number = ++poster.claimed;
    what = "the poster fills entry " + std::to_string(number);
    for (const Making& other : makings)
      if (other.fate == Fate::kEnqueued && other.number >= number)
        fault = "an entry is filled that was enqueued";
    slot.state = State::kFree;
    makings[++poster.makings] = {number, Fate::kMade, false};
    entries[number] = {.making = poster.makings};
    poster.at = Poster::At::kFilled;
    return true;
  }
  bool rollBack(std::string& what, std::string&) {
    const uint8_t number = static_cast<uint8_t>(poster.next - 1);
    Slot& slot = slots[slotOf(number)];
    const bool isMade = number != 0 && slot.number == number && slot.state == State::kMade;
    switch (poster.at) {
      case Poster::At::kIdle:
        if (!isMade) return false;
        what = "the poster takes commit " + std::to_string(number) + " back";
        if (!rules->rollsBackFirst) {
          --poster.claimed;
          poster.at = Poster::At::kCompare;
        } else if (!rules->rollsBackAtOnce) {
          what += ", after a look";
          poster.at = Poster::At::kStore;
        } else {
          takeBack(slot);
        }
        return true;
      case Poster::At::kStore:
        what = "the poster stores that commit " + std::to_string(number) + " is free";
        takeBack(slot);
        return true;
      case Poster::At::kCompare:
        what = isMade ? "the poster frees the commit" : "the poster is refused";
        poster.at = Poster::At::kIdle;
        if (!isMade) return true;
        takeBack(slot);
        ++poster.claimed;
        return true;
      case Poster::At::kUnclaim:
        what = "the poster unclaims entry " + std::to_string(poster.claimed);
        makings[slot.making].isLetGo = true;
        --poster.claimed;
        --poster.next;
        poster.at = Poster::At::kIdle;
        return true;
      default: return false;
    }
  }
  void takeBack(Slot& slot) {
    slot.state = State::kFree;
    makings[slot.making].fate = Fate::kTakenBack;
    poster.at = Poster::At::kUnclaim;
  }

  // --- Executor ---
  bool isIts(uint8_t making, const Slot& slot) const {
    return slot.state == State::kMade && (!rules->knowsMaking || slot.making == making);
  }
  bool beginEnqueue(uint8_t making) {
    const uint8_t number = makings[making].number;
    const Slot& slot = slots[slotOf(number)];
    if (executor.at != Executor::At::kIdle || status || !isIts(making, slot)) return false;
    if (rules->enqueuesInOrder && number != executor.next) return false;
    executor.at = Executor::At::kCompare;
    executor.making = making;
    return true;
  }
  bool enqueue(std::string& what, std::string& fault) {
    const uint8_t number = makings[executor.making].number;
    Slot& slot = slots[slotOf(number)];
    switch (executor.at) {
      case Executor::At::kIdle: return false;
      case Executor::At::kCompare:
        executor.at = Executor::At::kIdle;
        what = "the executor finds the commit taken back";
        if (!isIts(executor.making, slot)) return true;
        what = "the executor has enqueued commit " + std::to_string(number);
        if (slot.making != executor.making) fault = "an id that is over enqueues another commit";
        makings[slot.making].fate = Fate::kEnqueued;
        slot.state = rules->checksBeforeEnqueued ? State::kChecked : State::kEnqueued;
        executor.next = static_cast<uint8_t>(number + 1);
        executor.at = Executor::At::kCheck;
        return true;
      case Executor::At::kCheck:
        what = "the executor looks whether the memory of the commit is there";
        if (makings[executor.making].isLetGo)
          fault = "the executor looks at memory that was let go";
        if (rules->checksBeforeEnqueued) slot.state = State::kEnqueued;
        executor.at = rules->allowsBeforeRun ? Executor::At::kAllow : Executor::At::kRun;
        return true;
      case Executor::At::kAllow:
        what = "the executor allows " + std::to_string(number);
        allowed = number;
        executor.at = rules->allowsBeforeRun ? Executor::At::kRun : Executor::At::kIdle;
        return true;
      case Executor::At::kRun:
        what = "the executor writes its bytes and stores the bell " + std::to_string(number);
        entries[number].hasBytes = true;
        bell = number;
        executor.at = rules->allowsBeforeRun ? Executor::At::kIdle : Executor::At::kAllow;
        return true;
    }
    return false;
  }
  bool storeRogue(std::string& what, std::string&) {
    if (rogues == 0 || poster.claimed <= allowed) return false;
    --rogues;
    what = "a device stores the bell " + std::to_string(poster.claimed);
    bell = poster.claimed;
    isRogue = isUnsure = true;
    return true;
  }

  // --- Who makes the queue fail ---
  // One step. `isServing`: it holds the right to serve, and aborts at the end in any case.
  void failOnce(Fail& at, bool isServing, std::string& what) {
    enum class Do : uint8_t { kStatus, kPoison, kAbort };
    std::array<Do, 3> order{Do::kStatus, Do::kPoison, Do::kAbort};
    if (!rules->tellsStatusFirst) std::swap(order[0], order[1]);
    if (rules->abortsFirst && !isServing) order = {Do::kAbort, order[0], order[1]};
    switch (order[static_cast<size_t>(at) - 1]) {
      case Do::kStatus:
        what += " tells the status";
        status = true;
        break;
      case Do::kPoison:
        what += " poisons the count";
        count = kPoisoned;
        break;
      case Do::kAbort:
        what += " aborts the mailbox";
        isAborted = true;
        break;
    }
    at = at == Fail::kThird ? Fail::kNo : static_cast<Fail>(static_cast<uint8_t>(at) + 1);
  }
  bool giveUp(std::string& what, std::string&) {
    if (canceller == Fail::kNo) {
      if (cancels == 0) return false;
      --cancels;
      isUnsure = true;
      canceller = Fail::kFirst;
    }
    what = "the canceller";
    failOnce(canceller, false, what);
    return true;
  }

  // --- Server ---
  uint8_t bytesNow() const {
    uint8_t bits = 0;
    for (size_t i = 0; i < entries.size(); ++i)
      if (entries[i].hasBytes) bits |= static_cast<uint8_t>(1u << i);
    return bits;
  }
  bool look(std::string& what, std::string& fault) {
    what = "the server";
    if (server.fail != Fail::kNo) return failOnce(server.fail, false, what), true;
    switch (server.at) {
      case Server::At::kIdle:
        if (bell == server.rung || status) return false;
        if (!rules->readsBellFirst) return readEarly(what);
        server.bell = bell;
        server.at = Server::At::kCheck;
        what += " reads the bell " + std::to_string(bell);
        return true;
      case Server::At::kLoadBell:
        server.bell = bell;
        what += " reads the bell " + std::to_string(bell) + " after what it reads next";
        decide(fault);
        return true;
      case Server::At::kCheck:
        server.allowed = allowed;
        server.bytes = bytesNow();
        what += " reads what is allowed, " + std::to_string(allowed);
        decide(fault);
        return true;
      case Server::At::kRing:
        server.rung = server.bell;
        doorbell = rules->ringsToBell ? server.bell : poster.claimed;
        what += " rings up to " + std::to_string(doorbell);
        server.at = Server::At::kIdle;
        return true;
    }
    return false;
  }
  bool readEarly(std::string& what) {
    server.allowed = allowed;
    server.bytes = bytesNow();
    server.at = Server::At::kLoadBell;
    what += " reads what it should read after the bell";
    return true;
  }
  void decide(std::string& fault) {
    const bool isWrong =
        server.bell < server.rung || (rules->checksAllowed && server.bell > server.allowed);
    server.at = isWrong ? Server::At::kIdle : Server::At::kRing;
    if (!isWrong) return;
    if (!isRogue) fault = "a queue fails in which each number was enqueued";
    server.fail = Fail::kFirst;
  }

  // --- Agent, and who publishes ---
  bool perform(std::string& what, std::string& fault) {
    if (handedOut >= doorbell) return false;
    const uint8_t number = ++handedOut;
    Entry& entry = entries[number];
    if (isAborted) {
      what = "the agent leaves entry " + std::to_string(number) + " out";
      return true;
    }
    what = "the agent performs entry " + std::to_string(number);
    const Making& making = makings[entry.making];
    if (making.isLetGo) fault = "an entry is performed whose memory was let go";
    if (making.fate == Fate::kMade) fault = "an entry is performed that was not enqueued";
    if (making.fate == Fate::kTakenBack) fault = "an entry is performed that was taken back";
    if (entry.isPerformed) fault = "an entry is performed twice";
    if (fault.empty() && !isRogue && (server.bytes >> number & 1) == 0)
      fault = "an entry is performed before its bytes are there";
    entry.isPerformed = entry.isRight = true;
    return true;
  }
  bool performBadly(std::string& what, std::string& fault) {
    if (failures == 0 || isAborted || !perform(what, fault)) return false;
    --failures;
    isUnsure = true;
    what += ", which fails";
    entries[handedOut].isRight = false;
    return true;
  }
  bool publish(std::string& what, std::string& fault) {
    what = "the publisher";
    if (publisher.fail != Fail::kNo) return failOnce(publisher.fail, true, what), true;
    if (completion >= handedOut) return false;
    const uint8_t number = static_cast<uint8_t>(completion + 1);
    if (publisher.at == Publisher::At::kComplete) {
      what += " completes entry " + std::to_string(number);
      completion = number;
      publisher.at = Publisher::At::kIdle;
      return true;
    }
    publisher.at = Publisher::At::kComplete;
    publisher.hasFailed |= !entries[number].isRight;
    if (publisher.hasFailed) {
      what += " has an entry that failed, and";
      publisher.fail = Fail::kFirst;
      failOnce(publisher.fail, true, what);
      return true;
    }
    what += " counts entry " + std::to_string(number);
    if (!rules->comparesCount || count == completion) count = number;
    if (count < number) fault = "the count stays behind what is complete";
    return true;
  }

  // --- The settler: any thread, one at a time ---
  bool judge(uint8_t at) {
    const Slot& slot = slots[at];
    if (settler.at != Settler::At::kIdle) return false;
    const bool isPending = completion != doorbell;
    const bool isComplete =
        slot.state == State::kEnqueued && count != kPoisoned && count >= slot.number;
    const bool isOver =
        status && !isPending && (slot.state == State::kEnqueued || slot.state == State::kMade);
    if (!isComplete && !isOver) return false;
    settler = {Settler::At::kTake, at, slot.making};
    if (isOver && !rules->takesBeforeExplaining) settler.at = Settler::At::kExplain;
    return true;
  }
  bool settle(std::string& what, std::string& fault) {
    Slot& slot = slots[settler.slot];
    switch (settler.at) {
      case Settler::At::kIdle: return false;
      case Settler::At::kExplain:
        what = "the settler reads what the commit moves, to say why it failed";
        if (makings[settler.making].isLetGo) fault = "the settler reads what the poster let go";
        settler.at = Settler::At::kTake;
        return true;
      case Settler::At::kTake:
        settler.at = Settler::At::kIdle;
        what = "the settler finds the commit taken back";
        // Of whatever making: commits that others make meanwhile have failed as well.
        if (slot.state != State::kEnqueued && slot.state != State::kMade) return true;
        what = "the settler lets go of commit " + std::to_string(slot.number);
        slot.state = State::kEnded;
        makings[slot.making].isLetGo = true;
        return true;
      default: return false;
    }
  }

  // --- Waiter ---
  bool wait(std::string& what, std::string& fault) {
    const uint8_t number = static_cast<uint8_t>(waiter + 1);
    if (number >= executor.next || count < number) return false;
    ++waiter;
    if (count == kPoisoned) {
      what = "the waiter is released";
      if (!status) fault = "a waiter is released and finds no reason";
      if (!isUnsure) fault = "a waiter is released, and nothing has failed";
      return true;
    }
    what = "the waiter has seen commit " + std::to_string(number);
    for (uint8_t each = 1; each <= count; ++each)
      if (!entries[each].isRight) fault = "the count passes what is not complete";
    return true;
  }
};

}  // namespace

SearchReport exploreDoorbell(const DoorbellRules& rules) {
  return search(Queue{.rules = &rules,
                      .cancels = rules.cancels,
                      .failures = rules.failures,
                      .rogues = rules.rogues});
}

}  // namespace peerlane::explorer
