// SPDX-License-Identifier: Apache-2.0
#include "explore/quiet_protocol.h"

#include <compare>
#include <utility>
#include <vector>

namespace peerlane::explorer {
namespace {

// A request, an answer or a completion, on its way or held by a device.
enum class Kind : uint8_t {
  kQuiet,   // a word without news
  kNews,    // a word with news
  kWake,    // news alone
  kPolls,   // whether the other side polls
  kRead,    // of that word; back: its answer
  kTaken,   // how many news were taken
  kAnswer,  // a completion
};

struct Item {
  Kind kind = Kind::kQuiet;
  uint32_t value = 0;
  bool asks = false;  // to be told how many news were taken
  auto operator<=>(const Item&) const = default;
};
using Items = std::vector<Item>;

Item takeFirst(Items& items) {
  const Item first = items.front();
  items.erase(items.begin());
  return first;
}

struct Writer {
  uint32_t left = 0;       // words to send
  uint32_t last = 0;       // the one sent last
  uint32_t sent = 0;       // news
  uint32_t taken = 0;      // of them, in its memory
  bool peerPolls = false;  // in its memory
  bool owesWake = false;
  std::vector<bool> underWay{};  // requests without a completion: quiet or not
  uint32_t completions = 0;      // in its queue
  Items placing{};               // held by its device
  auto operator<=>(const Writer&) const = default;
};

enum class At : uint8_t {
  kPolling,
  kLeft,      // the bell; a turn follows
  kLastLook,  // at the words, after that turn
  kAsleep,
};

struct Sleeper {
  At at = At::kPolling;
  uint32_t word = 0;  // in its memory
  uint32_t seen = 0;
  uint32_t taken = 0;  // news
  uint32_t told = 0;
  uint32_t newsPolled = 0;
  bool isBelieved = false;
  Items queue{};    // completions
  Items placing{};  // held by its device
  auto operator<=>(const Sleeper&) const = default;
};

struct Both {
  const QuietRules* rules = nullptr;
  Writer writer{};
  Sleeper sleeper{};
  Items words{};      // to the sleeper
  Items facts{};      // to the writer
  uint32_t acks = 0;  // of words, to the writer
  Items answers{};    // to the sleeper
  auto operator<=>(const Both&) const = default;

  std::vector<Step<Both>> steps() const {
    std::vector<Step<Both>> steps;
    const auto add = [&](const char* what, bool (Both::*act)()) {
      Step<Both> step{what, *this};
      if ((step.next.*act)()) steps.push_back(std::move(step));
    };
    add("the writer sends a word", &Both::sendWord);
    add("the writer turns", &Both::turnWriter);
    add("a word comes to the sleeper's device", &Both::wordComes);
    add("the sleeper's device places something", &Both::placeAtSleeper);
    add("an acknowledgement comes to the writer", &Both::ackComes);
    add("a fact comes to the writer's device", &Both::factComes);
    add("the writer's device places something", &Both::placeAtWriter);
    add("an answer comes to the sleeper's device", &Both::answerComes);
    add("the sleeper looks", &Both::look);
    add("the sleeper turns", &Both::turnSleeper);
    add("the sleeper leaves", &Both::leave);
    add("the sleeper wakes", &Both::wake);
    add("the sleeper wakes, and polls", &Both::wakeAndPoll);
    return steps;
  }
  std::string stuck() const {
    if (writer.left != 0) return "the writer has words to send, and waits for ever";
    if (sleeper.seen != writer.last)
      return "word " + std::to_string(writer.last) + " was not looked at, and all sleep";
    return {};
  }

 private:
  uint32_t left() const { return rules->window - (writer.sent - writer.taken); }
  bool maySend() const { return left() > 1; }

  void post(Kind kind) {
    writer.underWay.push_back(kind == Kind::kQuiet);
    const bool asks = kind != Kind::kQuiet && left() == 2;
    words.push_back({kind, kind == Kind::kWake ? 0 : writer.last, asks});
    if (kind != Kind::kQuiet) ++writer.sent;
  }
  bool sendWord() {
    if (writer.left == 0 || (!writer.peerPolls && !maySend())) return false;
    --writer.left;
    ++writer.last;
    post(writer.peerPolls ? Kind::kQuiet : Kind::kNews);
    return true;
  }
  bool turnWriter() {
    if (writer.completions == 0 && !(writer.owesWake && maySend())) return false;
    for (; writer.completions != 0; --writer.completions) {
      const bool isQuiet = writer.underWay.front();
      writer.underWay.erase(writer.underWay.begin());
      writer.owesWake |= isQuiet && rules->looksAtEnd && !writer.peerPolls;
    }
    if (!writer.owesWake) return true;
    const bool may = maySend();
    if (may) post(Kind::kWake);
    writer.owesWake = !may && rules->owesUntilSent;
    return true;
  }

