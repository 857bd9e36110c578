// SPDX-License-Identifier: Apache-2.0
#include "explore/remake_protocol.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <utility>

namespace peerlane::explorer {
namespace {

using Kind = RemakeWork::Kind;

enum class Phase : uint8_t { kWaiting, kPosted, kDone, kLost };

struct Work {
  Phase phase = Phase::kWaiting;
  uint32_t news = 0;      // which one of those that were posted; 0: none
  uint32_t executed = 0;  // how often
  bool isSeen = false;    // a word, by the program at the other end
  auto operator<=>(const Work&) const = default;
};

struct Flying {
  size_t work = 0;
  uint32_t pair = 0;
  auto operator<=>(const Flying&) const = default;
};

struct Message {
  uint32_t pair = 0;  // the next one
  uint32_t taken = 0;
  bool isAnswer = false;  // to one that its sender has heard
  auto operator<=>(const Message&) const = default;
};

struct End {
  uint32_t pair = 1;  // the last that was joined
  bool isAlive = true;
  uint32_t said = 1;
  Message heard{.pair = 1};
  std::vector<Message> line{};  // to this end
  auto operator<=>(const End&) const = default;
};

constexpr size_t kPoster = 0;
constexpr size_t kOther = 1;

struct Machine {
  const RemakeRules* rules = nullptr;
  uint32_t failures = 0;
  std::vector<Work> works{};
  std::array<End, 2> ends{};
  std::vector<Flying> wire{};
  std::vector<Flying> acks{};
  uint32_t sent = 0;      // news
  uint32_t taken = 0;     // news, by the other end
  uint32_t unpolled = 0;  // news that came, and were not taken
  auto operator<=>(const Machine&) const = default;

  std::vector<Step<Machine>> steps() const {
    std::vector<Step<Machine>> steps;
    using Act = bool (Machine::*)(size_t, std::string&);
    const auto add = [&](const char* what, size_t which, Act act) {
      Step<Machine> step{what + (" " + std::to_string(which)), *this};
      if ((step.next.*act)(which, step.fault)) steps.push_back(std::move(step));
    };
    for (size_t i = 0; i < works.size(); ++i) {
      add("posts work", i, &Machine::post);
      add("the program sees word", i, &Machine::see);
    }
    if (!wire.empty()) add("executes work", wire.front().work, &Machine::execute);
    add("an acknowledgement comes to end", kPoster, &Machine::acknowledge);
    add("takes news at end", kOther, &Machine::takeNews);
    for (const size_t i : {kPoster, kOther}) {
      add("the pair fails at end", i, &Machine::fail);
      add("the pair is ended and the next one said by end", i, &Machine::say);
      add("the line is heard at end", i, &Machine::hear);
      add("the next pair is joined by end", i, &Machine::join);
    }
    return steps;
  }

  std::string stuck() const {
    if (ends[0].pair != ends[1].pair || !ends[0].isAlive || !ends[1].isAlive)
      return "an end waits for the other one for ever";
    for (size_t i = 0; i < works.size(); ++i) {
      const std::string name = "work " + std::to_string(i);
      const Work& work = works[i];
      if (work.phase != Phase::kDone && work.phase != Phase::kLost) return name + " did not end";
      if (work.phase == Phase::kDone && work.executed == 0)
        return name + " was reported as done, and was not executed";
    }
    return {};
  }

 private:
  Kind kindOf(size_t i) const { return rules->works[i].kind; }
  uint32_t mailboxOf(size_t i) const { return rules->works[i].mailbox; }
  bool isWord(size_t i) const { return kindOf(i) == Kind::kNews || kindOf(i) == Kind::kQuiet; }
  bool isOfMailbox(size_t i, size_t other) const { return mailboxOf(i) == mailboxOf(other); }

  // In the order of the script.
  bool post(size_t i, std::string& fault) {
    if (!ends[kPoster].isAlive || works[i].phase != Phase::kWaiting) return false;
    for (size_t before = 0; before < i; ++before) {
      if (works[before].phase == Phase::kWaiting) return false;
      if (isOfMailbox(before, i) && works[before].phase == Phase::kLost)
        fault = "a mailbox that ended goes on";
    }
    works[i].phase = Phase::kPosted;
    if (kindOf(i) == Kind::kNews) works[i].news = ++sent;
    wire.push_back({i, ends[kPoster].pair});
    return true;
  }

  // Those of a pair that this end has not joined yet are sent again by the device until it has.
  bool execute(size_t i, std::string& fault) {
    const End& end = ends[kOther];
    if (!end.isAlive || wire.front().pair != end.pair) return false;
    const End& poster = ends[kPoster];
    if (poster.isAlive && poster.pair == end.pair) acks.push_back(wire.front());
    wire.erase(wire.begin());
    Work& work = works[i];
    ++work.executed;
    if (work.phase == Phase::kLost) fault = "a work that ended as lost takes effect";
    if (kindOf(i) == Kind::kNews) ++unpolled;
    if (kindOf(i) != Kind::kPut && work.executed > 1)
      fault = "work " + std::to_string(i) + " takes effect twice";
    for (size_t word = i + 1; kindOf(i) == Kind::kPut && word < works.size(); ++word)
      if (isOfMailbox(word, i) && works[word].isSeen)
        fault = "a put comes into a buffer that is used anew";
    return true;
  }

