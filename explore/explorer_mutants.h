// SPDX-License-Identifier: Apache-2.0
//
// Mutants: the small mistakes one can make in a program, each made once. A test explores every one;
// a mutant that nothing catches shows an op that is superfluous, or an explorer that is blind.
#pragma once

#include <string>
#include <vector>

#include "peerlane/program/model/program.h"

namespace peerlane::explorer {

struct Mutant {
  std::string what;  // "eager-send op 3 relaxed"
  Program program;
};

// Each op left out; each release made relaxed; each cursor operand made constant (as it is in the
// first execution); each slot of a ring shifted by one; each cursor operand of a store, or of a
// copy into LL packets, one too high and one too low, of a wait one too low (one too high waits for
// more than is needed: slower or stuck, but that is not the program's order).
std::vector<Mutant> mutantsOf(const Program& program);

}  // namespace peerlane::explorer
