// SPDX-License-Identifier: Apache-2.0
//
// DeviceExecutor: runs programs on the streams of one GPU. The contract between the code that posts
// and the code that knows the device (program/stream). A program means the same here as on the CPU
// executor, but not every op is possible: prepare() refuses an op that the device lacks.
//
// When a call that posts returns, all work of the post is enqueued, and no more follows. The stream
// stores the post's completion word, in host memory, as its last act. Looking at that word costs
// one load; once it has reached the post's number, the stream has passed every op of the post.
// Thread-safe.
//
// A post that adds to a peer's counter by the copy engine uses that counter's word as its
// completion word. The peer could write the word as well; it would harm only the data that it is
// sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/program/device/counter_lender.h"
#include "peerlane/program/device/device_stream.h"
#include "peerlane/program/device/step_list.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/program/ring/port_queue.h"
#include "peerlane/program/ring/resident_port_device.h"

namespace peerlane {

// One submission under way, and its completion word, which the executor owns.
class DevicePost {
 public:
  DevicePost() = default;
  DevicePost(const std::atomic<uint64_t>* word, uint64_t number,
             const std::atomic<uint64_t>* fault = nullptr)
      : word_(word), fault_(fault), number_(number) {}
  // Acquire: pairs with the stream's release.
  bool ended() const {
    return word_ == nullptr || word_->load(std::memory_order_acquire) >= number_;
  }
  const std::atomic<uint64_t>* word() const { return word_; }
  uint64_t number() const { return number_; }
  // Once it has ended: kInvalidArgument when block numbers in device memory were out of range.
  Status status() const {
    if (fault_ == nullptr || fault_->load(std::memory_order_relaxed) < number_) return Status::ok();
    return Status(Code::kInvalidArgument,
                  "a block number in device memory was out of range; its block was left out");
  }

 private:
  const std::atomic<uint64_t>* word_ = nullptr;
  // Null when the post has no block numbers in device memory. Else the word has the number of the
  // last post with a block number out of range, among the posts that share the word: this one and
  // every 1024th of its stream.
  const std::atomic<uint64_t>* fault_ = nullptr;
  uint64_t number_ = 0;
};

// Block numbers of one post of an indexed list. The caller owns the arrays; those in device memory
// must stay valid until the post has ended.
struct DeviceIndices {
  const uint32_t* to = nullptr;
  const uint32_t* from = nullptr;
  uint64_t count = 0;
  bool onDevice =
      false;  // the stream reads them when it gets there; else post() copies them before it returns
};

// The address to which a target is bound while its real one is not known yet; no memory lies there.
inline std::byte* lateBase() {
  return reinterpret_cast<std::byte*>(uintptr_t{1} << 60);
}

class DeferredSubmission;

// A program lowered for one device. It must live until its posts have ended; where it was prepared
// without `repeated`, until the call that posts it has returned.
class DeviceProgram {
 public:
  virtual ~DeviceProgram() = default;
  virtual Engine engine() const = 0;
  virtual uint64_t bytes() const = 0;  // of one post; of one block where it is indexed
};

// Holds everything that captured work needs as long as its graph exists. Its owner must destroy it
// only after the graph and every executable made from it are gone.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
};

// The host's side of a resident kernel (program/ring/resident_port_device.h). External
// synchronization required.
class ResidentPort {
 public:
  virtual ~ResidentPort() = default;
  // True once launch number `launch`, and with it every earlier one, has ended.
  virtual bool hasLeft(uint64_t launch) const = 0;
  bool hasLeft() const { return hasLeft(launches()); }
  // How many launches there were.
  virtual uint64_t launches() const = 0;
  // Requires: hasLeft(). Errors: kSystem.
  virtual Status launch() = 0;
};

class DeviceExecutor {
 public:
  struct Preferences {
    Engine engine = Engine::kAuto;
    uint32_t ctas = 0;      // for kSm; 0: as many as are useful
    bool repeated = false;  // worth putting descriptors into device memory
    // post() is called once, at once: descriptors may go where the device reads them.
    bool isPostedNow = false;
  };

  virtual ~DeviceExecutor() = default;
  virtual Device device() const = 0;
  // True when the stream belongs to this device (only then may the caller pass it to the calls
  // below).
  virtual bool owns(DeviceStream stream) = 0;

