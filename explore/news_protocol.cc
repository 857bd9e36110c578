// SPDX-License-Identifier: Apache-2.0
#include "explore/news_protocol.h"

#include <array>
#include <compare>
#include <cstddef>

#include "peerlane/transport/verbs/request/news.h"

namespace peerlane::explorer {
namespace {

// On its way: a count that is written to the peer's control block, or news.
struct Request {
  bool isNews = false;
  bool asks = false;
  bool isWord = false;
  uint64_t count = 0;
  auto operator<=>(const Request&) const = default;
};

struct Half {
  uint32_t left = 0;       // words to send
  uint64_t sent = 0;       // news
  uint64_t confirmed = 0;  // of them, as the peer wrote
  uint64_t taken = 0;      // news of the peer
  uint64_t told = 0;
  uint64_t wordsTaken = 0;
  bool isAsked = false;
  bool isAsleep = false;
  std::vector<Request> arrived{};  // and not taken: receives that are taken up
  std::vector<Request> wire{};     // to the peer
  auto operator<=>(const Half&) const = default;
};

// What a turn of one side does, without the waiting.
class Turn {
 public:
  Turn(const NewsRules& rules, Half& half) : rules_(rules), half_(half) {
    credits_.begin(reinterpret_cast<const std::byte*>(&half_.confirmed), rules_.window);
    for (uint64_t i = 0; i < half_.sent; ++i) credits_.use();
  }

  bool takeAll() {
    const bool any = !half_.arrived.empty();
    for (const Request& news : half_.arrived) {
      ++half_.taken;
      half_.wordsTaken += news.isWord ? 1 : 0;
      half_.isAsked |= news.asks;
    }
    half_.arrived.clear();
    return any;
  }
  bool tell() {
    const bool isEarly = !(rules_.anyOrder && rules_.waitsToBeAsked) &&
                         half_.taken - half_.told >= rules_.window / 2;
    if (!half_.isAsked && !isEarly) return false;
    const bool isNews = half_.isAsked && rules_.answersWake;
    if (isNews && rules_.countsAnswers && !credits_.mayAnswer()) return false;
    half_.wire.push_back({.count = half_.taken});
    if (isNews) sendNews(rules_.answersAsk && credits_.isNextLast(), false);
    half_.told = half_.taken;
    half_.isAsked = false;
    return true;
  }
  bool sendWord() {
    if (half_.left == 0 || !(rules_.keepsReserve ? credits_.maySend() : credits_.mayAnswer()))
      return false;
    sendNews(rules_.asks && credits_.isNextLast(), true);
    --half_.left;
    return true;
  }

 private:
  void sendNews(bool asks, bool isWord) {
    half_.wire.push_back({.isNews = true, .asks = asks, .isWord = isWord});
    if (!isWord && !rules_.countsAnswers) return;
    credits_.use();
    ++half_.sent;
  }

  const NewsRules& rules_;
  Half& half_;
  NewsCredits credits_;
};

struct Sides {
  const NewsRules* rules = nullptr;
  std::array<Half, 2> halves{};
  auto operator<=>(const Sides&) const = default;

  std::vector<Step<Sides>> steps() const {
    std::vector<Step<Sides>> steps;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      addTurn(i, steps);
      for (size_t at = 0; at < halves[i].wire.size(); ++at) addArrival(i, at, steps);
    }
    return steps;
  }

  std::string stuck() const {
    std::string why;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const Half& half = halves[i];
      if (half.left != 0)
        why += "side " + std::to_string(i) + " sleeps with " + std::to_string(half.left) +
               " words to send; ";
      if (halves[1 - i].wordsTaken + half.left != rules->words[i]) why += "a word was lost; ";
    }
    return why;
  }

 private:
  void addTurn(size_t i, std::vector<Step<Sides>>& steps) const {
    if (halves[i].isAsleep) return;
    Step<Sides> step{"side " + std::to_string(i) + " turns", *this};
    Half& half = step.next.halves[i];
    Turn turn(*rules, half);
    bool moved = turn.takeAll();
    moved |= turn.tell();
    while (turn.sendWord()) moved = true;
    if (!moved) {
      half.isAsleep = true;
      step.what += ", and sleeps";
    }
    steps.push_back(std::move(step));
    // A thread that posts one word at a time.
    Step<Sides> one{"side " + std::to_string(i) + " sends one word", *this};
    if (Turn(*rules, one.next.halves[i]).sendWord()) steps.push_back(std::move(one));
  }

  void addArrival(size_t i, size_t at, std::vector<Step<Sides>>& steps) const {
    const Request request = halves[i].wire[at];
    if (at != 0 && (request.isNews || !rules->anyOrder)) return;
    Step<Sides> step{"", *this};
    Half& peer = step.next.halves[1 - i];
    auto& wire = step.next.halves[i].wire;
    wire.erase(wire.begin() + static_cast<ptrdiff_t>(at));
    if (!request.isNews) {
      step.what = "side " + std::to_string(1 - i) + " is told " + std::to_string(request.count);
      peer.confirmed = request.count;
    } else {
      step.what = "news reaches side " + std::to_string(1 - i) + (request.asks ? ", asking" : "");
      peer.arrived.push_back(request);
      peer.isAsleep = false;
      if (peer.arrived.size() > rules->window)
        step.fault = "more news than receives at side " + std::to_string(1 - i);
    }
    steps.push_back(std::move(step));
  }
};

}  // namespace

SearchReport exploreNews(const NewsRules& rules) {
  Sides start{.rules = &rules};
  for (const size_t i : {size_t{0}, size_t{1}}) start.halves[i].left = rules.words[i];
  return search(start);
}

}  // namespace peerlane::explorer
