// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/holdings.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

// The heap's, and those of threads that come and go: a stack and an arena each. Fewer than any of
// the tests does rounds. The sanitizer for threads maps its notes of every place that was ever
// used.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kMoreMappings = 10000;
#else
constexpr size_t kMoreMappings = 16;
#endif

}  // namespace

Holdings Holdings::now() {
  int current = 0;
  mustCuda(cudaGetDevice(&current), "cudaGetDevice");
  return on({current});
}

Holdings Holdings::on(std::vector<int> gpus) {
  int current = 0;
  mustCuda(cudaGetDevice(&current), "cudaGetDevice");
  Holdings found;
  for (const int gpu : gpus) {
    mustCuda(cudaSetDevice(gpu), "cudaSetDevice");
    size_t available = 0, total = 0;
    mustCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    found.deviceBytes += total - available;
  }
  mustCuda(cudaSetDevice(current), "cudaSetDevice");
  found.gpus = std::move(gpus);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++found.descriptors;
    std::error_code gone;  // the directory's own
    found.open += "  " + std::filesystem::read_symlink(entry, gone).string() + "\n";
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++found.mappings;
  return found;
}

void expectNoMoreThan(const Holdings& before) {
  const size_t mappings = before.mappings + kMoreMappings;
  const size_t deviceBytes = before.deviceBytes + (size_t{4} << 20);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  Holdings after = Holdings::on(before.gpus);
  while ((after.descriptors > before.descriptors || after.mappings > mappings ||
          after.deviceBytes > deviceBytes) &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    after = Holdings::on(before.gpus);
  }
  EXPECT_LE(after.descriptors, before.descriptors) << "before:\n"
                                                   << before.open << "after:\n"
                                                   << after.open;
  EXPECT_LE(after.mappings, mappings);
  EXPECT_LE(after.deviceBytes, deviceBytes);
}

}  // namespace peerlane::gputest
