// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/stream_executor.h"

#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/cuda/cuda_mapping.h"
#include "peerlane/memory/cuda/cuda_pins.h"
#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/kernel/launch/word_kernel.h"
#include "peerlane/program/kernel/message/get_kernel.h"
#include "peerlane/program/kernel/message/list_kernel.h"
#include "peerlane/program/kernel/message/packet_kernel.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/ring_slot_kernel.h"
#include "peerlane/program/kernel/resident/resident_kernel.h"
#include "peerlane/program/stream/capture/stream_capture.h"
#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/copy/word_ops.h"
#include "peerlane/program/stream/message/lane_areas.h"
#include "peerlane/program/stream/message/stream_region_names.h"
#include "peerlane/program/stream/message/stream_step_list.h"
#include "peerlane/program/stream/ordered/ordered_program.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/lent_words.h"
#include "peerlane/program/stream/queues/counter_words.h"
#include "peerlane/program/stream/submit/copy_poster.h"
#include "peerlane/program/stream/submit/program_lowering.h"
#include "peerlane/program/stream/submit/relaxed_capture.h"
#include "peerlane/program/stream/submit/resident_port.h"
#include "peerlane/program/stream/submit/stream_queue.h"
#include "peerlane/program/stream/submit/submission_queues.h"
#include "peerlane/program/stream/submit/submission_thread.h"

namespace peerlane::stream {
namespace {

using cuda::api;
using cuda::check;
using cuda::CurrentContext;

constexpr uint32_t kMostCaptured = 1024;
constexpr size_t kDeviceMemoryBytes = size_t{2} << 20;
constexpr uint32_t kPinnedOrder = 22;
constexpr uint32_t kOwnStreams = 4;
// A stream takes 1024 pieces of work; then the posting thread blocks (docs/gotchas.md).
constexpr size_t kMostHeldWork = 1000;

// At most so many pieces of work for a stream.
size_t workOf(const DeviceExecutor::HeldWork& held) {
  const size_t wait = held.value == 0 ? 0 : 1;
  if (held.program == nullptr) return wait + 1;
  const StreamProgram& program = StreamProgram::of(*held.program);
  return wait + 1 + (program.engine() == Engine::kCe ? program.pieces().size() : 1);
}

uint64_t* plain(std::atomic<uint64_t>* word) {
  return reinterpret_cast<uint64_t*>(word);
}

Status signalTaken() {
  return Status(Code::kUnavailable, "graphs and triggered queues hold all " +
                                        std::to_string(CounterLine::kDeviceWords) +
                                        " words that devices have of this signal; use another one");
}

class StreamExecutor final : public DeviceExecutor {
 public:
  StreamExecutor(std::shared_ptr<const cuda::PrimaryContext> gpu, EngineChoice choice,
                 std::shared_ptr<SharedCounterWords> counters)
      : gpu_(std::move(gpu)),
        counters_(std::move(counters)),
        lowering_(gpu_, std::move(choice), pool_) {}
  ~StreamExecutor() override;
  Status open();

