// SPDX-License-Identifier: Apache-2.0
//
// p2p_devices.h in a build without CUDA.
#include <cstdlib>
#include <cstring>

#include "bench/p2p_devices.h"

namespace peerlane::blocks {

bool BenchDevice::isThere() {
  return false;
}
void BenchDevice::open(int /*side*/) {}
void* BenchDevice::makeStream() {
  return nullptr;
}
void BenchDevice::synchronize(void* /*stream*/) {}
std::byte* BenchDevice::allocate(size_t /*bytes*/) {
  std::abort();
}
void* BenchDevice::word() {
  return word_;
}
void BenchDevice::clear(void* /*memory*/, size_t /*bytes*/) {}
void BenchDevice::toHost(void* to, const void* from, size_t bytes, bool /*onDevice*/) {
  std::memcpy(to, from, bytes);
}
void BenchDevice::fromHost(void* to, const void* from, size_t bytes, bool /*onDevice*/) {
  std::memcpy(to, from, bytes);
}
size_t BenchDevice::usedBytes() {
  return 0;
}
Exported BenchDevice::exported(void* /*memory*/) {
  return {};
}
double BenchDevice::copyTime(const void* /*from*/, const Exported& /*to*/, size_t /*bytes*/,
                             void* /*stream*/) {
  return 0;
}
double BenchDevice::hostLinkTime(void* /*to*/, size_t /*bytes*/, void* /*stream*/) {
  return 0;
}

}  // namespace peerlane::blocks
