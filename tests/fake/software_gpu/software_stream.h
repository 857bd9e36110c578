// SPDX-License-Identifier: Apache-2.0
//
// Streams of the software GPU: each is a thread that does one piece of work after the other, so
// that what waits on one does not hold up another. Events are places in a stream. A stream that is
// being captured (software_graph.h) collects its work instead. Any thread may call. As on the real
// thing, the streams of a device share its hardware queues (software_queue.h), and who puts work on
// a stream whose queue is full waits until there is room.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_queue.h"

namespace peerlane::softgpu {

class Stream;
class Capture;
using StreamPtr = std::shared_ptr<Stream>;
using Work = std::function<void()>;

// What a piece of work is, as nodes of graphs are told apart.
enum class NodeKind : uint8_t { kKernel, kCopy, kFill, kWords, kHost, kEvent, kFree, kGraph };
// How many pieces of that kind the process has put on streams until now, captured ones with them.
uint64_t nodesOf(NodeKind kind);

// Somewhere in a stream: behind so much of its work.
struct StreamPoint {
  StreamPtr stream;
  uint64_t number = 0;
  bool isReached() const;
  void wait() const;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, unsigned flags, int priority, bool isLegacy);

  int device() const { return device_; }
  uint64_t id() const { return id_; }
  unsigned flags() const { return flags_; }
  bool isLegacy() const { return isLegacy_; }
  // Waits for the legacy stream, and that for it.
  bool isBlocking() const { return !isLegacy_ && (flags_ & cudaStreamNonBlocking) == 0; }

  // The work begins when all of `after` is reached. What `holdsQueue` lets nothing behind it in its
  // queue begin before its end.
  StreamPoint enqueue(Work work, std::vector<StreamPoint> after, bool holdsQueue);
  StreamPoint end();  // behind all that is enqueued
  bool isReached(uint64_t number);
  void waitFor(uint64_t number);
  // What is enqueued is still done.
  void close();
  bool isClosed();

 private:
  struct Item {
    Work work;
    std::vector<StreamPoint> after;
    bool holdsQueue = false;
    uint64_t place = 0;  // in the queue
  };
  void run();

  const int device_;
  const unsigned flags_;
  const bool isLegacy_;
  const uint64_t id_;
  HardwareQueue& shared_;
  Mutex entering_;  // who puts work here, in the order of the places; before mutex_
  Mutex mutex_;
  Condition changed_;
  std::deque<Item> queue_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t enqueued_ PEERLANE_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ PEERLANE_GUARDED_BY(mutex_) = 0;
  bool started_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool closed_ PEERLANE_GUARDED_BY(mutex_) = false;
};

// Between two looks at a word: longer with every turn, up to 100 us.
class PollPause {
 public:
  void wait();

 private:
  uint32_t turns_ = 0;
};

StreamPtr makeStream(unsigned flags, int priority = 0);
// Null: no such stream. The default stream is the current device's.
StreamPtr findStream(cudaStream_t handle);
bool destroyStream(cudaStream_t handle);

// All that the process has put on streams of a device, or of all devices (-1), until now.
void waitForDevice(int device);

// As a call does that puts work on a stream: captures it, or enqueues it behind what it must wait
// for. Failures are those of the device and of captures.
cudaError_t submit(const StreamPtr& stream, NodeKind kind, Work work, StreamPoint* point = nullptr,
                   std::vector<StreamPoint> after = {}, bool holdsQueue = false);
// The same for a kernel: the stream must be one of the caller's current device. The work gets the
// device.
cudaError_t launchKernel(void* stream, const std::function<void(int device)>& kernel);
// What happens at the first launch of a kernel that was not loaded before.
void loadLazily(bool isLoaded);

struct Event {
  explicit Event(unsigned f) : flags(f) {}
  using Clock = std::chrono::steady_clock;
  const unsigned flags;
  Mutex mutex;
  StreamPoint point PEERLANE_GUARDED_BY(mutex);  // no stream: never recorded
  std::shared_ptr<Clock::time_point> time PEERLANE_GUARDED_BY(mutex);
  std::shared_ptr<Capture> capture
      PEERLANE_GUARDED_BY(mutex);                  // recorded while its stream was captured
  size_t captured PEERLANE_GUARDED_BY(mutex) = 0;  // as that says
};

}  // namespace peerlane::softgpu
