// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/capture/stream_capture.h"

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/kernel/launch/word_kernel.h"
#include "peerlane/program/stream/copy/copy_engine.h"
#include "peerlane/program/stream/copy/stream_launch.h"
#include "peerlane/program/stream/message/stream_step_list.h"

namespace peerlane::stream {
namespace {

using cuda::check;

const uint64_t* plain(const std::atomic<uint64_t>* word) {
  return reinterpret_cast<const uint64_t*>(word);
}
uint64_t* plain(std::atomic<uint64_t>* word) {
  return reinterpret_cast<uint64_t*>(word);
}

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};

Result<CaptureInfo> captureOf(void* stream) {
  CaptureInfo info;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream),
                                                     &info.status, &info.id, &info.graph);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(static_cast<cudaStream_t>(stream),
                                                        &info.status, &info.id, &info.graph);
#endif
  PEERLANE_RETURN_IF_ERROR(check(error, "cudaStreamGetCaptureInfo"));
  if (info.status != cudaStreamCaptureStatusActive)
    return Status(Code::kInvalidArgument, "the capture of the stream was broken off");
  return info;
}

}  // namespace

class GraphCounter {
 public:
  GraphCounter(StreamCapture& owner, const LentCounter& lent, std::byte* cursor)
      : owner_(owner), lent_(lent), cursor_(cursor) {}
  // No graph stores to the word any more.
  ~GraphCounter() {
    owner_.counters_->giveBack(lent_);
    owner_.words_.giveBack(cursor_);
  }
  GraphCounter(const GraphCounter&) = delete;
  GraphCounter& operator=(const GraphCounter&) = delete;

  void add(kernel::WordTail& tail, uint64_t add) const {
    auto* const cursor = reinterpret_cast<uint64_t*>(cursor_);
    tail.stores[tail.storeCount++] = {lent_.word, {cursor, lent_.total + add}};
    tail.advance = cursor;
    tail.step = add;
  }

 private:
  StreamCapture& owner_;
  const LentCounter lent_;
  std::byte* const cursor_;
};

// The first 8 bytes of `words` are a cursor; then come the arrival word of the thread blocks, and
// the place that one launch leaves for the next.
struct StreamCapture::Work final : CapturedWork {
  explicit Work(StreamCapture& capture) : owner(capture) {}
  ~Work() override {
    if (words != nullptr) owner.words_.giveBack(words);
    if (held.data != nullptr) owner.pool_.giveBack(held);
  }
  uint64_t* cursor() const { return reinterpret_cast<uint64_t*>(words); }
  uint32_t* arrivals() const { return reinterpret_cast<uint32_t*>(words + sizeof(uint64_t)); }
  StreamWords shared() const {
    return {arrivals(), reinterpret_cast<kernel::PutPlace*>(words + 2 * sizeof(uint64_t))};
  }

  StreamCapture& owner;
  std::byte* words = nullptr;
  PinnedBlock held;
  std::vector<ListRoom> rooms;
  std::shared_ptr<GraphCounter> counter;
};

