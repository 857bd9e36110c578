// SPDX-License-Identifier: Apache-2.0
//
// Captures of streams into graphs, with the rules of who may do what meanwhile. A graph is replayed
// in the order in which it was captured, all on the stream of its launch. Any thread may call.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {

// Takes the work if the stream is being captured, and says so.
cudaError_t captureWork(const StreamPtr& stream, NodeKind kind, const Work& work, bool& isCaptured);
bool isCapturing(const StreamPtr& stream);
// Not while a stream that would wait for it is captured.
cudaError_t mayUseLegacyStream(int device);
// Calls that could disturb a capture, of this thread or of any; as refused they end it.
cudaError_t mayCallUnsafely();
// To wait for a stream that is captured, or to ask for it.
cudaError_t mayWaitFor(const StreamPtr& stream);

// An event's record in a stream, and a stream's wait for it, while one is captured.
cudaError_t captureRecord(const StreamPtr& stream, Event& event, bool& isCaptured);
cudaError_t captureWait(const StreamPtr& stream, Event& event, bool& isCaptured);

// What a graph keeps: let go when the graph, all that was instantiated from it and all launches of
// these have gone.
class KeptObject;
struct GraphNode {
  NodeKind kind;
  Work work;
};
struct Graph {
  std::vector<GraphNode> nodes;
  std::vector<std::shared_ptr<KeptObject>> kept;
};
struct GraphExec {
  Graph graph;
  Mutex mutex;
  StreamPoint last PEERLANE_GUARDED_BY(mutex);  // launches of one follow each other
};

}  // namespace peerlane::softgpu
