// SPDX-License-Identifier: Apache-2.0
//
// The checks of `peerlane doctor`: which parts of this machine Peerlane can use, found by trying
// them. Values; each check undoes what it did. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace peerlane {

struct Finding {
  enum class State {
    kWorks,
    kLimited,  // works, but slower or with less than possible
    kAbsent,   // not here, and nothing is wrong
    kBroken,   // needed, and missing
  };
  std::string subject;
  State state = State::kWorks;
  std::string text;
  std::string advice;  // empty: nothing to do
};

// "works", "limited", "absent", "broken".
const char* findingStateName(Finding::State state);

// Kernel, processors, limits, and each facility that links and memory are built on.
std::vector<Finding> checkMachine();
// GPUs and NICs.
std::vector<Finding> checkDevices();
// Every variable that is set and read: PEERLANE_* (secrets are not shown), and those of P2P and
// HCCL that stand for them; and the mistakes in them.
std::vector<Finding> checkEnvironment();
// Why one process may not read another's memory here, as far as settings tell; empty: they allow
// it.
std::string cmaHindrance();

}  // namespace peerlane
