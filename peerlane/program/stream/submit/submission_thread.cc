// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/submission_thread.h"

#include <algorithm>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/thread.h"
#include "peerlane/program/stream/submit/relaxed_capture.h"

namespace peerlane::stream {
namespace {

constexpr uint32_t kStreams = 2;

// Neither the priority of most streams nor the greatest, which other libraries often choose for the
// streams on which they wait.
Result<int> ownPriority() {
  int least = 0, greatest = 0;
  PEERLANE_RETURN_IF_ERROR(cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                       "cudaDeviceGetStreamPriorityRange"));
  return greatest + 1 < 0 ? greatest + 1 : greatest;
}

}  // namespace

SubmissionThread::~SubmissionThread() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notifyOne();
  if (thread_.joinable()) thread_.join();
}

Status SubmissionThread::open(std::byte* deviceWords) {
  PEERLANE_ASSIGN(const int priority, ownPriority());
  return queues_.open(deviceWords, kStreams, priority);
}

std::unique_ptr<DeferredSubmission> SubmissionThread::add(std::shared_ptr<DeviceProgram> program) {
  auto job = std::make_shared<DeferredSubmission::Job>(std::move(program));
  {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      auto started = startThread("deferred submissions of a GPU", [this] { run(); });
      if (!started.isOk()) {
        job->run([&](const DeviceProgram&) -> Result<DevicePost> { return started.status(); });
        return std::make_unique<DeferredSubmission>(std::move(job));
      }
      thread_ = std::move(*started);
    }
    waiting_.push_back(job);
  }
  changed_.notifyOne();
  return std::make_unique<DeferredSubmission>(std::move(job));
}

void SubmissionThread::run() {
  const cuda::CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  ReleasableLock lock(mutex_);
  for (;;) {
    while (!stop_ && waiting_.empty()) changed_.wait(mutex_);
    if (stop_) return;
    std::shared_ptr<DeferredSubmission::Job> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next->run([this](DeviceProgram& program) { return post(program); });
    next.reset();
    lock.lock();
  }
}

Result<DevicePost> SubmissionThread::post(DeviceProgram& base) {
  StreamProgram& program = StreamProgram::of(base);
  PEERLANE_CHECK(program.counter() == nullptr);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of({}));
  return copies_.post(program, *queue, {}, nullptr);
}

}  // namespace peerlane::stream