bool StreamCapture::isCapturing(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // An error: the query of the default stream fails while another stream is being captured.
  return cuda::api().cuStreamIsCapturing(static_cast<CUstream>(stream), &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status StreamCapture::zero(std::byte* memory, size_t bytes) const {
  auto* const stream = static_cast<cudaStream_t>(setUpStream_);
  PEERLANE_RETURN_IF_ERROR(check(cudaMemsetAsync(memory, 0, bytes, stream), "cudaMemsetAsync"));
  return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Result<std::unique_ptr<StreamCapture::Work>> StreamCapture::makeWork() {
  auto work = std::make_unique<Work>(*this);
  PEERLANE_ASSIGN(work->words, words_.take([this](std::byte* memory, size_t bytes) {
    return zero(memory, bytes);
  }));
  return work;
}

Result<std::shared_ptr<GraphCounter>> StreamCapture::counterOf(void* stream, std::byte* line) {
  PEERLANE_ASSIGN(const CaptureInfo info, captureOf(stream));
  std::weak_ptr<GraphCounter>& known = graphCounters_[{info.id, stream, line}];
  if (auto alive = known.lock()) return alive;
  PEERLANE_ASSIGN(std::byte* const cursor, words_.take([this](std::byte* memory, size_t bytes) {
    return zero(memory, bytes);
  }));
  const auto lent = counters_->lend(line);
  if (!lent.isOk()) {
    words_.giveBack(cursor);
    return lent.status();
  }
  auto made = std::make_shared<GraphCounter>(*this, *lent, cursor);
  known = made;
  std::erase_if(graphCounters_, [](const auto& entry) { return entry.second.expired(); });
  return made;
}

Status StreamCapture::launch(const StreamProgram& program, void* stream,
                             const DeviceIndices& indices, const std::atomic<uint64_t>* abort,
                             std::atomic<uint64_t>* fault, Work& work) {
  kernel::WordTail tail;
  if (program.counter() != nullptr) {
    PEERLANE_ASSIGN(work.counter, counterOf(stream, program.counter()));
    work.counter->add(tail, program.counterAdd());
  }
  if (program.engine() == Engine::kCe && !indices.onDevice) {
    std::vector<kernel::CopyPiece> pieces(program.pieces().begin(), program.pieces().end());
    if (program.blocks().blockBytes != 0) program.expand(indices, pieces);
    PEERLANE_RETURN_IF_ERROR(CopyEngine::oneByOne(pieces, stream));
    if (tail.isEmpty()) return Status::ok();
    kernel::WordLaunch words;
    words.wait.abort = plain(abort);
    words.tail = tail;
    words.stream = stream;
    return kernel::launchWords(words);
  }
  kernel::CopyLaunch copies;
  copies.stream = stream;
  copies.arrivals = work.arrivals();
  copies.wait.abort = plain(abort);
  copies.tail = tail;
  PEERLANE_RETURN_IF_ERROR(
      describeCopies(program, indices, plain(fault), 1, pool_, copies, work.held));
  return kernel::launchCopy(copies);
}

Result<std::unique_ptr<CapturedWork>> StreamCapture::copies(const StreamProgram& program,
                                                            void* stream,
                                                            const DeviceIndices& indices,
                                                            const std::atomic<uint64_t>* abort,
                                                            std::atomic<uint64_t>* fault) {
  PEERLANE_ASSIGN(std::unique_ptr<Work> work, makeWork());
  Status launched;
  {
    const MutexLock lock(mutex_);
    launched = launch(program, stream, indices, abort, fault, *work);
  }
  PEERLANE_RETURN_IF_ERROR(launched);
  return std::unique_ptr<CapturedWork>(std::move(work));
}

// It needs no words of the graph's own: its memory operations and copies have constants alone.
Result<std::unique_ptr<CapturedWork>> StreamCapture::ordered(OrderedProgram& program,
                                                             void* stream) {
  if (program.hasCursors())
    return Status(Code::kNotSupported,
                  "a program with cursors cannot become part of a graph in its order: every replay "
                  "would repeat the numbers of the first; accepted: constants alone");
  if (program.waits()) CudaReclaimer::instance().waitBegins();  // a replay may wait at any time
  if (const Status status = program.enqueue({.stream = stream}); !status.isOk()) {
    if (program.waits()) CudaReclaimer::instance().waitEnded();
    return status;
  }
  return std::unique_ptr<CapturedWork>(std::make_unique<Work>(*this));
}

Result<std::unique_ptr<CapturedWork>> StreamCapture::wait(void* stream, const std::byte* line,
                                                          uint64_t value, uint64_t perReplay,
                                                          const std::atomic<uint64_t>* abort) {
  PEERLANE_ASSIGN(std::unique_ptr<Work> work, makeWork());
  kernel::WordLaunch launch;
  launch.waitsForLine = true;
  launch.wait = {reinterpret_cast<const uint64_t*>(line), {work->cursor(), value}, plain(abort)};
  launch.tail.advance = work->cursor();
  launch.tail.step = perReplay;
  launch.stream = stream;
  PEERLANE_RETURN_IF_ERROR(kernel::launchWords(launch));
  CudaReclaimer::instance().waitBegins();  // a replay may wait at any time
  return std::unique_ptr<CapturedWork>(std::move(work));
}

Result<std::unique_ptr<CapturedWork>> StreamCapture::bell(void* stream, std::atomic<uint64_t>* word,
                                                          const std::atomic<uint64_t>* abort) {
  PEERLANE_ASSIGN(std::unique_ptr<Work> work, makeWork());
  kernel::WordLaunch launch;
  launch.wait.abort = plain(abort);
  launch.tail.stores[0] = {plain(word), {work->cursor(), 1}};
  launch.tail.storeCount = 1;
  launch.tail.advance = work->cursor();
  launch.stream = stream;
  PEERLANE_RETURN_IF_ERROR(kernel::launchWords(launch));
  return std::unique_ptr<CapturedWork>(std::move(work));
}

Result<std::unique_ptr<CapturedWork>> StreamCapture::steps(void* stream,
                                                           std::span<const StepCall> calls,
                                                           DescriptorArena& arena) {
  PEERLANE_ASSIGN(std::unique_ptr<Work> work, makeWork());
  for (const StepCall& call : calls) {
    const bool needsRoom = ListRoom::isNeeded(call);
    if (needsRoom) {
      PEERLANE_ASSIGN(ListRoom room, ListRoom::make(call, pool_, arena));
      work->rooms.push_back(std::move(room));
    }
    const ListRoom* const room = needsRoom ? &work->rooms.back() : nullptr;
    PEERLANE_RETURN_IF_ERROR(static_cast<const StreamStepList*>(call.steps)
                                 ->launch(call, {}, work->shared(), room, stream));
  }
  CudaReclaimer::instance().waitBegins();  // a replay may wait at any time
  return std::unique_ptr<CapturedWork>(std::move(work));
}

Status StreamCapture::keepByGraph(void* stream, std::function<void()> gone) {
  PEERLANE_ASSIGN(const CaptureInfo info, captureOf(stream));
  auto owned = std::make_unique<std::function<void()>>(std::move(gone));
  cudaUserObject_t object = nullptr;
  // Called by a thread of the driver, which must not call CUDA.
  const auto destroyed = [](void* pointer) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(pointer));
    (*mine)();
  };
  PEERLANE_RETURN_IF_ERROR(check(
      cudaUserObjectCreate(&object, owned.get(), destroyed, 1, cudaUserObjectNoDestructorSync),
      "cudaUserObjectCreate"));
  (void)owned.release();  // from here on the graph's user object owns it
  Status kept = check(cudaGraphRetainUserObject(info.graph, object, 1, cudaGraphUserObjectMove),
                      "cudaGraphRetainUserObject");
  if (!kept.isOk()) (void)cudaUserObjectRelease(object, 1);
  return kept;
}

}  // namespace peerlane::stream
