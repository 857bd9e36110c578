// SPDX-License-Identifier: Apache-2.0
//
// TriggerStream: the executor of a queue whose programs run on a stream of a GPU. It makes programs
// ready, enqueues them on the queue's one stream, and knows which of them the stream has passed.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "peerlane/channel/trigger/trigger_words.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class TriggerStream {
 public:
  using Clock = Progress::Clock;

  // A program on its way to the stream.
  struct Run {
    static constexpr uint64_t kNone = UINT64_MAX;
    static constexpr uint64_t kElsewhere = UINT64_MAX - 1;  // a kernel of the user's runs it
    std::unique_ptr<DeviceProgram> program;                 // until it is enqueued
    std::atomic<uint64_t> ticket{kNone};  // once it is: executor release -> any thread
    bool isElsewhere() const { return ticket.load(std::memory_order_acquire) == kElsewhere; }
  };

  // `executor` and `progress` outlive it.
  TriggerStream(DeviceExecutor& executor, Progress& progress)
      : executor_(executor), progress_(progress) {}
  ~TriggerStream();
  TriggerStream(const TriggerStream&) = delete;
  TriggerStream& operator=(const TriggerStream&) = delete;
  // Makes the words reachable for the GPU, once. It keeps them until no stream looks at them.
  Status pin(std::shared_ptr<TriggerWords> words);

  DeviceExecutor& executor() const { return executor_; }
  // Errors: what the GPU's streams cannot do, by name.
  Status prepare(Run& run, const Program& program, const Binding& binding) const;
  // kInvalidArgument: a stream of another GPU, or not the one of the first call. kNotSupported: it
  // is being captured, and the numbers of these programs are constants. `deadline`: of its waits;
  // the latest time point for a program that has none.
  Status enqueue(Run& run, DeviceStream stream, Clock::time_point deadline);

  // The stream has passed the last op. A store of a device wakes nobody: look() must have been
  // called since.
  bool hasPassed(const Run& run) const {
    return run.ticket.load(std::memory_order_acquire) <= passed_.load(std::memory_order_acquire);
  }
  bool isIdle() const { return isIdle_.load(std::memory_order_acquire); }
  // True: a wait has lasted longer than it may.
  bool look();

 private:
  struct Posted {
    std::unique_ptr<DeviceProgram> program;
    DevicePost post;
    Clock::time_point deadline;
  };

  DeviceExecutor& executor_;
  Progress& progress_;
  std::shared_ptr<TriggerWords> words_;
  std::unique_ptr<DevicePin> pin_;
  std::atomic<uint64_t> passed_{0};  // tickets begin with 1, and streams keep the order
  std::atomic<bool> isIdle_{true};
  DeviceStream stream_;  // the executor's
  Mutex mutex_;
  std::deque<Posted> posted_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
