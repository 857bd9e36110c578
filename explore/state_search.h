// SPDX-License-Identifier: Apache-2.0
//
// StateSearch: all states that a small machine can get into, for protocols that branch, which
// programs of the waist do not (explorer.h). A machine is a value with an order that says which
// steps it can take. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace peerlane::explorer {

// One step, and the state after it. `fault`: such a step must not be; the search ends with it.
template <typename State>
struct Step {
  std::string what;
  State next;
  std::string fault{};
};

struct SearchReport {
  std::string fault;               // empty: none
  std::vector<std::string> trace;  // a shortest way there
  uint64_t states = 0;
  bool isComplete = true;

  bool ok() const { return fault.empty() && isComplete; }
  std::string toString() const {
    std::string text = fault.empty() ? "right" : fault;
    text += " (" + std::to_string(states) + " states" + (isComplete ? ")" : ", not all)");
    for (const std::string& step : trace) text += "\n  " + step;
    return text;
  }
};

// `State`: steps(), and stuck(): what is wrong when there is no step; empty: it has ended well.
template <typename State>
SearchReport search(const State& start, uint64_t mostStates = 2'000'000) {
  struct Origin {
    const State* from = nullptr;
    std::string what;
  };
  SearchReport report;
  std::map<State, Origin> seen;
  std::vector<const State*> queue{&seen.emplace(start, Origin{}).first->first};
  const auto fault = [&](const State* at, std::string why) {
    report.fault = std::move(why);
    report.states = seen.size();
    for (; seen.at(*at).from != nullptr; at = seen.at(*at).from)
      report.trace.insert(report.trace.begin(), seen.at(*at).what);
    return report;
  };
  for (size_t next = 0; next < queue.size(); ++next) {
    const State* const at = queue[next];
    std::vector<Step<State>> steps = at->steps();
    if (steps.empty())
      if (std::string why = at->stuck(); !why.empty()) return fault(at, std::move(why));
    for (Step<State>& step : steps) {
      const auto [found, isNew] = seen.try_emplace(std::move(step.next), Origin{at, step.what});
      if (!step.fault.empty()) {
        if (!isNew) found->second = {at, step.what};
        return fault(&found->first, std::move(step.fault));
      }
      if (isNew) queue.push_back(&found->first);
    }
    if (seen.size() > mostStates) {
      report.isComplete = false;
      break;
    }
  }
  report.states = seen.size();
  return report;
}

}  // namespace peerlane::explorer