  Device device() const override { return {DeviceKind::kCuda, gpu_->gpu()}; }
  bool owns(DeviceStream stream) override;
  Result<std::unique_ptr<DeviceProgram>> prepare(const Program& program, const Binding& binding,
                                                 const Preferences& preferences) override {
    return lowering_.lower(program, binding, preferences);
  }
  Result<DevicePost> post(DeviceProgram& program, DeviceStream stream, const DeviceIndices& indices,
                          std::span<const uint64_t> cursors) override;
  std::unique_ptr<DeferredSubmission> submitDeferred(
      std::shared_ptr<DeviceProgram> program) override;
  Result<DevicePost> waitCounter(DeviceStream stream, const std::byte* line, uint64_t value,
                                 const std::atomic<uint64_t>* abort) override;
  Status postHeld(DeviceStream stream, const std::atomic<uint64_t>* word,
                  std::span<const HeldWork> work, std::vector<DevicePost>& posts) override;
  Result<LatePost> postLate(DeviceProgram& program, DeviceStream stream) override;
  void resolve(const LatePost& late, std::byte* base) override;
  void waitEnded() override { CudaReclaimer::instance().waitEnded(); }
  bool isCapturing(DeviceStream stream) override;
  Result<std::unique_ptr<CapturedWork>> capture(DeviceProgram& program, DeviceStream stream,
                                                const DeviceIndices& indices,
                                                const std::atomic<uint64_t>* abort,
                                                std::atomic<uint64_t>* fault) override;
  Result<std::unique_ptr<CapturedWork>> captureWait(DeviceStream stream, const std::byte* line,
                                                    uint64_t value, uint64_t perReplay,
                                                    const std::atomic<uint64_t>* abort) override;
  Result<std::unique_ptr<CapturedWork>> captureBell(DeviceStream stream,
                                                    std::atomic<uint64_t>* word,
                                                    const std::atomic<uint64_t>* abort) override;
  Status keepByGraph(DeviceStream stream, std::function<void()> gone) override;
  Result<std::unique_ptr<Allocation>> makeArea(size_t bytes) override;
  Result<std::unique_ptr<RegionNames>> makeRegionNames() override;
  Result<std::unique_ptr<StepList>> prepareSteps(const Program& program, const Binding& binding,
                                                 const StepRules& rules) override;
  Result<DevicePost> postSteps(DeviceStream stream, std::span<const StepCall> calls) override;
  Result<std::unique_ptr<CapturedWork>> captureSteps(DeviceStream stream,
                                                     std::span<const StepCall> calls) override;
  Result<std::atomic<uint64_t>*> borrowWord() override;
  void returnWord(std::atomic<uint64_t>* word, const DevicePost& after) override;
  CounterLender& counters() override { return *counters_; }
  Result<std::unique_ptr<PortQueue>> makeQueue() override;
  Result<std::unique_ptr<ResidentPort>> makeResidentPort(port::ResidentState* state, uint64_t* left,
                                                         uint32_t blocks) override;
  Status storeOn(DeviceStream stream, uint64_t* word, uint64_t value) override;
  Status callHost(DeviceStream stream, void (*function)(void*), void* argument) override;
  bool hasOneQueue() const override;
  Result<std::unique_ptr<DevicePin>> pin(std::byte* address, size_t bytes) override;
  Status open(const MemoryDescription& memory, const std::byte* base) override;
  void forgetWords(const std::byte* address, size_t bytes, std::shared_ptr<void> memory) override;
  Status health() override;
  // Not analysed: what it reads is atomic, and it must not wait for a post.
  std::string explain() const override PEERLANE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  static Result<DevicePost> enqueueCompletion(SubmissionQueue& queue);
  Result<DevicePost> enqueueHeld(SubmissionQueue& queue, const std::atomic<uint64_t>* word,
                                 const HeldWork& work) PEERLANE_REQUIRES(mutex_);
  Status importOnce();
  Status zero(std::byte* memory, size_t bytes) const;
  Result<DevicePost> postOrdered(OrderedProgram& program, DeviceStream stream,
                                 std::span<const uint64_t> cursors);
  Status checkCapture(DeviceStream stream);
  Status makeRooms(SubmissionQueue& queue, std::span<const StepCall> calls);
  // Of a program that adds to a counter.
  Result<DevicePost> postCounted(StreamProgram& program, SubmissionQueue& queue,
                                 const DeviceIndices& indices)
      PEERLANE_REQUIRES(mutex_, counters_->mutex);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const std::shared_ptr<SharedCounterWords> counters_;
  std::shared_ptr<CudaMapping> deviceMemory_;  // words in device memory, and then descriptors
  std::shared_ptr<DescriptorArena> descriptors_;
  CUstream setUpStream_ = nullptr;

  PinnedPool pool_{gpu_};
  ProgramLowering lowering_;
  PostingLock mutex_;
  SubmissionQueues queues_ PEERLANE_GUARDED_BY(mutex_){gpu_, pool_};
  CopyPoster copies_ PEERLANE_GUARDED_BY(mutex_){pool_};
  StreamCapture capture_{gpu_, counters_, pool_};
  LentWords lentWords_{pool_};
  LaneAreas areas_{gpu_};