  // Any program whose ops a stream can do. One of copies, with at most an addition to a signal
  // behind them, goes everywhere below. One that has anything else, or another order, is for post()
  // and capture() alone; it adds to the word itself, and may wait only for words in pinned host
  // memory, so that a CPU can release it: 64-bit `>=` by poison (program/device/poison.h), others
  // by a value that satisfies them. Errors: kNotSupported naming the op that a stream cannot do and
  // what it could, kInvalidArgument, kOutOfMemory.
  virtual Result<std::unique_ptr<DeviceProgram>> prepare(const Program& program,
                                                         const Binding& binding,
                                                         const Preferences& preferences) = 0;
  // `stream`: none means one of the executor's own. Errors: kInvalidArgument (a stream of another
  // GPU, too few cursors), kUnavailable (graphs hold all words of the signal), kNotSupported (the
  // stream is being captured), kSystem (the device has failed). After an error nothing was
  // enqueued, unless it is kSystem. `cursors`: one for each that the program has; this post's
  // numbers. After a post of a program that waits, the caller must call waitEnded() exactly once
  // after it has seen the end of the post.
  virtual Result<DevicePost> post(DeviceProgram& program, DeviceStream stream,
                                  const DeviceIndices& indices = {},
                                  std::span<const uint64_t> cursors = {}) = 0;
  // A deferred submission, for a caller that must not block where a stream takes no more work (a
  // turn of the progress engine): another thread makes the post, on a stream of the executor's own,
  // as soon as it can. That thread posts in the order of these calls. Requires: the program adds to
  // no counter.
  virtual std::unique_ptr<DeferredSubmission> submitDeferred(
      std::shared_ptr<DeviceProgram> program) = 0;
  // Holds the stream until the counter line is at least `value`, or the abort word (borrowed) is
  // not 0. The caller must call waitEnded() exactly once after it has seen the end of the post.
  virtual Result<DevicePost> waitCounter(DeviceStream stream, const std::byte* line, uint64_t value,
                                         const std::atomic<uint64_t>* abort) = 0;
  // A held submission: the stream waits until a borrowed word, which a CPU stores, is at least
  // `value`, and then does the work. Without a program it only waits.
  struct HeldWork {
    uint64_t value = 0;
    DeviceProgram* program = nullptr;
    // The abort word (borrowed), or null. If it is not 0 when the stream gets there, the kernel
    // copies nothing. Only kernels look at it, so callers must not rely on it for programs of
    // engine kCe.
    const std::atomic<uint64_t>* abort = nullptr;
  };
  // Enqueues the work in its order, and no other thread's post to this device comes in between:
  // streams share hardware queues, and the rest of this work could be queued after a post that
  // waits for the end of this work. The waits use no multiprocessor. Errors: as post(), and
  // kNotSupported (more than a stream takes at once). `posts` receives the posts that were
  // enqueued, also after an error. If there are any, the caller must call waitEnded() exactly once
  // after it has seen the end of all of them.
  virtual Status postHeld(DeviceStream stream, const std::atomic<uint64_t>* word,
                          std::span<const HeldWork> work, std::vector<DevicePost>& posts) = 0;
  // A submission whose remote memory is not known yet: a program of copies only, bound to
  // lateBase(). The stream waits at the place of the copies. The caller must call resolve() once:
  // then the stream copies, with `base` as the address of the memory, or, where that is null, goes
  // on without a copy. Then waitEnded() as above. The stream waits for a word that a CPU stores,
  // never for work of another stream, because streams share hardware queues and that work could be
  // queued after the wait.
  struct LatePost {
    DevicePost post;
    std::atomic<uint64_t>* gate = nullptr;
    std::atomic<uint64_t>* refusal = nullptr;
    void* pieces = nullptr;  // the executor's own, as the next
    uint64_t count = 0;
  };
  virtual Result<LatePost> postLate(DeviceProgram& program, DeviceStream stream) = 0;
  virtual void resolve(const LatePost& late, std::byte* base) = 0;
  virtual void waitEnded() = 0;

  // --- Streams that are being captured into a graph ---
  // The work becomes part of the graph. Each replay does it, with numbers that grow from replay to
  // replay. It looks at the abort word (borrowed): if that is not 0, a replay only keeps count.
  // Replays of one graph run one after the other, as CUDA does with each executable.
  // Errors: kUnavailable (too many captured operations; graphs hold all words of a signal),
  // kInvalidArgument, kSystem; after them a part may have been captured.
  virtual bool isCapturing(DeviceStream stream) = 0;
  // `program` must live as long as the work. `fault`, a borrowed word, becomes 1 when block numbers
  // in device memory were out of range. Block numbers in host memory are read once, at the capture.
  // Every replay of a program in its order waits for and stores the same numbers; it looks at no
  // abort word, and where it waits, the caller must call waitEnded() exactly once after the graph
  // is gone. kNotSupported if it has cursors.
  virtual Result<std::unique_ptr<CapturedWork>> capture(DeviceProgram& program, DeviceStream stream,
                                                        const DeviceIndices& indices,
                                                        const std::atomic<uint64_t>* abort,
                                                        std::atomic<uint64_t>* fault) = 0;
  // The first replay waits for `value`, each later one for `perReplay` more. The caller must call
  // waitEnded() exactly once after the graph is gone.
  virtual Result<std::unique_ptr<CapturedWork>> captureWait(DeviceStream stream,
                                                            const std::byte* line, uint64_t value,
                                                            uint64_t perReplay,
                                                            const std::atomic<uint64_t>* abort) = 0;
  // Each replay adds 1 to `word`, a borrowed one, after the work captured before it is done.
  virtual Result<std::unique_ptr<CapturedWork>> captureBell(DeviceStream stream,
                                                            std::atomic<uint64_t>* word,
                                                            const std::atomic<uint64_t>* abort) = 0;
  // A thread of the driver calls `gone` when the graph and all its executables are gone. `gone`
  // must not call CUDA.
  virtual Status keepByGraph(DeviceStream stream, std::function<void()> gone) = 0;