  bool wordComes() {
    if (words.empty()) return false;
    sleeper.placing.push_back(takeFirst(words));
    ++acks;
    return true;
  }
  bool placeAtSleeper() {
    if (sleeper.placing.empty()) return false;
    const Item item = takeFirst(sleeper.placing);
    if (item.kind == Kind::kQuiet || item.kind == Kind::kNews) sleeper.word = item.value;
    if (item.kind != Kind::kQuiet) sleeper.queue.push_back({item.kind, 0, item.asks});
    return true;
  }
  bool ackComes() {
    if (acks == 0) return false;
    --acks;
    ++writer.completions;
    return true;
  }
  bool factComes() {
    if (facts.empty()) return false;
    if (facts.front().kind == Kind::kRead) {
      if (!writer.placing.empty()) return false;  // it waits for the writes before it
      answers.push_back(takeFirst(facts));
      return true;
    }
    const Item fact = takeFirst(facts);
    writer.placing.push_back(fact);
    if (!rules->readsAfterStopping && fact.kind == Kind::kPolls && fact.value == 0)
      answers.push_back(fact);  // acknowledged, and no more
    return true;
  }
  bool placeAtWriter() {
    if (writer.placing.empty()) return false;
    const Item item = takeFirst(writer.placing);
    if (item.kind == Kind::kPolls) writer.peerPolls = item.value != 0;
    if (item.kind == Kind::kTaken) writer.taken = item.value;
    return true;
  }
  bool answerComes() {
    if (answers.empty()) return false;
    (void)takeFirst(answers);
    if (rules->answerWakes) sleeper.placing.push_back({Kind::kAnswer, 0});
    return true;
  }

  bool look() {
    if (sleeper.at == At::kLastLook)
      sleeper.at = At::kAsleep;
    else if (sleeper.at != At::kPolling || sleeper.seen == sleeper.word)
      return false;
    sleeper.seen = sleeper.word;
    return true;
  }
  void stop() {
    if (!std::exchange(sleeper.isBelieved, false)) return;
    facts.push_back({Kind::kPolls, 0});
    if (rules->readsAfterStopping) facts.push_back({Kind::kRead, 0});
  }
  // Takes completions; tells how many news, and whether it polls.
  bool turnSleeper() {
    const bool polls = sleeper.at == At::kPolling;
    if (!polls && sleeper.at != At::kLeft) return false;
    if (polls && sleeper.queue.empty()) return false;
    bool isAsked = false;
    for (const Item& item : std::exchange(sleeper.queue, {})) {
      if (item.kind == Kind::kAnswer) continue;
      ++sleeper.taken;
      ++sleeper.newsPolled;
      isAsked |= item.asks;
    }
    if (isAsked || sleeper.taken - sleeper.told >= rules->early) {
      facts.push_back({Kind::kTaken, sleeper.taken});
      sleeper.told = sleeper.taken;
    }
    if (polls) {
      if (!sleeper.isBelieved && sleeper.newsPolled >= rules->fewNews) {
        facts.push_back({Kind::kPolls, 1});
        sleeper.isBelieved = true;
      }
      return true;
    }
    sleeper.newsPolled = 0;
    if (rules->stopsBeforeLastLook) stop();
    sleeper.at = At::kLastLook;
    return true;
  }
  bool leave() {
    if (sleeper.at != At::kPolling) return false;
    sleeper.at = At::kLeft;
    return true;
  }
  bool wake() {
    if (sleeper.at != At::kAsleep || sleeper.queue.empty()) return false;
    sleeper.at = At::kLeft;
    return true;
  }
  bool wakeAndPoll() {
    if (sleeper.at != At::kAsleep || sleeper.queue.empty()) return false;
    sleeper.at = At::kPolling;
    return true;
  }
};

}  // namespace

SearchReport exploreQuiet(const QuietRules& rules) {
  return search(Both{.rules = &rules, .writer = {.left = rules.words}});
}

}  // namespace peerlane::explorer