  SubmissionThread submissionThread_{gpu_};
};

StreamExecutor::~StreamExecutor() {
  const CurrentContext current(*gpu_);
  if (setUpStream_ != nullptr) (void)cudaStreamDestroy(setUpStream_);
}

Status StreamExecutor::open() {
  // Now, so that a context that is a static object is destroyed before the reclaimer ends.
  (void)CudaReclaimer::instance();
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_RETURN_IF_ERROR(kernel::loadCopyKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadWordKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadPacketKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadRingSlotKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadPutKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadGetKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadListKernels());
  PEERLANE_RETURN_IF_ERROR(kernel::loadResidentKernel());
  PEERLANE_ASSIGN(deviceMemory_, CudaMapping::create(kDeviceMemoryBytes, *gpu_));
  constexpr size_t kGraphBytes = kMostCaptured * GraphWords::kBytes;
  constexpr size_t kWordBytes = 2 * SubmissionQueues::kBytes + kGraphBytes;
  descriptors_ = std::make_shared<DescriptorArena>(gpu_, deviceMemory_, kWordBytes);
  PEERLANE_RETURN_IF_ERROR(importOnce());
  PEERLANE_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&setUpStream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  PEERLANE_RETURN_IF_ERROR(lowering_.open(*descriptors_, setUpStream_));
  capture_.open(setUpStream_, deviceMemory_->data() + 2 * SubmissionQueues::kBytes, kMostCaptured);
  PEERLANE_RETURN_IF_ERROR(pool_.prepare(kPinnedOrder));
  {
    const PostingGuard lock(mutex_);
    PEERLANE_RETURN_IF_ERROR(queues_.open(deviceMemory_->data(), kOwnStreams, 0));
  }
  PEERLANE_RETURN_IF_ERROR(
      submissionThread_.open(deviceMemory_->data() + SubmissionQueues::kBytes));
  return Status::ok();
}

// The first import of a process is slow (milliseconds), whichever memory it imports: better now
// than when the first peer connects.
Status StreamExecutor::importOnce() {
  VmmHandle handle;
  PEERLANE_ASSIGN(handle.fd, exportDescriptor(deviceMemory_->data()));
  if (!handle.fd) return Status::ok();
  return CudaMapping::importAllocation(handle, deviceMemory_->bytes(), {&gpu_, 1}).status();
}

bool StreamExecutor::owns(DeviceStream stream) {
  const CurrentContext current(*gpu_);
  return SubmissionQueues::isOf(*gpu_, stream);
}

Result<DevicePost> StreamExecutor::post(DeviceProgram& base, DeviceStream given,
                                        const DeviceIndices& indices,
                                        std::span<const uint64_t> cursors) {
  if (static_cast<LoweredProgram&>(base).isOrdered())
    return postOrdered(static_cast<OrderedProgram&>(base), given, cursors);
  StreamProgram& program = StreamProgram::of(base);
  const CurrentContext current(*gpu_);
  // Until the stream has the work: it must get its numbers in the order in which they are counted.
  const PostingGuard lock(mutex_);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
  if (program.counter() == nullptr) return copies_.post(program, *queue, indices, nullptr);
  // After the executor's own lock, in every post. From the claim until the post is settled, so that
  // no other device of the context takes the word in between.
  const PostingGuard counting(counters_->mutex);
  return postCounted(program, *queue, indices);
}

Result<DevicePost> StreamExecutor::postOrdered(OrderedProgram& program, DeviceStream given,
                                               std::span<const uint64_t> cursors) {
  const CurrentContext current(*gpu_);
  // One lock for all of it, as postHeld() has for waits and what ends them.
  const PostingGuard lock(mutex_);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
  // Before the first wait is enqueued, as there.
  if (program.waits()) CudaReclaimer::instance().waitBegins();
  const Status status =
      program.enqueue({.stream = queue->stream,
                       .engine = &copies_.engine(),
                       .cursors = cursors,
                       .completion = {plain(queue->completion), {nullptr, queue->posted + 1}}});
  if (status.isOk()) return queue->completionEnqueued();
  // Else a wait may stand on the stream, and memory must not be given back to the driver.
  if (program.waits() && status.code() != Code::kSystem) CudaReclaimer::instance().waitEnded();
  return status;
}

std::unique_ptr<DeferredSubmission> StreamExecutor::submitDeferred(
    std::shared_ptr<DeviceProgram> program) {
  return submissionThread_.add(std::move(program));
}

Result<DevicePost> StreamExecutor::postCounted(StreamProgram& program, SubmissionQueue& queue,
                                               const DeviceIndices& indices) {
  CounterWords& words = counters_->words;
  const CounterWords::Claim claim = words.claim(program.counter(), queue, program.counterAdd());
  if (claim.word == nullptr) return signalTaken();
  Status before;
  // The word changes hands. Totals only grow, so this stream must store after the writer before it.
  if (claim.after.word() != nullptr) {
    before = awaitWord(queue.stream, claim.after.word(), claim.after.number());
  }
  auto posted = before.isOk()
                    ? copies_.post(program, queue, indices, &claim, claim.after.word() != nullptr)
                    : before;
  // Settled under the same lock: the next claim waits for this post. Or undone: no stream will
  // store this total, and the next one must not count it.
  if (posted.isOk())
    words.settle(program.counter(), claim, *posted);
  else
    words.undo(program.counter(), claim, program.counterAdd());
  return posted;
}

Result<DevicePost> StreamExecutor::waitCounter(DeviceStream given, const std::byte* line,
                                               uint64_t value, const std::atomic<uint64_t>* abort) {
  const CurrentContext current(*gpu_);
  // The number below must be the one that completionEnqueued() counts.
  const PostingGuard lock(mutex_);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
  kernel::WordLaunch launch;
  launch.waitsForLine = true;
  launch.wait = {reinterpret_cast<const uint64_t*>(line),
                 {nullptr, value},
                 reinterpret_cast<const uint64_t*>(abort)};
  launch.tail.completion = {plain(queue->completion), {nullptr, queue->posted + 1}};
  launch.stream = queue->stream;
  PEERLANE_RETURN_IF_ERROR(kernel::launchWords(launch));
  CudaReclaimer::instance().waitBegins();  // a launch that failed waits for nothing
  return queue->completionEnqueued();
}

Status StreamExecutor::postHeld(DeviceStream given, const std::atomic<uint64_t>* word,
                                std::span<const HeldWork> work, std::vector<DevicePost>& posts) {
  size_t pieces = 0;
  for (const HeldWork& each : work) pieces += workOf(each);
  if (pieces > kMostHeldWork)
    return Status(Code::kNotSupported, std::to_string(pieces) +
                                           " waits and copies in one post; a stream takes " +
                                           std::to_string(kMostHeldWork) + " at once");
  const CurrentContext current(*gpu_);
  // One lock for all of it: work that another thread enqueues in between could stand in the same
  // hardware queue, after a wait of this post and before what ends the wait.
  const PostingGuard lock(mutex_);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
  // Before the first wait is enqueued: the driver may stop this thread in one of the next calls,
  // and a release meanwhile would wait for the peer.
  CudaReclaimer::instance().waitBegins();
  Status status;
  for (const HeldWork& each : work) {
    auto posted = enqueueHeld(*queue, word, each);
    // The wait may be enqueued without the work: the word is in use until the stream has passed it.
    if (!posted.isOk()) {
      status = posted.status();
      posted = enqueueCompletion(*queue);
    }
    if (posted.isOk()) posts.push_back(*posted);
    if (!status.isOk()) break;
  }
  if (posts.empty()) CudaReclaimer::instance().waitEnded();
  return status;
}

// The store comes after all that the stream got before, behind a fence for the whole system: a host
// that reads the number may read the bytes.
Result<DevicePost> StreamExecutor::enqueueCompletion(SubmissionQueue& queue) {
  PEERLANE_RETURN_IF_ERROR(storeWord(queue.stream, queue.completion, queue.posted + 1));
  return queue.completionEnqueued();
}

Result<DevicePost> StreamExecutor::enqueueHeld(SubmissionQueue& queue,
                                               const std::atomic<uint64_t>* word,
                                               const HeldWork& work) {
  if (work.value != 0) PEERLANE_RETURN_IF_ERROR(awaitWord(queue.stream, word, work.value));
  if (work.program != nullptr)
    return copies_.post(StreamProgram::of(*work.program), queue, {}, nullptr,
                        /*behindWait=*/work.value != 0, work.abort);
  return enqueueCompletion(queue);
}

// The kernel reads its pieces from host memory after the gate has opened; until then resolve() may
// change them.
Result<DeviceExecutor::LatePost> StreamExecutor::postLate(DeviceProgram& base, DeviceStream given) {
  StreamProgram& program = StreamProgram::of(base);
  PEERLANE_RETURN_IF_ERROR(program.expandBlocks());
  LatePost late;
  PEERLANE_ASSIGN(late.gate, borrowWord());
  PEERLANE_ASSIGN(late.refusal, borrowWord());
  const auto enqueued = [&]() -> Status {
    const CurrentContext current(*gpu_);
    const PostingGuard lock(mutex_);
    PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
    PEERLANE_ASSIGN(const PinnedBlock held, pool_.take(program.descriptorBytes()));
    kernel::CopyLaunch launch;
    launch.stream = queue->stream;
    launch.arrivals = queue->words.arrivals;
    launch.list = program.writeDescriptors(held.data, held.data);
    launch.wait.abort = plain(late.refusal);
    launch.tail.completion = {plain(queue->completion), {nullptr, queue->posted + 1}};
    // The stream waits, not the kernel: no multiprocessor is taken until the gate is open, and the
    // kernel reads pieces and refusal after that.
    Status status = awaitWord(queue->stream, late.gate, 1);
    if (status.isOk()) status = kernel::launchCopy(launch);
    if (!status.isOk()) {
      // The wait may be on the stream already, and nobody else will end it.
      late.gate->store(1, std::memory_order_release);
      pool_.giveBack(held);
      return status;
    }
    late.post = queue->completionEnqueued();
    late.pieces = held.data;
    late.count = program.pieces().size();
    queue->held.emplace_back(late.post, held);
    CudaReclaimer::instance().waitBegins();
    return Status::ok();
  }();
  if (!enqueued.isOk()) {
    returnWord(late.gate, {});
    returnWord(late.refusal, {});
    return enqueued;
  }
  return late;
}

// The kernel that the gate lets go reads addresses and refusal: both are stored before.
void StreamExecutor::resolve(const LatePost& late, std::byte* base) {
  if (base == nullptr) late.refusal->store(1, std::memory_order_release);
  auto* const pieces = static_cast<kernel::CopyPiece*>(late.pieces);
  const auto found = [base](auto* address) { return base + (address - lateBase()); };
  for (uint64_t i = 0; base != nullptr && i < late.count; ++i) {
    if (pieces[i].to >= lateBase()) pieces[i].to = found(pieces[i].to);
    if (pieces[i].from >= lateBase()) pieces[i].from = found(pieces[i].from);
  }
  late.gate->store(1, std::memory_order_release);
}

Result<std::unique_ptr<Allocation>> StreamExecutor::makeArea(size_t bytes) {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_ASSIGN(auto area, areas_.take(bytes));
  PEERLANE_RETURN_IF_ERROR(zero(area->data(), bytes));
  return area;
}

// Waited for: a peer may write the memory as soon as it is told of it, and streams read it.
Status StreamExecutor::zero(std::byte* memory, size_t bytes) const {
  PEERLANE_RETURN_IF_ERROR(
      check(cudaMemsetAsync(memory, 0, bytes, setUpStream_), "cudaMemsetAsync"));
  return check(cudaStreamSynchronize(setUpStream_), "cudaStreamSynchronize");
}

Result<std::unique_ptr<RegionNames>> StreamExecutor::makeRegionNames() {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_ASSIGN(auto mirror, descriptors_->take(StreamRegionNames::kMirrorBytes));
  PEERLANE_RETURN_IF_ERROR(zero(mirror->data(), StreamRegionNames::kMirrorBytes));
  PEERLANE_ASSIGN(const PinnedBlock block,
                  pool_.take(StreamRegionNames::kSlots * sizeof(kernel::NamedRegion)));
  return std::unique_ptr<RegionNames>(
      std::make_unique<StreamRegionNames>(pool_, block, std::move(mirror)));
}

Result<std::unique_ptr<StepList>> StreamExecutor::prepareSteps(const Program& program,
                                                               const Binding& binding,
                                                               const StepRules& rules) {
  PEERLANE_ASSIGN(auto steps, StreamStepList::lower(program, binding, rules));
  return std::unique_ptr<StepList>(std::move(steps));
}

Result<DevicePost> StreamExecutor::postSteps(DeviceStream given, std::span<const StepCall> calls) {
  const CurrentContext current(*gpu_);
  // One lock for all calls: they share a number, and rooms are counted from the queue's last one.
  const PostingGuard lock(mutex_);
  PEERLANE_ASSIGN(SubmissionQueue* const queue, queues_.of(given));
  size_t room = queue->rooms.size();
  PEERLANE_RETURN_IF_ERROR(makeRooms(*queue, calls));
  for (size_t i = 0; i < calls.size(); ++i) {
    // The last call alone tells the end: a stream does its work in order.
    kernel::WordStore completion;
    if (i + 1 == calls.size())
      completion = {plain(queue->completion), {nullptr, queue->posted + 1}};
    const ListRoom* const own =
        ListRoom::isNeeded(calls[i]) ? &queue->rooms[room++].second : nullptr;
    PEERLANE_RETURN_IF_ERROR(static_cast<const StreamStepList*>(calls[i].steps)
                                 ->launch(calls[i], completion, queue->words, own, queue->stream));
  }
  CudaReclaimer::instance().waitBegins();
  return queue->completionEnqueued();
}

// The rooms are freed after the next post of the stream that does not fail has ended. That is right
// also when CUDA refuses one of the launches and those before it are on the stream.
Status StreamExecutor::makeRooms(SubmissionQueue& queue, std::span<const StepCall> calls) {
  const DevicePost end(queue.completion, queue.posted + 1);
  for (const StepCall& call : calls) {
    if (!ListRoom::isNeeded(call)) continue;
    PEERLANE_ASSIGN(ListRoom room, ListRoom::make(call, pool_, *descriptors_));
    queue.rooms.emplace_back(end, std::move(room));
  }
  return Status::ok();
}

Result<std::unique_ptr<CapturedWork>> StreamExecutor::captureSteps(
    DeviceStream stream, std::span<const StepCall> calls) {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_RETURN_IF_ERROR(checkCapture(stream));
  return capture_.steps(stream.handle(), calls, *descriptors_);
}

bool StreamExecutor::isCapturing(DeviceStream stream) {
  const CurrentContext current(*gpu_);
  return stream && StreamCapture::isCapturing(stream.handle());
}

Status StreamExecutor::checkCapture(DeviceStream stream) {
  if (owns(stream)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "the stream is not one of " + device().toString() + ", where the memory lies");
}

Result<std::unique_ptr<CapturedWork>> StreamExecutor::capture(DeviceProgram& program,
                                                              DeviceStream stream,
                                                              const DeviceIndices& indices,
                                                              const std::atomic<uint64_t>* abort,
                                                              std::atomic<uint64_t>* fault) {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_RETURN_IF_ERROR(checkCapture(stream));
  if (static_cast<LoweredProgram&>(program).isOrdered())
    return capture_.ordered(static_cast<OrderedProgram&>(program), stream.handle());
  return capture_.copies(StreamProgram::of(program), stream.handle(), indices, abort, fault);
}

Result<std::unique_ptr<CapturedWork>> StreamExecutor::captureWait(
    DeviceStream stream, const std::byte* line, uint64_t value, uint64_t perReplay,
    const std::atomic<uint64_t>* abort) {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_RETURN_IF_ERROR(checkCapture(stream));
  return capture_.wait(stream.handle(), line, value, perReplay, abort);
}

Result<std::unique_ptr<CapturedWork>> StreamExecutor::captureBell(
    DeviceStream stream, std::atomic<uint64_t>* word, const std::atomic<uint64_t>* abort) {
  const CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_RETURN_IF_ERROR(checkCapture(stream));
  return capture_.bell(stream.handle(), word, abort);
}

Status StreamExecutor::keepByGraph(DeviceStream stream, std::function<void()> gone) {
  const CurrentContext current(*gpu_);
  return StreamCapture::keepByGraph(stream.handle(), std::move(gone));
}

// Under the lock of the words alone: the executor's is held as long as the driver stops a post,
// which may wait for a thread that needs a word.
Result<std::atomic<uint64_t>*> StreamExecutor::borrowWord() {
  for (;;) {
    if (std::atomic<uint64_t>* const word = lentWords_.tryLend()) return word;
    const CurrentContext current(*gpu_);
    const RelaxedCapture relaxed;
    PEERLANE_RETURN_IF_ERROR(lentWords_.more());
  }
}

void StreamExecutor::returnWord(std::atomic<uint64_t>* word, const DevicePost& after) {
  lentWords_.takeBack(word, after);
}

Result<std::unique_ptr<DevicePin>> StreamExecutor::pin(std::byte* address, size_t bytes) {
  const RelaxedCapture relaxed;
  return pinForCuda(address, bytes, gpu_);
}

Result<std::unique_ptr<PortQueue>> StreamExecutor::makeQueue() {
  const RelaxedCapture relaxed;
  return makeStreamQueue(gpu_);
}

Result<std::unique_ptr<ResidentPort>> StreamExecutor::makeResidentPort(port::ResidentState* state,
                                                                       uint64_t* left,
                                                                       uint32_t blocks) {
  const RelaxedCapture relaxed;
  return stream::makeResidentPort(gpu_, state, left, blocks);
}

// This and callHost() take no lock, for they take no number of a queue: their caller orders them.
Status StreamExecutor::storeOn(DeviceStream stream, uint64_t* word, uint64_t value) {
  if (!owns(stream))
    return Status(Code::kInvalidArgument, "the stream does not belong to " + device().toString());
  const CurrentContext current(*gpu_);
  return storeWord(stream.handle(), word, value);
}

Status StreamExecutor::callHost(DeviceStream stream, void (*function)(void*), void* argument) {
  if (!owns(stream))
    return Status(Code::kInvalidArgument, "the stream does not belong to " + device().toString());
  const CurrentContext current(*gpu_);
  return check(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.handle()), function, argument),
               "cudaLaunchHostFunc");
}

