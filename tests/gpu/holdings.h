// SPDX-License-Identifier: Apache-2.0
//
// Holdings: what a process with a GPU holds that ought not to grow.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace peerlane::gputest {

struct Holdings {
  size_t descriptors = 0;
  std::string open;  // what each of them is, a line each
  size_t mappings = 0;
  size_t deviceBytes = 0;  // used on these GPUs, by whoever
  std::vector<int> gpus;

  // On the current GPU.
  static Holdings now();
  // On these; makes contexts there.
  static Holdings on(std::vector<int> gpus);
};

// What is released last goes by other threads, so this may take a moment. Allowed for: 4 MiB of
// device memory, and some mappings, which are the heap's.
void expectNoMoreThan(const Holdings& before);

}  // namespace peerlane::gputest
