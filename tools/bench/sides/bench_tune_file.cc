// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_tune_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <vector>

#include "peerlane/core/text.h"
#include "tools/bench/sides/bench_memory.h"
#include "tools/ceiling/ceiling_copy.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kLeastBytes = 64 * kKiB;
constexpr uint64_t kMostBytes = 64 * kMiB;
constexpr uint64_t kRoomBytes = 256 * kMiB;
// A way must be this much faster than memcpy to be preferred: thresholds are not worth noise.
constexpr double kMargin = 1.05;

const char* nameInFile(CopyWay way) {
  switch (way) {
    case CopyWay::kMemcpy: return "copy_memcpy";
    case CopyWay::kStreaming: return "copy_streaming";
    case CopyWay::kMovsb: return "copy_movsb";
    case CopyWay::kKernel: return "copy_process_vm";
  }
  return "";
}

struct Measured {
  CopyWay way = CopyWay::kMemcpy;
  double microseconds = 0;
};

class CopyTuning {
 public:
  CopyTuning(std::byte* from, std::byte* to) : from_(from), to_(to) {}

  // The ways that work here, fastest first.
  std::vector<Measured> measure(uint64_t bytes) {
    std::vector<Measured> all;
    for (const CopyWay way : copyWays(true, true)) {
      std::vector<double> times;
      const uint64_t samples = std::min<uint64_t>(kRoomBytes / bytes, 64);
      for (uint64_t i = 0; i < samples; ++i) {
        // Each way goes on where the one before it has stopped.
        if (kRoomBytes - next_ < bytes) next_ = 0;
        const RawPiece piece{from_ + next_, to_ + next_, to_ + next_, bytes};
        next_ += bytes;
        const Clock::time_point start = Clock::now();
        if (!copyPieces(way, ::getpid(), {&piece, 1}, true).isOk()) break;
        times.push_back(microsecondsSince(start));
      }
      if (times.empty()) continue;  // forbidden here
      std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
      all.push_back({way, times[times.size() / 2]});
    }
    std::sort(all.begin(), all.end(),
              [](const Measured& a, const Measured& b) { return a.microseconds < b.microseconds; });
    return all;
  }

 private:
  std::byte* const from_;
  std::byte* const to_;
  uint64_t next_ = 0;
};

double timeOf(const std::vector<Measured>& all, CopyWay way) {
  for (const Measured& each : all)
    if (each.way == way) return each.microseconds;
  return 0;
}

}  // namespace

// Thresholds say "from here on", so each way can have one range: those of the large sizes are found
// first, and a way that was the best at a smaller size again is left out there.
Result<std::string> copyThresholds(const std::function<void(const std::string&)>& say) {
  PEERLANE_ASSIGN(const auto from, PrivateMemory::create(kRoomBytes));
  PEERLANE_ASSIGN(const auto to, PrivateMemory::create(kRoomBytes));
  std::fill_n(from->data(), kRoomBytes, std::byte{1});
  std::fill_n(to->data(), kRoomBytes, std::byte{2});
  CopyTuning tuning(from->data(), to->data());
  std::vector<uint64_t> sizes;
  std::vector<CopyWay> best;
  for (uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    const std::vector<Measured> all = tuning.measure(bytes);
    std::string line = "host copy of " + formatByteSize(bytes) + ":";
    for (const Measured& each : all) {
      char text[80];
      std::snprintf(text, sizeof(text), "  %s %.2f GB/s", nameOf(each.way, true).c_str(),
                    static_cast<double>(bytes) / each.microseconds / 1e3);
      line += text;
    }
    say(line);
    sizes.push_back(bytes);
    const bool isWorthIt = all.front().microseconds * kMargin < timeOf(all, CopyWay::kMemcpy);
    best.push_back(isWorthIt ? all.front().way : CopyWay::kMemcpy);
  }
  std::string lines;
  std::vector<CopyWay> taken;
  for (size_t i = sizes.size(); i-- > 0;) {
    const bool begins = i == 0 || best[i - 1] != best[i];
    if (!begins || std::find(taken.begin(), taken.end(), best[i]) != taken.end()) continue;
    taken.push_back(best[i]);
    const bool isFromZero = i == 0 && best[i] == CopyWay::kMemcpy;
    lines +=
        std::string(nameInFile(best[i])) + " = " + std::to_string(isFromZero ? 0 : sizes[i]) + "\n";
  }
  // Without one, memcpy is the way of the sizes below all thresholds. A file that names none would
  // leave the built-in ones.
  return lines;
}

Status writeTuneFile(const std::string& file, const std::string& text) {
  const std::string partial = file + ".part";
  {
    std::ofstream out(partial, std::ios::trunc);
    out << text;
    if (!out.flush()) return Status::system(errno, "writing " + partial);
  }
  if (std::rename(partial.c_str(), file.c_str()) == 0) return Status::ok();
  return Status::system(errno, "writing " + file);
}

}  // namespace peerlane::bench