bool StreamExecutor::hasOneQueue() const {
  return cuda::hasOneHardwareQueue();
}

Status StreamExecutor::open(const MemoryDescription& memory, const std::byte* base) {
  const RelaxedCapture relaxed;
  return openToGpu(base - memory.fdOffset, memory.backingBytes, memory.device.index, *gpu_);
}

// No post is under way any more whose end such a word would tell. The holders of the locks do it:
// one of them may be stopped in the driver for as long as a peer likes. One lock after the other,
// never both, so the order of post() does not matter here.
void StreamExecutor::forgetWords(const std::byte* address, size_t bytes,
                                 std::shared_ptr<void> memory) {
  mutex_.soon([this, address, bytes, memory]()
                  PEERLANE_REQUIRES(mutex_) { queues_.forgetWords(address, bytes); });
  counters_->soon([address, bytes, memory = std::move(memory)](CounterWords& words) {
    words.forget(address, bytes);
  });
}

Status StreamExecutor::health() {
  const CurrentContext current(*gpu_);
  const cudaError_t result = cudaStreamQuery(setUpStream_);
  if (result == cudaSuccess || result == cudaErrorNotReady) return Status::ok();
  return check(result, "the GPU has failed");
}

std::string StreamExecutor::explain() const {
  return device().toString() + ": engines by size, " + lowering_.choice().toString() + "; " +
         copies_.explain();
}

}  // namespace

Result<std::shared_ptr<DeviceExecutor>> makeStreamExecutor(
    std::shared_ptr<const cuda::PrimaryContext> gpu, const Config& config,
    std::shared_ptr<SharedCounterWords> counters) {
  PEERLANE_ASSIGN(const TuneFile tuned, TuneFile::load(config.tuneFile));
  auto executor =
      std::make_shared<StreamExecutor>(std::move(gpu), EngineChoice(tuned), std::move(counters));
  PEERLANE_RETURN_IF_ERROR(executor->open());
  return std::shared_ptr<DeviceExecutor>(std::move(executor));
}

}  // namespace peerlane::stream
