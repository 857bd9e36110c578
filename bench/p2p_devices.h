// SPDX-License-Identifier: Apache-2.0
//
// BenchDevice: what p2p_blocks needs of CUDA, for one side. A build without CUDA has none. Errors
// end the program. Confined to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace peerlane::blocks {

// How the other process maps an allocation.
using Exported = std::array<char, 64>;

class BenchDevice {
 public:
  // Asked before the fork, which CUDA does not survive, so the driver is not asked.
  static bool isThere();
  // The second side takes the second GPU where there is one.
  void open(int side);
  void* makeStream();
  void synchronize(void* stream);
  std::byte* allocate(size_t bytes);
  // Eight bytes.
  void* word();
  void clear(void* memory, size_t bytes);
  // `onDevice`: else plain host memory.
  void toHost(void* to, const void* from, size_t bytes, bool onDevice);
  void fromHost(void* to, const void* from, size_t bytes, bool onDevice);
  size_t usedBytes();
  Exported exported(void* memory);
  // One contiguous copy by the copy engine into what the other side exported, many times. In us.
  double copyTime(const void* from, const Exported& to, size_t bytes, void* stream);
  // The same from pinned memory of this host.
  double hostLinkTime(void* to, size_t bytes, void* stream);

 private:
  void* word_ = nullptr;
};

}  // namespace peerlane::blocks
