// SPDX-License-Identifier: Apache-2.0
//
// cudaMemcpy*, cudaMemset*: which of them wait for the stream, which only for the source, and which
// for nothing, is as the real ones do.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

enum class Place { kPageable, kPinned, kDevice };

struct Side {
  Place place = Place::kPageable;
  bool isWhole = true;  // all of it is known, where its beginning is
};

Side sideOf(const void* address, size_t bytes) {
  Side side;
  uintptr_t at = reinterpret_cast<uintptr_t>(address);
  for (size_t left = bytes; left > 0;) {
    const AllocationPtr found = find(reinterpret_cast<const void*>(at));
    if (found == nullptr) {
      side.isWhole = left == bytes;
      return side;
    }
    side.place = found->isHost() ? Place::kPinned : Place::kDevice;
    const size_t here = found->base + found->bytes - at;
    if (here >= left) break;
    // Only what was mapped piece by piece goes on.
    if (found->kind == MemoryKind::kDevice || found->kind == MemoryKind::kOpened) {
      side.isWhole = false;
      return side;
    }
    at += here;
    left -= here;
  }
  return side;
}

// Whether the stream's device may: between two places in devices' memory it must reach both, by
// host memory any device does whose memory it is.
bool mayTouch(int device, const void* address, size_t bytes, bool betweenDevices) {
  if (betweenDevices) return canReach(device, address, bytes);
  const AllocationPtr found = find(address);
  return canReach(device, address, bytes) ||
         (found != nullptr && isDevice(found->device) && canReach(found->device, address, bytes));
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;

  void operator()(int device) const {
    const Side source = sideOf(from, bytes), sink = sideOf(to, bytes);
    const bool both = source.place == Place::kDevice && sink.place == Place::kDevice;
    if ((source.place != Place::kPageable && !mayTouch(device, from, bytes, both)) ||
        (sink.place != Place::kPageable && !mayTouch(device, to, bytes, both)))
      return failDevice(device, "a copy of " + std::to_string(bytes) +
                                    " bytes touches memory that it has no access to");
    moveBytes(to, from, bytes);
  }
};

cudaError_t copyOn(const StreamPtr& stream, void* to, const void* from, size_t bytes,
                   bool isSynchronous) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (isSynchronous)
    if (const cudaError_t refused = mayWaitFor(stream)) return refused;
  if (bytes == 0) return cudaSuccess;
  const Side source = sideOf(from, bytes), sink = sideOf(to, bytes);
  if (!source.isWhole || !sink.isWhole) return cudaErrorInvalidValue;
  const int device = stream->device();
  StreamPoint end;
  if (source.place == Place::kPageable && sink.place == Place::kDevice && !isCapturing(stream)) {
    // The source is the caller's again at once; the bytes may still be on their way.
    if (isSynchronous) stream->end().wait();
    auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), from, bytes);
    return submit(stream, NodeKind::kCopy, [=] { Copy{to, staged->data(), bytes}(device); });
  }
  const Copy copy{to, from, bytes};
  if (const cudaError_t failed = submit(
          stream, NodeKind::kCopy, [copy, device] { copy(device); }, &end))
    return failed;
  const bool onDevices = source.place == Place::kDevice && sink.place == Place::kDevice;
  // Into pageable memory, too, it is there when the call returns.
  if ((isSynchronous && !onDevices) || sink.place == Place::kPageable) end.wait();
  return healthOf(device);
}

cudaError_t setOn(const StreamPtr& stream, void* to, int value, size_t bytes, bool isSynchronous) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (isSynchronous)
    if (const cudaError_t refused = mayWaitFor(stream)) return refused;
  if (bytes == 0) return cudaSuccess;
  const Side sink = sideOf(to, bytes);
  if (!sink.isWhole || sink.place == Place::kPageable) return cudaErrorInvalidValue;
  StreamPoint end;
  const int device = stream->device();
  const auto work = [=] {
    if (!mayTouch(device, to, bytes, false))
      return failDevice(device, "cudaMemset touches memory that it has no access to");
    fillBytes(to, value, bytes);
  };
  if (const cudaError_t failed = submit(stream, NodeKind::kFill, work, &end)) return failed;
  if (isSynchronous && sink.place == Place::kPinned) end.wait();
  return cudaSuccess;
}

}  // namespace
}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  return note(copyOn(findStream(nullptr), to, from, bytes, true));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  return note(copyOn(findStream(stream), to, from, bytes, false));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int /*toDevice*/, const void* from, int /*fromDevice*/,
                                size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  return note(setOn(findStream(nullptr), to, value, bytes, true));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  return note(setOn(findStream(stream), to, value, bytes, false));
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes,
                                 size_t count, cudaMemcpyAttributes* /*attributes*/,
                                 size_t* /*indices*/, size_t attributeCount, cudaStream_t handle) {
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void** to, void** from, size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* /*attributes*/, size_t* /*indices*/,
                                 size_t attributeCount, size_t* /*failed*/, cudaStream_t handle) {
#endif
#if CUDART_VERSION >= 12080
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (stream->isLegacy() || count == 0 || attributeCount == 0) return note(cudaErrorInvalidValue);
  if (isCapturing(stream)) return note(cudaErrorStreamCaptureUnsupported);
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0 || !sideOf(to[i], sizes[i]).isWhole || !sideOf(from[i], sizes[i]).isWhole)
      return note(cudaErrorInvalidValue);
    copies.push_back({to[i], from[i], sizes[i]});
  }
  // They are in no order among themselves.
  return note(submit(stream, NodeKind::kCopy, [copies, device = stream->device()] {
    for (size_t i = copies.size(); i-- > 0;) copies[i](device);
  }));
}
#endif

}  // extern "C"