  // --- Messages ---
  // Zeroed memory for the rings and words that one peer's device writes. The pages that are
  // exported with it hold nothing but areas of other peers.
  virtual Result<std::unique_ptr<Allocation>> makeArea(size_t bytes) = 0;
  virtual Result<std::unique_ptr<RegionNames>> makeRegionNames() = 0;
  // Lowers a program of waits, copies and stores on rings to a step list. Late local places and
  // sizes come with each call. kNotSupported names the op or rule that a step list cannot have.
  // `names` of the rules must outlive the steps.
  virtual Result<std::unique_ptr<StepList>> prepareSteps(const Program& program,
                                                         const Binding& binding,
                                                         const StepRules& rules) = 0;
  // Enqueues the calls in their order; the post ends with the last one. The caller must call
  // waitEnded() exactly once after it has seen the end of the post. Errors: as post().
  virtual Result<DevicePost> postSteps(DeviceStream stream, std::span<const StepCall> calls) = 0;
  // The same as a part of a graph; the calls must have cursors in memory of the device. The caller
  // must call waitEnded() exactly once after the graph is gone.
  virtual Result<std::unique_ptr<CapturedWork>> captureSteps(DeviceStream stream,
                                                             std::span<const StepCall> calls) = 0;

  // A word that streams of this device and CPUs read and write; 0 when it is lent.
  virtual Result<std::atomic<uint64_t>*> borrowWord() = 0;
  // The executor lends it again only after `after` has ended.
  virtual void returnWord(std::atomic<uint64_t>* word, const DevicePost& after = {}) = 0;
  // Of the counters of peers; one for all executors of a context.
  virtual CounterLender& counters() = 0;

  // Copies and stores by the copy engine, in a queue of their own. Errors: kSystem, kOutOfMemory.
  virtual Result<std::unique_ptr<PortQueue>> makeQueue() = 0;
  // A resident kernel of `blocks` thread blocks that serves `state`, zeroed memory of this device.
  // `left`: a word of the host that the device reaches, 0 at first. Both must outlive the port and
  // its last launch.
  virtual Result<std::unique_ptr<ResidentPort>> makeResidentPort(port::ResidentState* state,
                                                                 uint64_t* left,
                                                                 uint32_t blocks) = 0;
  // The stream stores `value` to a word of pinned memory of the host when it gets there. Errors of
  // this and callHost(): kInvalidArgument (a stream of another GPU), kSystem.
  virtual Status storeOn(DeviceStream stream, uint64_t* word, uint64_t value) = 0;
  // A thread of the driver calls `function` when the stream gets there; part of the graph where the
  // stream is being captured. `function` must neither call CUDA nor wait.
  virtual Status callHost(DeviceStream stream, void (*function)(void*), void* argument) = 0;

  // True when all streams of this process share one hardware queue, also those of makeQueue(): a
  // copy to memory of a device then waits for a kernel queued before it, which can be queued after
  // another kernel that waits.
  virtual bool hasOneQueue() const = 0;

  // Makes host memory reachable for all devices of this kind, at the address it has. Whole pages
  // are pinned; it may take a fraction of a second per GiB. Errors: kNotSupported, kUnavailable
  // (just being unpinned), kOutOfMemory, kSystem.
  virtual Result<std::unique_ptr<DevicePin>> pin(std::byte* address, size_t bytes) = 0;

  // Makes memory of another device of this process reachable for this one, at the address it has.
  // `base`: the address where the described memory begins. The memory stays reachable. Errors:
  // kNotSupported (the two have no path to each other), kSystem.
  virtual Status open(const MemoryDescription& memory, const std::byte* base) = 0;

  // Forgets the words in [address, address + bytes), which go away. Requires: no stream waits for
  // them or adds to them any more. Never blocks. The executor holds `memory`, in which they lie,
  // until none of its threads looks at them; that can last as long as a thread is blocked in a
  // post.
  virtual void forgetWords(const std::byte* address, size_t bytes,
                           std::shared_ptr<void> memory) = 0;

  // OK while the device works. Asks the driver, so callers must not call it in every poll.
  virtual Status health() = 0;
  // Says, for people, from which size on it uses which engine.
  virtual std::string explain() const = 0;
};

// The executors of one context, in the order in which its user named the devices.
using DeviceExecutors = std::vector<std::shared_ptr<DeviceExecutor>>;

// The executor of a device; kInvalidArgument for a device that the context was not created with.
inline Result<std::shared_ptr<DeviceExecutor>> executorIn(const DeviceExecutors& executors,
                                                          Device device) {
  std::string known;
  for (const auto& executor : executors) {
    if (executor->device() == device) return executor;
    known += " " + executor->device().toString();
  }
  return Status(Code::kInvalidArgument, device.toString() + " is not a device of this context" +
                                            (known.empty() ? "" : "; it has" + known) +
                                            " (ContextOptions::devices)");
}

}  // namespace peerlane
