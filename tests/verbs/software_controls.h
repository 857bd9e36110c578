// SPDX-License-Identifier: Apache-2.0
//
// What tests do to the software HCA (tests/fake/software_hca/software_hca.h), found in the library
// that they loaded, and a test with connected pairs on a device that is set up by the environment.
#pragma once

#include <cstdlib>
#include <map>
#include <string>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {

struct SoftwareControls {
  SoftwareControls() {
    const LoadedVerbs& verbs = LoadedVerbs::get();
    const auto find = [&verbs]<class Function>(const char* name, Function& function) {
      function = reinterpret_cast<Function>(verbs.control(name));
      if (function == nullptr) {
        fprintf(stderr, "PEERLANE_IBV_SO: %s is no software HCA, it has no %s\n",
                verbs.path.c_str(), name);
        abort();
      }
    };
#define FIND(name) find("software_hca_" #name, name)
    FIND(counts), FIND(context_counts), FIND(reset_counts), FIND(measure), FIND(objects);
    FIND(hold), FIND(step), FIND(release), FIND(settle), FIND(inject);
    FIND(set_port), FIND(change_gids), FIND(change_pkeys), FIND(remove_device);
    FIND(revoke), FIND(break_pair), FIND(overrun);
#undef FIND
  }

#define CONTROL(name) decltype(&::software_hca_##name) name
  CONTROL(counts);
  CONTROL(context_counts);
  CONTROL(reset_counts);
  CONTROL(measure);
  CONTROL(objects);
  CONTROL(hold);
  CONTROL(step);
  CONTROL(release);
  CONTROL(settle);
  CONTROL(inject);
  CONTROL(set_port);
  CONTROL(change_gids);
  CONTROL(change_pkeys);
  CONTROL(remove_device);
  CONTROL(revoke);
  CONTROL(break_pair);
  CONTROL(overrun);
#undef CONTROL
};

class SoftwareTest : public ConnectedTest {
 protected:
  SoftwareTest() = default;
  // The environment is as before when the test ends.
  explicit SoftwareTest(const std::map<std::string, std::string>& settings) {
    for (const auto& [name, value] : settings) {
      const char* before = getenv(name.c_str());
      before_[name] = before == nullptr ? "" : before;
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~SoftwareTest() override {
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  SoftwareHcaCounts counts(ibv_qp* pair) {
    SoftwareHcaCounts found = {};
    EXPECT_EQ(controls.counts(pair, &found), 0);
    return found;
  }
  SoftwareControls controls;

 private:
  std::map<std::string, std::string> before_;
};

}  // namespace peerlane
