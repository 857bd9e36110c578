// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_team.h"

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/thread.h"

namespace peerlane::cpu {

CopyTeam::CopyTeam(NumaPlaces places, Metrics& metrics)
    : places_(std::move(places)),
      jobsTotal_(metrics.counter("peerlane_copy_jobs_total")),
      helpedTotal_(metrics.counter("peerlane_copy_parts_helped_total")) {}

Result<std::unique_ptr<CopyTeam, CopyTeam::End>> CopyTeam::create(uint32_t threads,
                                                                  Metrics& metrics) {
  if (threads > kMostThreads)
    return Status(Code::kInvalidArgument, "copyThreads is " + std::to_string(threads) +
                                              "; accepted are 0 to " +
                                              std::to_string(kMostThreads));
  PEERLANE_ASSIGN(NumaPlaces places, NumaPlaces::load());
  std::unique_ptr<CopyTeam, End> team(new CopyTeam(std::move(places), metrics));
  for (uint32_t i = 0; i < threads; ++i) {
    CopyTeam* const owner = team.get();
    const size_t place = i % team->places_.count();
    PEERLANE_ASSIGN(std::thread thread,
                    startThread("copies", [owner, place] { owner->help(place); }));
    team->threads_.push_back(std::move(thread));
  }
  return team;
}

CopyTeam::~CopyTeam() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  arrived_.notifyAll();
  for (std::thread& thread : threads_) thread.join();
}

uint32_t CopyTeam::takeParts(Job& job) {
  uint32_t taken = 0;
  for (uint32_t part; (part = job.next.fetch_add(1, std::memory_order_relaxed)) < job.parts;
       ++taken)
    job.call(job.part, part);
  return taken;
}

void CopyTeam::carryOut(Job&& job) {
  if (job.isCounted) jobsTotal_.add();
  {
    const MutexLock lock(mutex_);
    jobs_.push_back(&job);
  }
  // The last part is this thread's.
  if (job.parts > threads())
    arrived_.notifyAll();
  else
    for (uint32_t i = 1; i < job.parts; ++i) arrived_.notifyOne();
  (void)takeParts(job);
  const MutexLock lock(mutex_);
  jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
  while (job.helpers != 0) left_.wait(mutex_);
}

// A job of this place, else the oldest.
CopyTeam::Job* CopyTeam::pick(int place) {
  Job* oldest = nullptr;
  for (Job* const job : jobs_) {
    if (job->next.load(std::memory_order_relaxed) >= job->parts) continue;
    if (job->place == place) return job;
    if (oldest == nullptr) oldest = job;
  }
  return oldest;
}

void CopyTeam::help(size_t place) {
  // Unbound threads copy as well, from farther away, or on the one core of the thread that made
  // them.
  if (const Status bound = places_.bindThisThread(place); !bound.isOk())
    PEERLANE_LOG_INFO("{}", bound.toString());
  ReleasableLock lock(mutex_);
  while (!ends_) {
    Job* const job = pick(static_cast<int>(place));
    if (job == nullptr) {
      arrived_.wait(mutex_);
      continue;
    }
    ++job->helpers;
    lock.unlock();
    const uint32_t taken = takeParts(*job);
    if (job->isCounted) helpedTotal_.add(taken);
    lock.lock();
    // After the decrement the job may be gone as soon as the lock is.
    if (--job->helpers == 0) left_.notifyAll();
  }
}

}  // namespace peerlane::cpu
