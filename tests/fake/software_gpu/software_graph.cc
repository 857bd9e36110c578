// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_graph.h"

#include <cuda.h>

#include <algorithm>
#include <map>
#include <thread>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"

namespace peerlane::softgpu {

// What a stream has waited for, by stream: so many nodes.
using Clock = std::map<const Stream*, size_t>;

class Capture {
 public:
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  StreamPtr origin;
  bool isBroken = false;
  uint64_t id = 0;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  std::map<const Stream*, Clock> streams;  // those that take part
  std::vector<Clock> records;              // of events
};

namespace {

struct Captures {
  Mutex mutex;
  uint64_t lastId PEERLANE_GUARDED_BY(mutex) = 0;
  std::vector<std::shared_ptr<Capture>> active PEERLANE_GUARDED_BY(mutex);
};
Captures& captures() {
  static auto* const only = new Captures;
  return *only;
}
thread_local cudaStreamCaptureMode threadMode = cudaStreamCaptureModeGlobal;

std::shared_ptr<Capture> captureOf(const Captures& all, const Stream* stream)
    PEERLANE_REQUIRES(all.mutex) {
  for (const auto& capture : all.active)
    if (capture->streams.contains(stream)) return capture;
  return nullptr;
}

void merge(Clock& into, const Clock& other) {
  for (const auto& [stream, nodes] : other) into[stream] = std::max(into[stream], nodes);
}

// The runtime has no name for nodes of memory operations; the driver has.
cudaGraphNodeType typeOf(NodeKind kind) {
  switch (kind) {
    case NodeKind::kKernel: return cudaGraphNodeTypeKernel;
    case NodeKind::kCopy: return cudaGraphNodeTypeMemcpy;
    case NodeKind::kFill: return cudaGraphNodeTypeMemset;
    case NodeKind::kWords: return static_cast<cudaGraphNodeType>(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    case NodeKind::kHost: return cudaGraphNodeTypeHost;
    case NodeKind::kGraph: return cudaGraphNodeTypeGraph;
    default: return cudaGraphNodeTypeEmpty;
  }
}

}  // namespace

cudaError_t captureWork(const StreamPtr& stream, NodeKind kind, const Work& work,
                        bool& isCaptured) {
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  const auto capture = captureOf(all, stream.get());
  isCaptured = capture != nullptr;
  if (!isCaptured) return cudaSuccess;
  if (capture->isBroken) return cudaErrorStreamCaptureInvalidated;
  capture->graph->nodes.push_back({kind, work});
  capture->streams[stream.get()][stream.get()] = capture->graph->nodes.size();
  return cudaSuccess;
}

bool isCapturing(const StreamPtr& stream) {
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  return captureOf(all, stream.get()) != nullptr;
}

cudaError_t mayUseLegacyStream(int device) {
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  for (const auto& capture : all.active)
    for (const auto& [stream, clock] : capture->streams)
      if (stream->device() == device && stream->isBlocking()) {
        capture->isBroken = true;
        return cudaErrorStreamCaptureImplicit;
      }
  return cudaSuccess;
}

cudaError_t mayCallUnsafely() {
  if (threadMode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  bool refused = false;
  for (const auto& capture : all.active) {
    const bool mine = capture->thread == std::this_thread::get_id() &&
                      capture->mode != cudaStreamCaptureModeRelaxed;
    const bool anyones =
        threadMode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!mine && !anyones) continue;
    capture->isBroken = true;
    refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t mayWaitFor(const StreamPtr& stream) {
  {
    Captures& all = captures();
    const MutexLock lock(all.mutex);
    if (const auto capture = captureOf(all, stream.get())) {
      capture->isBroken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  if (stream->isLegacy())
    if (const cudaError_t refused = mayUseLegacyStream(stream->device())) return refused;
  return mayCallUnsafely();
}

cudaError_t captureRecord(const StreamPtr& stream, Event& event, bool& isCaptured) {
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  const auto capture = captureOf(all, stream.get());
  isCaptured = capture != nullptr;
  if (!isCaptured) return cudaSuccess;
  if (capture->isBroken) return cudaErrorStreamCaptureInvalidated;
  capture->records.push_back(capture->streams[stream.get()]);
  const MutexLock lockEvent(event.mutex);
  event.capture = capture;
  event.captured = capture->records.size() - 1;
  return cudaSuccess;
}

cudaError_t captureWait(const StreamPtr& stream, Event& event, bool& isCaptured) {
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  const auto mine = captureOf(all, stream.get());
  const MutexLock lockEvent(event.mutex);
  const auto theirs = event.capture;
  isCaptured = mine != nullptr || theirs != nullptr;
  if (!isCaptured) return cudaSuccess;
  if (theirs == nullptr) {
    // Of before the capture: a graph cannot wait for that.
    mine->isBroken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (mine != nullptr && mine != theirs) {
    mine->isBroken = theirs->isBroken = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (std::find(all.active.begin(), all.active.end(), theirs) == all.active.end())
    return cudaErrorCapturedEvent;
  if (theirs->isBroken) return cudaErrorStreamCaptureInvalidated;
  if (stream->isLegacy()) return cudaErrorStreamCaptureImplicit;
  merge(theirs->streams[stream.get()], theirs->records[event.captured]);
  return cudaSuccess;
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;
using peerlane::MutexLock;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr) return note(cudaErrorInvalidValue);
  std::swap(*mode, threadMode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (stream->isLegacy()) return note(cudaErrorStreamCaptureUnsupported);
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  if (captureOf(all, stream.get()) != nullptr) return note(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->id = ++all.lastId;
  capture->streams[stream.get()] = {};
  all.active.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  *graph = nullptr;
  const auto capture = captureOf(all, stream.get());
  if (capture == nullptr) return note(cudaErrorIllegalState);
  if (capture->origin != stream) return note(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return note(cudaErrorStreamCaptureWrongThread);
  std::erase(all.active, capture);
  // Events may still know the capture; what did not become a graph goes now.
  std::unique_ptr<Graph> made = std::move(capture->graph);
  if (capture->isBroken) return note(cudaErrorStreamCaptureInvalidated);
  Clock& joined = capture->streams[stream.get()];
  for (auto& [other, clock] : capture->streams)
    if (clock[other] > joined[other]) return note(cudaErrorStreamCaptureUnjoined);
  *graph = reinterpret_cast<cudaGraph_t>(made.release());
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (stream->isLegacy())
    if (const cudaError_t refused = mayUseLegacyStream(stream->device())) return note(refused);
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  const auto capture = captureOf(all, stream.get());
  *status = capture == nullptr  ? cudaStreamCaptureStatusNone
            : capture->isBroken ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  if (dependencies != nullptr || edges != nullptr || count != nullptr)
    return note(cudaErrorNotSupported);
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies, size_t* count) {
  if (dependencies != nullptr || count != nullptr) return note(cudaErrorNotSupported);
#endif
  if (const cudaError_t failed = cudaStreamIsCapturing(handle, status)) return failed;
  const StreamPtr stream = findStream(handle);
  Captures& all = captures();
  const MutexLock lock(all.mutex);
  const auto capture = captureOf(all, stream.get());
  if (id != nullptr) *id = capture == nullptr ? 0 : capture->id;
  if (graph != nullptr)
    *graph = capture == nullptr ? nullptr : reinterpret_cast<cudaGraph_t>(capture->graph.get());
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  std::vector<GraphNode>& all = reinterpret_cast<Graph*>(graph)->nodes;
  if (nodes != nullptr)
    for (size_t i = 0; i < std::min(*count, all.size()); ++i)
      nodes[i] = reinterpret_cast<cudaGraphNode_t>(&all[i]);
  *count = all.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = typeOf(reinterpret_cast<GraphNode*>(node)->kind);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  auto made = std::make_unique<GraphExec>();
  made->graph = *reinterpret_cast<Graph*>(graph);
  *executable = reinterpret_cast<cudaGraphExec_t>(made.release());
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  delete reinterpret_cast<GraphExec*>(handle);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t streamHandle) {
  const StreamPtr stream = findStream(streamHandle);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  auto* const executable = reinterpret_cast<GraphExec*>(handle);
  const MutexLock lock(executable->mutex);
  std::vector<StreamPoint> after;
  if (executable->last.stream != stream) after.push_back(executable->last);
  return note(submit(
      stream, NodeKind::kGraph,
      [graph = executable->graph] {
        for (const GraphNode& node : graph.nodes) node.work();
      },
      &executable->last, std::move(after)));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t /*executable*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}

}  // extern "C"
