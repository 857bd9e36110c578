// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_graph.h"

namespace peerlane::softgpu {
namespace {

std::atomic<uint64_t> lastStreamId{16};
std::array<std::atomic<uint64_t>, static_cast<size_t>(NodeKind::kGraph) + 1> nodes{};

// Leaked: streams outlive static objects.
struct Streams {
  Mutex mutex;
  std::map<Stream*, StreamPtr> byHandle PEERLANE_GUARDED_BY(mutex);
  std::array<StreamPtr, kMostDevices> legacy PEERLANE_GUARDED_BY(mutex);
  std::vector<StreamPtr> closing PEERLANE_GUARDED_BY(mutex);  // destroyed, but not at their end
};
Streams& streams() {
  static auto* const only = new Streams;
  return *only;
}

StreamPtr legacyOf(int device) {
  Streams& all = streams();
  const MutexLock lock(all.mutex);
  StreamPtr& stream = all.legacy[static_cast<size_t>(device)];
  if (stream == nullptr) stream = std::make_shared<Stream>(device, 0, 0, true);
  return stream;
}

// Ends of all streams of a device that match.
template <class Matches>
std::vector<StreamPoint> endsOf(Matches&& matches) {
  std::vector<StreamPtr> found;
  {
    Streams& all = streams();
    const MutexLock lock(all.mutex);
    std::erase_if(all.closing, [](const StreamPtr& stream) { return stream->end().isReached(); });
    for (const auto& [handle, stream] : all.byHandle) found.push_back(stream);
    for (const StreamPtr& stream : all.closing) found.push_back(stream);
    for (const StreamPtr& stream : all.legacy)
      if (stream != nullptr) found.push_back(stream);
  }
  std::vector<StreamPoint> ends;
  for (const StreamPtr& stream : found)
    if (matches(*stream)) ends.push_back(stream->end());
  return ends;
}

}  // namespace

uint64_t nodesOf(NodeKind kind) {
  return nodes[static_cast<size_t>(kind)];
}

bool StreamPoint::isReached() const {
  return stream == nullptr || stream->isReached(number);
}

void StreamPoint::wait() const {
  if (stream != nullptr) stream->waitFor(number);
}

Stream::Stream(int device, unsigned flags, int priority, bool isLegacy)
    : device_(device),
      flags_(flags),
      isLegacy_(isLegacy),
      id_(++lastStreamId),
      shared_(HardwareQueue::next(device, priority)) {}

StreamPoint Stream::enqueue(Work work, std::vector<StreamPoint> after, bool holdsQueue) {
  const MutexLock entering(entering_);
  const uint64_t place = shared_.add();
  const MutexLock lock(mutex_);
  queue_.push_back({std::move(work), std::move(after), holdsQueue, place});
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notifyAll();
  return {shared_from_this(), ++enqueued_};
}

StreamPoint Stream::end() {
  const MutexLock lock(mutex_);
  return {shared_from_this(), enqueued_};
}

bool Stream::isReached(uint64_t number) {
  const MutexLock lock(mutex_);
  return finished_ >= number;
}

void Stream::waitFor(uint64_t number) {
  const MutexLock lock(mutex_);
  while (finished_ < number) changed_.wait(mutex_);
}

void Stream::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notifyAll();
}

bool Stream::isClosed() {
  const MutexLock lock(mutex_);
  return closed_;
}

void Stream::run() {
  ReleasableLock lock(mutex_);
  for (;;) {
    while (!closed_ && queue_.empty()) changed_.wait(mutex_);
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    changed_.notifyAll();
    lock.unlock();
    shared_.waitFor(item.place);
    for (const StreamPoint& point : item.after) point.wait();
    if (!item.holdsQueue) shared_.leave();
    // A device that has failed does nothing more.
    if (healthOf(device_) == cudaSuccess) item.work();
    if (item.holdsQueue) shared_.leave();
    item = {};
    lock.lock();
    ++finished_;
    changed_.notifyAll();
  }
}

void PollPause::wait() {
  constexpr uint32_t kYields = 50, kStep = 2, kMost = 100;
  if (++turns_ <= kYields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::min(kMost, (turns_ - kYields) * kStep)));
}

StreamPtr makeStream(unsigned flags, int priority) {
  auto made = std::make_shared<Stream>(currentDevice(), flags, priority, false);
  Streams& all = streams();
  const MutexLock lock(all.mutex);
  all.byHandle.emplace(made.get(), made);
  return made;
}

StreamPtr findStream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return legacyOf(currentDevice());
  Streams& all = streams();
  const MutexLock lock(all.mutex);
  const auto found = all.byHandle.find(reinterpret_cast<Stream*>(handle));
  return found == all.byHandle.end() ? nullptr : found->second;
}

bool destroyStream(cudaStream_t handle) {
  Streams& all = streams();
  const MutexLock lock(all.mutex);
  const auto found = all.byHandle.find(reinterpret_cast<Stream*>(handle));
  if (found == all.byHandle.end()) return false;
  found->second->close();
  all.closing.push_back(found->second);
  all.byHandle.erase(found);
  return true;
}

void waitForDevice(int device) {
  for (const StreamPoint& end :
       endsOf([device](const Stream& stream) { return device < 0 || stream.device() == device; }))
    end.wait();
}

cudaError_t submit(const StreamPtr& stream, NodeKind kind, Work work, StreamPoint* point,
                   std::vector<StreamPoint> after, bool holdsQueue) {
  if (isInCallback()) return cudaErrorNotPermitted;
  if (const cudaError_t failed = healthOf(stream->device())) return failed;
  const int device = stream->device();
  if (stream->isLegacy()) {
    if (const cudaError_t refused = mayUseLegacyStream(device)) return refused;
    for (StreamPoint& end : endsOf([device](const Stream& other) {
           return other.device() == device && other.isBlocking();
         }))
      after.push_back(std::move(end));
  } else {
    bool isCaptured = false;
    if (const cudaError_t refused = captureWork(stream, kind, work, isCaptured)) return refused;
    if (isCaptured) {
      ++nodes[static_cast<size_t>(kind)];
      return cudaSuccess;
    }
    if (stream->isBlocking()) after.push_back(legacyOf(device)->end());
  }
  ++nodes[static_cast<size_t>(kind)];
  const StreamPoint made = stream->enqueue(std::move(work), std::move(after), holdsQueue);
  if (point != nullptr) *point = made;
  return cudaSuccess;
}

cudaError_t launchKernel(void* handle, const std::function<void(int device)>& kernel) {
  const StreamPtr stream = findStream(static_cast<cudaStream_t>(handle));
  if (stream == nullptr || stream->device() != currentDevice())
    return cudaErrorInvalidResourceHandle;
  return submit(stream, NodeKind::kKernel, [kernel, device = stream->device()] { kernel(device); });
}

void loadLazily(bool isLoaded) {
  if (!isLoaded) waitForDevice(currentDevice());
}

}  // namespace peerlane::softgpu
