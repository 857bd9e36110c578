// SPDX-License-Identifier: Apache-2.0
#include "peerlane/progress/awaited.h"

namespace peerlane {

std::string durationInWords(std::chrono::nanoseconds duration) {
  using namespace std::chrono;
  if (duration < nanoseconds(0)) duration = nanoseconds(0);
  if (duration >= years(1)) return "no end";
  if (duration < milliseconds(1))
    return std::to_string(round<microseconds>(duration).count()) + " us";
  if (duration < seconds(10)) return std::to_string(round<milliseconds>(duration).count()) + " ms";
  const auto tenths = round<std::chrono::duration<int64_t, std::deci>>(duration).count();
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace peerlane
