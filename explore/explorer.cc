// SPDX-License-Identifier: Apache-2.0
#include "explore/explorer.h"

#include <algorithm>
#include <deque>

#include "explore/explorer_machine.h"

namespace peerlane::explorer {
namespace {

// Which states were seen, by a 64-bit hash: two of some million states share one with a probability
// of about one in a million. Open addressing; 0 marks a free place.
class Seen {
 public:
  Seen() : places_(1 << 12) {}

  // False when it was there.
  bool insert(uint64_t hash) {
    if (hash == 0) hash = 1;
    if (!place(hash)) return false;
    if (++count_ * 2 > places_.size()) grow();
    return true;
  }

 private:
  bool place(uint64_t hash) {
    const size_t mask = places_.size() - 1;
    size_t at = static_cast<size_t>(hash) & mask;
    for (; places_[at] != 0; at = (at + 1) & mask)
      if (places_[at] == hash) return false;
    places_[at] = hash;
    return true;
  }
  void grow() {
    std::vector<uint64_t> old(places_.size() * 2);
    old.swap(places_);
    for (const uint64_t hash : old)
      if (hash != 0) place(hash);
  }

  std::vector<uint64_t> places_;
  size_t count_ = 0;
};

uint64_t hashOf(const State& state) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const uint32_t value : state) {
    hash = (hash ^ value) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

// Breadth first: the first violation found has a shortest trace.
class Search {
 public:
  explicit Search(const Machine& machine, uint64_t maxStates)
      : machine_(machine), maxStates_(maxStates) {}

  ExplorerReport run() {
    push(machine_.initial(nullptr), 0, {});
    std::vector<Move> moves;
    while (!frontier_.empty()) {
      const Node node = std::move(frontier_.front());
      frontier_.pop_front();
      machine_.moves(node.state, moves);
      if (moves.empty()) {
        const Finding finding = machine_.judgeEnd(node.state);
        if (finding.violation != Violation::kNone) return found(finding, node.index, nullptr);
      }
      for (const Move& move : moves) {
        State next = node.state;
        const Finding finding = machine_.apply(next, move, nullptr);
        if (finding.violation != Violation::kNone) return found(finding, node.index, &move);
        push(std::move(next), node.index, move);
      }
      if (steps_.size() >= maxStates_) {
        report_.complete = frontier_.empty();
        break;
      }
    }
    report_.states = steps_.size();
    return std::move(report_);
  }

 private:
  struct Node {
    State state;
    uint32_t index;
  };
  struct Step {
    uint32_t parent;
    uint16_t actor;
    uint16_t effect;
  };

  void push(State state, uint32_t parent, const Move& move) {
    if (!seen_.insert(hashOf(state))) return;
    const uint32_t index = static_cast<uint32_t>(steps_.size());
    steps_.push_back(
        {parent, static_cast<uint16_t>(move.actor), static_cast<uint16_t>(move.effect)});
    frontier_.push_back({std::move(state), index});
  }

  ExplorerReport found(const Finding& finding, uint32_t index, const Move* last) {
    report_.violation = finding.violation;
    report_.what = finding.what;
    report_.states = steps_.size();
    std::vector<Move> moves;
    for (uint32_t at = index; at != 0; at = steps_[at].parent)
      moves.push_back({steps_[at].actor, steps_[at].effect});
    std::reverse(moves.begin(), moves.end());
    if (last != nullptr) moves.push_back(*last);
    State state = machine_.initial(&report_.trace);
    for (const Move& move : moves) (void)machine_.apply(state, move, &report_.trace);
    return std::move(report_);
  }

  const Machine& machine_;
  uint64_t maxStates_;
  Seen seen_;
  std::vector<Step> steps_;  // how each state was first reached
  std::deque<Node> frontier_;
  ExplorerReport report_;
};

}  // namespace

const char* violationName(Violation violation) {
  switch (violation) {
    case Violation::kNone: return "none";
    case Violation::kDeadlock: return "deadlock";
    case Violation::kReadBeforeWrite: return "read before write";
    case Violation::kOverwriteBeforeDrain: return "overwrite before drain";
    case Violation::kStaleReplay: return "stale replay";
    case Violation::kLostSignal: return "lost signal";
    case Violation::kCounterWentBack: return "counter went back";
    case Violation::kBadScenario: return "bad scenario";
  }
  return "?";
}

std::string ExplorerReport::toString() const {
  std::string text = std::string(violationName(violation)) + " after " + std::to_string(states) +
                     " states" + (complete ? "" : " (not all)") + "\n" + what + "\n";
  for (const std::string& step : trace) text += "  " + step + "\n";
  return text;
}

ExplorerReport explore(const Scenario& scenario) {
  Scripts scripts = compile(scenario);
  if (!scripts.defect.empty()) {
    ExplorerReport report;
    report.violation = Violation::kBadScenario;
    report.what = scripts.defect;
    return report;
  }
  const Machine machine(scenario, std::move(scripts));
  return Search(machine, scenario.maxStates).run();
}

}  // namespace peerlane::explorer
