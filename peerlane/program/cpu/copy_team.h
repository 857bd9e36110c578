// SPDX-License-Identifier: Apache-2.0
//
// CopyTeam: the threads that help with large copies of one context: a bounded number, made once,
// asleep while there is nothing to help with. A job is cut into parts; the thread that has the job
// takes parts itself, and those of the team that are free take the others, so a job never waits for
// a team that is busy. Threads are spread over the NUMA nodes and bound to them; a thread takes
// jobs whose memory lies on its node first. Thread-safe. Owner: the context; it outlives all jobs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "peerlane/core/metrics.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/numa.h"
#include "peerlane/os/process.h"

namespace peerlane::cpu {

class CopyTeam {
 public:
  static constexpr uint32_t kMostThreads = 64;

  // Leaves a team alone that a forked child has a copy of: neither its threads nor those who sleep
  // at its conditions exist there.
  struct End {
    void operator()(CopyTeam* team) const {
      if (team->forks_ == forkGeneration()) delete team;
    }
  };

  // Counts peerlane_copy_jobs_total and, of those, the parts that a thread of the team carried out:
  // peerlane_copy_parts_helped_total. Requires: threads > 0. Errors: kInvalidArgument (more than
  // kMostThreads), kUnavailable (the system has no more threads).
  static Result<std::unique_ptr<CopyTeam, End>> create(uint32_t threads, Metrics& metrics);
  // Requires: no job is under way; not in a forked child, which has no such threads to wait for.
  ~CopyTeam();
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()); }

  // A thread that sleeps begins some 50 us later, in which the one that has the job moves about so
  // much itself.
  static constexpr uint64_t kLeastPartBytes = 256 << 10;
  // More parts than threads, because some threads are slower or come later.
  static constexpr uint32_t kPartsPerThread = 4;
  static constexpr uint32_t kMostParts = (kMostThreads + 1) * kPartsPerThread;
  // In how many parts a job of so many bytes is best shared; 1: it is not worth waking a thread.
  uint32_t partsOf(uint64_t bytes) const {
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(bytes / kLeastPartBytes, 1, (threads() + 1) * kPartsPerThread));
  }

  // Calls part(i) once for each i below `parts`, on this thread and on the team's; returns when all
  // calls have returned, and the bytes that they wrote are visible to this thread. `memory`: an
  // address that the parts touch, preferably write. Parts must not wait for each other.
  template <typename Part>
  void share(uint32_t parts, const void* memory, const Part& part) {
    carryOut({callOf<Part>, &part, parts, places_.placeOf(memory), /*isCounted=*/true});
  }
  // The same for a job that is no copy: it is near no memory, and the metrics leave it out.
  template <typename Part>
  void shareWork(uint32_t parts, const Part& part) {
    carryOut({callOf<Part>, &part, parts, NumaPlaces::kUnknown, /*isCounted=*/false});
  }

 private:
  // On the stack of the thread that has it, until no thread of the team uses it any more.
  struct Job {
    void (*call)(const void* part, uint32_t index);
    const void* part;
    uint32_t parts;
    int place;
    bool isCounted;
    // The next part to take. Relaxed: what a part reads was published by the mutex.
    std::atomic<uint32_t> next{0};
    uint32_t helpers = 0;  // under CopyTeam::mutex_
  };

  template <typename Part>
  static void callOf(const void* part, uint32_t index) {
    (*static_cast<const Part*>(part))(index);
  }
  CopyTeam(NumaPlaces places, Metrics& metrics);
  void carryOut(Job&& job);
  static uint32_t takeParts(Job& job);
  void help(size_t place);
  Job* pick(int place) PEERLANE_REQUIRES(mutex_);

  const uint64_t forks_ = forkGeneration();
  const NumaPlaces places_;
  Counter& jobsTotal_;
  Counter& helpedTotal_;
  Mutex mutex_;
  Condition arrived_;
  Condition left_;
  std::vector<Job*> jobs_ PEERLANE_GUARDED_BY(mutex_);  // oldest first
  bool ends_ PEERLANE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant once created
};

}  // namespace peerlane::cpu
