// SPDX-License-Identifier: Apache-2.0
//
// The control functions of the software HCA (software_hca.h), found in the library that
// PEERLANE_IBV_SO names: these tests make its faults and read its counts. Immutable once found.
#pragma once

#include "tests/fake/software_hca/software_hca.h"

namespace peerlane {

struct HcaControl {
  // Ends the program with a sentence where the library is a real one.
  static const HcaControl& get();

#define PEERLANE_HCA_CONTROL(name) decltype(&::software_hca_##name) name = nullptr
  PEERLANE_HCA_CONTROL(counts);
  PEERLANE_HCA_CONTROL(context_counts);
  PEERLANE_HCA_CONTROL(reset_counts);
  PEERLANE_HCA_CONTROL(measure);
  PEERLANE_HCA_CONTROL(objects);
  PEERLANE_HCA_CONTROL(hold);
  PEERLANE_HCA_CONTROL(step);
  PEERLANE_HCA_CONTROL(release);
  PEERLANE_HCA_CONTROL(settle);
  PEERLANE_HCA_CONTROL(inject);
  PEERLANE_HCA_CONTROL(set_port);
  PEERLANE_HCA_CONTROL(remove_device);
  PEERLANE_HCA_CONTROL(revoke);
  PEERLANE_HCA_CONTROL(break_pair);
  PEERLANE_HCA_CONTROL(overrun);
#undef PEERLANE_HCA_CONTROL
};

}  // namespace peerlane
