// SPDX-License-Identifier: Apache-2.0
//
// Tests with GPUs run in processes of their own: CUDA does not survive a fork, so the test program
// itself never touches it. Each side is a function; they talk through a Line. A side fails its test
// by a failed expectation (printed there) or by dying; sides that hang are killed.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane::gputest {

// One end of a socket pair. Any failure ends the process: the other side is gone.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void send(const std::string& text) const;
  std::string receive() const;
  // Both sides are here.
  void meet() const;

 private:
  int fd_;
};

// GPUs in software copy as fast as one core does: tests that are about time or size move less.
bool inSoftware();
// How many GPUs there are, asked in a child.
int gpuCount();

using SideFunction = std::function<void(const Line& line)>;
// Runs both in fresh processes, `seconds` at most. False when one failed.
bool runTwo(const SideFunction& first, const SideFunction& second, int seconds = 60);
bool runOne(const SideFunction& only, int seconds = 60);

#define PEERLANE_NEEDS_GPUS(count)                  \
  if (::peerlane::gputest::gpuCount() < (count)) {  \
    GTEST_SKIP() << "needs " << (count) << " GPUs"; \
  }                                                 \
  static_assert(true)

// --- Inside a side ---

// The second of two sides uses the second GPU where there is one.
Device gpu(int side);
// A context for that GPU; ends the process when it cannot be made.
std::unique_ptr<Context> makeContext(std::vector<Device> devices);

// The two sides as peers, over the line.
Peer meetPeer(Context& context, const Line& line, bool connects);
RemoteRegion exchange(const Peer& peer, const Region& region, const Line& line);

// Device memory as the host sees it.
void fill(void* device, size_t bytes, uint32_t seed);
void clear(void* device, size_t bytes, int value);
// The number of 4-byte words in [device, +bytes) that are not those of fill(seed), which began
// `skip` bytes before.
uint64_t wrongWords(const void* device, size_t bytes, uint32_t seed, size_t skip = 0);

// For code that cannot go on: prints and ends the process.
[[noreturn]] void die(const char* what, const Status& status);
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result.isOk()) die(what, result.status());
  return std::move(*result);
}
inline void must(const Status& status, const char* what) {
  if (!status.isOk()) die(what, status);
}
// The same for CUDA.
void mustCuda(int error, const char* what);

inline constexpr std::chrono::seconds kPatience{20};

}  // namespace peerlane::gputest
