// SPDX-License-Identifier: Apache-2.0
//
// KeptImports: allocations of peers that outlive the regions in them (RegionGrant::isKept), mapped
// once for all connections of a context with the same process, and kept mapped for a while after
// the last connection: unmapping holds locks of the driver and of the address space, and the next
// connection would wait for them (1 to 3 ms, measured). Thread-safe.
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

// Names one program of one process for ever: a pid may be reused, with another start time, and
// exec() keeps both pid and start time.
struct ProcessName {
  pid_t pid = 0;
  uint64_t startTime = 0;  // os/process.h
  uint64_t life = 0;       // PeerFacts::life
  auto operator<=>(const ProcessName&) const = default;

  // Empty where this process does not see `pid` (0 in another PID namespace), or that process has
  // ended.
  static std::optional<ProcessName> of(pid_t pid, uint64_t life = 0);
};

class KeptImports {
 public:
  using Clock = std::chrono::steady_clock;
  using Import = std::function<Result<std::shared_ptr<CudaMapping>>()>;
  static constexpr std::chrono::seconds kIdleTime{5};
  static constexpr size_t kMostIdle = 16;

  // The mapping of the allocation of `owner` with this number and size; `import` makes the mapping
  // if there is none.
  Result<std::shared_ptr<CudaMapping>> find(const ProcessName& owner, uint64_t identity,
                                            uint64_t bytes, const Import& import);
  // Unmaps the allocations that no connection has used for kIdleTime or whose owner has ended and,
  // beyond kMostIdle unused ones, those unused for longest. To be called now and then.
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