  bool see(size_t i, std::string& fault) {
    if (!isWord(i) || works[i].executed == 0 || works[i].isSeen) return false;
    works[i].isSeen = true;
    for (size_t put = 0; put < i; ++put)
      if (isOfMailbox(put, i) && kindOf(put) == Kind::kPut && works[put].executed == 0)
        fault = "a word comes before its bytes";
    return true;
  }

  bool acknowledge(size_t, std::string& fault) {
    const End& end = ends[kPoster];
    if (acks.empty() || !end.isAlive || acks.front().pair != end.pair) return false;
    Work& work = works[acks.front().work];
    acks.erase(acks.begin());
    if (work.phase != Phase::kPosted) fault = "a work ends twice";
    work.phase = Phase::kDone;
    return true;
  }

  bool takeNews(size_t, std::string&) {
    if (unpolled == 0 || !ends[kOther].isAlive) return false;
    --unpolled;
    ++taken;
    return true;
  }

  bool fail(size_t i, std::string&) {
    if (failures == 0 || !ends[i].isAlive) return false;
    --failures;
    if (rules->endsBeforeSaying || i == kPoster) ends[i].isAlive = false;
    // Else it goes on at the device until the next one is joined.
    if (ends[i].isAlive) return sayNext(i);
    return true;
  }
  bool say(size_t i, std::string&) {
    return !ends[i].isAlive && ends[i].said == ends[i].pair && sayNext(i);
  }
  bool sayNext(size_t i) {
    End& end = ends[i];
    if (end.said != end.pair) return false;
    if (!end.isAlive) endPair(i);
    end.said = end.pair + 1;
    ends[1 - i].line.push_back({end.said, taken, end.heard.pair == end.said});
    return true;
  }
  // Nothing of the pair takes effect at this end any more.
  void endPair(size_t i) {
    const auto isOfIt = [pair = ends[i].pair](const Flying& each) { return each.pair == pair; };
    if (i == kPoster) {
      std::erase_if(acks, isOfIt);
      return;
    }
    std::erase_if(wire, isOfIt);
    if (rules->drainsBeforeCounting) taken += unpolled;
    unpolled = 0;
  }

  bool hear(size_t i, std::string& fault) {
    End& end = ends[i];
    if (end.line.empty() || end.heard.pair != end.pair) return false;
    const Message message = end.line.front();
    if (message.pair != end.pair + 1 || message.pair > 1 + rules->failures) {
      fault = "pair " + std::to_string(message.pair) + " is said, and no failure was the reason";
      return true;
    }
    end.line.erase(end.line.begin());
    if (end.said == message.pair) {
      if (rules->knowsItsAnswer || message.isAnswer) end.heard = message;
      return true;
    }
    if (!rules->answers) return true;
    end.heard = message;
    if (rules->endsBeforeSaying || i == kPoster)
      end.isAlive = false;
    else
      (void)sayNext(i);
    return true;
  }

  bool join(size_t i, std::string& fault) {
    End& end = ends[i];
    if (end.said != end.pair + 1 || end.heard.pair != end.said) return false;
    if (end.isAlive) endPair(i);
    end.pair = end.said;
    end.isAlive = true;
    if (i == kPoster) {
      decide(end.heard.taken, fault);
      return true;
    }
    // What was posted over a pair that had ended here already.
    std::erase_if(wire, [&](const Flying& each) { return each.pair < end.pair; });
    return true;
  }

  // The fate of the works that were posted over the pair before.
  void decide(uint32_t peerTook, std::string& fault) {
    size_t executed = 0;           // works before this one were
    size_t notYet = works.size();  // this one and later ones were not
    for (size_t i = 0; i < works.size() && rules->believesCount; ++i) {
      if (works[i].phase != Phase::kPosted || kindOf(i) != Kind::kNews) continue;
      if (works[i].news <= peerTook)
        executed = i + 1;
      else
        notYet = std::min(notYet, i);
    }
    for (size_t i = 0; i < works.size(); ++i) {
      Work& work = works[i];
      if (work.phase == Phase::kDone && !rules->keepsDone) work.phase = Phase::kPosted;
      if (work.phase != Phase::kPosted || i >= executed) continue;
      work.phase = Phase::kDone;
      if (work.executed == 0) fault = "a work is taken for executed, and was not";
    }
    for (size_t i = executed; i < notYet; ++i)
      if (works[i].phase == Phase::kPosted && isInDoubt(i)) lose(i);
    for (Work& work : works)
      if (work.phase == Phase::kPosted) work.phase = Phase::kWaiting;
    sent = peerTook;
  }
  bool isInDoubt(size_t i) const {
    return (kindOf(i) == Kind::kQuiet && rules->doubtsQuietWords) ||
           (kindOf(i) == Kind::kAddition && rules->doubtsAdditions);
  }
  void lose(size_t doubted) {
    for (size_t i = 0; i < works.size(); ++i)
      if ((i == doubted || (rules->endsMailbox && isOfMailbox(i, doubted))) &&
          (works[i].phase == Phase::kPosted || works[i].phase == Phase::kWaiting))
        works[i].phase = Phase::kLost;
  }
};

}  // namespace

SearchReport exploreRemake(const RemakeRules& rules) {
  return search(Machine{
      .rules = &rules, .failures = rules.failures, .works = std::vector<Work>(rules.works.size())});
}

}  // namespace peerlane::explorer
