// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/trigger_stream.h"

#include <utility>

namespace peerlane {

TriggerStream::~TriggerStream() {
  // An engine that stopped drops its tasks: programs may be on the stream still.
  if (pin_ != nullptr) DevicePin::release(std::move(pin_), [words = std::move(words_)] {});
}

Status TriggerStream::pin(std::shared_ptr<TriggerWords> words) {
  words_ = std::move(words);
  PEERLANE_ASSIGN(pin_, executor_.pin(reinterpret_cast<std::byte*>(words_.get()), sizeof(*words_)));
  return Status::ok();
}

Status TriggerStream::prepare(Run& run, const Program& program, const Binding& binding) const {
  run.ticket.store(Run::kNone, std::memory_order_relaxed);
  PEERLANE_ASSIGN(run.program, executor_.prepare(program, binding, {}));
  return Status::ok();
}

Status TriggerStream::enqueue(Run& run, DeviceStream stream, Clock::time_point deadline) {
  if (!executor_.owns(stream))
    return Status(Code::kInvalidArgument,
                  "the stream does not belong to " + executor_.device().toString());
  if (executor_.isCapturing(stream))
    return Status(Code::kNotSupported,
                  "the stream is being captured into a graph; the numbers in the programs of a "
                  "queue are constants, so a second replay would launch and await nothing");
  if (stream_ && stream_.handle() != stream.handle())
    return Status(Code::kInvalidArgument,
                  "the queue belongs to another stream, on which its programs are ordered; make a "
                  "queue for each stream");
  stream_ = stream;
  // Without the lock: where the stream is full, the driver blocks until it goes on, and a turn of
  // the engine, which may have to bring what it waits for, comes to look() meanwhile.
  PEERLANE_ASSIGN(const DevicePost post, executor_.post(*run.program, stream));
  const MutexLock lock(mutex_);
  if (posted_.empty()) progress_.expectDeviceStores();
  isIdle_.store(false, std::memory_order_release);
  posted_.push_back({std::move(run.program), post, deadline});
  run.ticket.store(passed_.load(std::memory_order_relaxed) + posted_.size(),
                   std::memory_order_release);
  return Status::ok();
}

bool TriggerStream::look() {
  const MutexLock lock(mutex_);
  const bool wasBusy = !posted_.empty();
  while (!posted_.empty() && posted_.front().post.ended()) {
    if (posted_.front().deadline != Clock::time_point::max()) executor_.waitEnded();
    posted_.pop_front();
    passed_.fetch_add(1, std::memory_order_release);
  }
  if (!posted_.empty()) return Clock::now() >= posted_.front().deadline;
  if (wasBusy) progress_.deviceStoresSeen();
  isIdle_.store(true, std::memory_order_release);
  return false;
}

}  // namespace peerlane
