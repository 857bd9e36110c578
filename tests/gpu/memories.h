// SPDX-License-Identifier: Apache-2.0
//
// The kinds of memory that a region may be made of, and how a test gets some of each. Whatever is
// made here goes with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane::gputest {

enum class Memory {
  kVmm,        // Context::allocate on a GPU
  kMalloc,     // cudaMalloc
  kOddOffset,  // in the middle of a cudaMalloc allocation
  kSmall,      // cudaMalloc; for less than the driver's granule of 2 MiB
  kChunks,     // VMM chunks side by side, from some offset in the first on
  kPool,       // cudaMallocAsync, of a pool that was made for export
  kFabric,     // VMM, made for export by fabric handle alone
  kPrivate,    // VMM, not made for export
  kShared,     // Context::allocate on the host
  kMemfd,      // mapped by the test
  kPinned,     // cudaHostAlloc
  kHeap,
};
std::string nameOf(Memory memory);
constexpr bool isOfGpu(Memory memory) {
  return memory <= Memory::kPrivate;
}

// One file, mapped in whole.
std::byte* mapMemfd(size_t bytes);
Region makeRegion(Context& context, Device device, Memory memory, size_t bytes);

// As what VMM memory is made to leave its process.
enum class Export { kNone, kDescriptor, kFabric, kBoth };

// Reserved addresses with VMM chunks mapped side by side, as PyTorch's expandable segments are.
class Segment {
 public:
  Segment(int gpu, std::vector<size_t> sizes, Export as = Export::kDescriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }
  size_t bytes() const { return bytes_; }
  void map(size_t i, Export as = Export::kDescriptor);
  void unmap(size_t i);

 private:
  const int gpu_;
  const std::vector<size_t> sizes_;
  size_t bytes_ = 0;
  unsigned long long base_ = 0;  // CUdeviceptr
  std::vector<size_t> offsets_;
  std::vector<bool> mapped_;
};

// `count` sizes of one kind.
std::vector<size_t> chunks(size_t count, size_t bytes = size_t{2} << 20);

}  // namespace peerlane::gputest
