// SPDX-License-Identifier: Apache-2.0
//
// The runtime's devices, streams, events and its way to the driver.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_driver.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

cudaError_t attributeOf(int* value, cudaDeviceAttr attribute, int device) {
  if (!isDevice(device)) return cudaErrorInvalidDevice;
  return static_cast<cudaError_t>(
      cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
}

Event* eventOf(cudaEvent_t handle) {
  return reinterpret_cast<Event*>(handle);
}

cudaError_t record(Event& event, const StreamPtr& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  bool isCaptured = false;
  if (const cudaError_t refused = captureRecord(stream, event, isCaptured)) return refused;
  if (isCaptured) return cudaSuccess;
  auto time = std::make_shared<Event::Clock::time_point>();
  StreamPoint point;
  if (const cudaError_t failed = submit(
          stream, NodeKind::kEvent, [time] { *time = Event::Clock::now(); }, &point))
    return failed;
  const MutexLock lock(event.mutex);
  event.capture = nullptr;
  event.time = std::move(time);
  event.point = point;
  return cudaSuccess;
}

// Where the event was recorded last; not where that is captured.
cudaError_t pointOf(Event& event, StreamPoint& point) {
  {
    const MutexLock lock(event.mutex);
    if (event.capture != nullptr) return cudaErrorCapturedEvent;
    point = event.point;
  }
  return mayCallUnsafely();
}

}  // namespace
}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;
using peerlane::MutexLock;

extern "C" {

// --- Devices ---

cudaError_t cudaDriverGetVersion(int* version) {
  *version = deviceCount() == 0 ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = isRightProc() ? deviceCount() : 0;
  if (!isRightProc()) return note(cudaErrorOperatingSystem);
  return note(*count == 0 ? cudaErrorInsufficientDriver : cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  if (!isDevice(device)) return note(cudaErrorInvalidDevice);
  setDevice(device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  // To ask makes no context.
  *device = std::max(currentContext(), 0);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return note(attributeOf(value, attribute, device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!isDevice(device)) return note(cudaErrorInvalidDevice);
  *properties = {};
  std::strncpy(properties->name, "software GPU", sizeof(properties->name) - 1);
  properties->totalGlobalMem = kDeviceBytes;
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->unifiedAddressing = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return note(static_cast<cudaError_t>(cuDeviceGetPCIBusId(text, bytes, device)));
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!isDevice(device) || !isDevice(peer)) return note(cudaErrorInvalidDevice);
  const char* const none = std::getenv("SOFTWARE_GPU_NO_PEERS");
  *can = device != peer && none == nullptr ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned /*flags*/) {
  if (!isDevice(peer) || peer == currentDevice()) return note(cudaErrorInvalidDevice);
  if (isPeerEnabled(currentDevice(), peer)) return note(cudaErrorPeerAccessAlreadyEnabled);
  enablePeer(currentDevice(), peer, true);
  return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  if (!isDevice(peer)) return note(cudaErrorInvalidDevice);
  if (!isPeerEnabled(currentDevice(), peer)) return note(cudaErrorPeerAccessNotEnabled);
  enablePeer(currentDevice(), peer, false);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  if (const cudaError_t refused = mayCallUnsafely()) return note(refused);
  waitForDevice(currentDevice());
  return note(healthOf(currentDevice()));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  *entry = findDriverEntry(name);
  if (found != nullptr)
    *found = *entry == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** entry, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(name, entry, 0, flags, found);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*kernel*/) {
  *attributes = {};
  return cudaSuccess;
}

// --- Streams ---

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  if (least != nullptr) *least = HardwareQueue::leastPriority();
  if (greatest != nullptr) *greatest = HardwareQueue::greatestPriority();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  HardwareQueue::waitForTheStopped();
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  *stream = reinterpret_cast<cudaStream_t>(makeStream(flags, priority).get());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return note(destroyStream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = mayWaitFor(stream)) return note(refused);
  // What the default stream would wait for next, it waits for now.
  if (stream->isLegacy())
    if (const cudaError_t failed = submit(stream, NodeKind::kEvent, [] {})) return note(failed);
  stream->end().wait();
  return note(healthOf(stream->device()));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = mayWaitFor(stream)) return note(refused);
  if (const cudaError_t failed = healthOf(stream->device())) return note(failed);
  return stream->end().isReached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  return note(submit(stream, NodeKind::kHost, [=] { function(argument); }));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t eventHandle, unsigned /*flags*/) {
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr || eventHandle == nullptr) return note(cudaErrorInvalidResourceHandle);
  Event& event = *eventOf(eventHandle);
  bool isCaptured = false;
  if (const cudaError_t refused = captureWait(stream, event, isCaptured)) return note(refused);
  if (isCaptured) return cudaSuccess;
  StreamPoint point;
  {
    const MutexLock lock(event.mutex);
    point = event.point;
  }
  if (point.stream == nullptr || point.stream == stream) return cudaSuccess;
  return note(submit(stream, NodeKind::kEvent, [] {}, nullptr, {point}));
}

// --- Events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  HardwareQueue::waitForTheStopped();
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  *event = reinterpret_cast<cudaEvent_t>(new Event(flags));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete eventOf(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return note(record(*eventOf(event), findStream(stream)));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  StreamPoint point;
  if (const cudaError_t refused = pointOf(*eventOf(event), point)) return note(refused);
  if (point.stream != nullptr)
    if (const cudaError_t failed = healthOf(point.stream->device())) return note(failed);
  return point.isReached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  StreamPoint point;
  if (const cudaError_t refused = pointOf(*eventOf(event), point)) return note(refused);
  point.wait();
  return note(point.stream == nullptr ? cudaSuccess : healthOf(point.stream->device()));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  Event &one = *eventOf(first), &other = *eventOf(second);
  StreamPoint begin, end;
  if (const cudaError_t refused = pointOf(one, begin)) return note(refused);
  if (const cudaError_t refused = pointOf(other, end)) return note(refused);
  if (begin.stream == nullptr || end.stream == nullptr ||
      ((one.flags | other.flags) & cudaEventDisableTiming) != 0)
    return note(cudaErrorInvalidResourceHandle);
  if (!begin.isReached() || !end.isReached()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(*other.time - *one.time).count();
  return cudaSuccess;
}

}  // extern "C"
