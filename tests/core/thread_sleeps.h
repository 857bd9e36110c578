// SPDX-License-Identifier: Apache-2.0
//
// For tests: whether a thread of this process sleeps at this moment, as the kernel says. Any
// thread.
#pragma once

#include <fstream>
#include <string>

namespace peerlane {

inline bool threadSleeps(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  // "12 (name) S ...": the name may hold anything.
  const size_t end = line.rfind(") ");
  return end != std::string::npos && line[end + 2] == 'S';
}

}  // namespace peerlane
