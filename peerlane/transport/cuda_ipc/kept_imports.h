// SPDX-License-Identifier: Apache-2.0
//
// KeptImports: allocations of peers that outlive the regions in them (RegionGrant::isKept), mapped
// once for all connections of a context with the same process, and for a while after the last one:
// to unmap one holds locks of the driver and of the address space, for which the next connection
// would wait (1 to 3 ms, measured). Thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/cuda/cuda_mapping.h"

namespace peerlane {

// A process for ever: pids are used again, with another start, and exec() keeps both.
struct ProcessName {
  pid_t pid = 0;
  uint64_t startTime = 0;  // os/process.h
  uint64_t life = 0;       // PeerFacts::life
  auto operator<=>(const ProcessName&) const = default;

  // Nothing where this process does not see `pid` (of another PID namespace: 0), or it has ended.
  static std::optional<ProcessName> of(pid_t pid, uint64_t life = 0);
};

class KeptImports {
 public:
  using Clock = std::chrono::steady_clock;
  using Import = std::function<Result<std::shared_ptr<CudaMapping>>()>;
  static constexpr std::chrono::seconds kIdleTime{5};
  static constexpr size_t kMostIdle = 16;

  // The allocation of `owner` that has this number there and so many bytes; `import` maps it where
  // it is not mapped yet.
  Result<std::shared_ptr<CudaMapping>> find(const ProcessName& owner, uint64_t identity,
                                            uint64_t bytes, const Import& import);
  // Lets go of those that nobody has used for kIdleTime, or whose owner has ended, and of the
  // oldest behind kMostIdle. To be called now and then.
  void sweep(Clock::time_point now);

 private:
  struct Key {
    ProcessName owner;
    uint64_t identity = 0;
    uint64_t bytes = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    std::shared_ptr<CudaMapping> mapping;
    std::optional<Clock::time_point> idleSince{};
  };

  Mutex mutex_;
  std::map<Key, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
