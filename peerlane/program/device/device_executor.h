// SPDX-License-Identifier: Apache-2.0
//
// DeviceExecutor: runs programs on the streams of one GPU. The contract between whoever posts and
// whoever knows the device. Uniform in meaning with the CPU executor, not in ability: what it lacks
// is refused when a program is prepared.
//
// A post is enqueued completely when the call returns, and nothing of it afterwards. Its end is a
// word in host memory that the stream stores as its last act: to look at it costs a load, and once
// it is reached the stream has passed every op of the post. Thread-safe.
//
// A post that adds to a peer's counter by the copy engine ends by that counter's word, which the
// peer could write as well: it would only harm what it is sent.
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
#include "peerlane/program/device/device_steps.h"
#include "peerlane/program/device/device_stream.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/program/ring/port_queue.h"
#include "peerlane/program/ring/resident_port_device.h"

namespace peerlane {

// One post under way. Lifetime of the word: the executor's.
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
  // Null: it has no block numbers in device memory. The number of the last post that had one out of
  // range, of those that share the word: this one, and every 1024th of its stream.
  const std::atomic<uint64_t>* fault_ = nullptr;
  uint64_t number_ = 0;
};

// Block numbers of one post of an indexed list; where they lie is the caller's affair.
struct DeviceIndices {
  const uint32_t* to = nullptr;
  const uint32_t* from = nullptr;
  uint64_t count = 0;
  bool onDevice =
      false;  // read by the stream when it gets there; else copied before post() returns
};

// What a target is bound to whose address is not known yet: no memory lies there.
inline std::byte* lateBase() {
  return reinterpret_cast<std::byte*>(uintptr_t{1} << 60);
}

class DeviceErrand;

// A program made ready for one device. Alive until its posts have ended.
class DeviceProgram {
 public:
  virtual ~DeviceProgram() = default;
  virtual Engine engine() const = 0;
  virtual uint64_t bytes() const = 0;  // of one post; of one block where it is indexed
};

// Work that is part of a graph: what it needs as long as the graph exists. Requires at its end: the
// graph and every executable made from it are gone.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
};

// The host's end of a resident port. External synchronization required.
class ResidentPort {
 public:
  virtual ~ResidentPort() = default;
  // No launch is there, or to come.
  virtual bool hasLeft(uint64_t launch) const = 0;
  bool hasLeft() const { return hasLeft(launches()); }
  // How many there were.
  virtual uint64_t launches() const = 0;
  // Requires: hasLeft(). Errors: kSystem.
  virtual Status launch() = 0;
};

class DeviceExecutor {
 public:
  struct Wishes {
    Engine engine = Engine::kAuto;
    uint32_t ctas = 0;      // for kSm; 0: as many as are useful
    bool repeated = false;  // worth putting descriptors into device memory
  };

  virtual ~DeviceExecutor() = default;
  virtual Device device() const = 0;
  // The stream belongs to this device (and may therefore be given to the calls below).
  virtual bool owns(DeviceStream stream) = 0;

  // Errors: kNotSupported naming the op that a stream cannot do, kOutOfMemory.
  virtual Result<std::unique_ptr<DeviceProgram>> prepare(const Program& program,
                                                         const Binding& binding,
                                                         const Wishes& wishes) = 0;
  // `stream`: none means one of the executor's own. Errors: kInvalidArgument (a stream of another
  // GPU), kUnavailable (graphs hold all words of the signal), kNotSupported (it is being captured),
  // kSystem (the device has failed). After an error
  // nothing was enqueued, unless it is kSystem.
  virtual Result<DevicePost> post(DeviceProgram& program, DeviceStream stream,
                                  const DeviceIndices& indices = {}) = 0;
  // For a thread on which others wait, and which must not stop where a stream takes no more work:
  // another thread makes the post, on a stream of the executor's own, as soon as it can. Errands
  // are posted in the order in which they are asked for. Requires: the program adds to no counter.
  virtual std::unique_ptr<DeviceErrand> runErrand(std::shared_ptr<DeviceProgram> program) = 0;
  // Holds the stream until the counter line is at least `value`, or `abort` (a borrowed word) is
  // not 0. Whoever sees its end says so by waitEnded(), once.
  virtual Result<DevicePost> waitCounter(DeviceStream stream, const std::byte* line, uint64_t value,
                                         const std::atomic<uint64_t>* abort) = 0;
  // Work before which the stream is held until a borrowed word, which a CPU stores, is at least
  // `value`. Without a program nothing is done then.
  struct Held {
    uint64_t value = 0;
    DeviceProgram* program = nullptr;
    // A borrowed word, or none: where it is not 0 when the stream is there, nothing is copied. Only
    // kernels look at it: not for programs of engine kCe.
    const std::atomic<uint64_t>* abort = nullptr;
  };
  // One after the other, and nothing that other threads post to this device comes in between:
  // streams share hardware queues, in which the rest could stand behind what waits for its end. No
  // multiprocessor is used for a wait. Errors: as post(), and kNotSupported (more than a stream
  // takes at once). `posts` gets those that were enqueued, also after an error; if it got any,
  // waitEnded() as above, once for all.
  virtual Status postHeld(DeviceStream stream, const std::atomic<uint64_t>* word,
                          std::span<const Held> work, std::vector<DevicePost>& posts) = 0;
  // A program of copies only, whose remote memory is not known yet: it was bound to kLateBase. The
  // stream waits where the copies would begin until resolve() says where the memory is, or refuse()
  // that there is none: then it goes on without a copy. One of the two, once; then waitEnded() as
  // above. What the stream waits for is a word that a CPU stores, never work of another stream:
  // streams share hardware queues, in which that work could stand behind the wait.
  struct LatePost {
    DevicePost post;
    std::atomic<uint64_t>* gate = nullptr;
    std::atomic<uint64_t>* refusal = nullptr;
    void* pieces = nullptr;  // the executor's own, as the next
    uint64_t count = 0;
  };
  virtual Result<LatePost> postLate(DeviceProgram& program, DeviceStream stream) = 0;
  virtual void resolve(const LatePost& late, std::byte* base) = 0;
  virtual void refuse(const LatePost& late) = 0;
  virtual void waitEnded() = 0;

  // --- Streams that are being captured into a graph ---
  // Work becomes a part of the graph and is done at each replay, with numbers that grow from replay
  // to replay. It looks at `abort` (a borrowed word): anything but 0 makes it do nothing but keep
  // count. Replays of one graph run one after the other, as CUDA does with each executable.
  // Errors: kUnavailable (too many captured operations; graphs hold all words of a signal),
  // kInvalidArgument, kSystem; after them a part may have been captured.
  virtual bool isCapturing(DeviceStream stream) = 0;
  // `program` lives as long as the work. `fault`, a borrowed word, becomes 1 when block numbers in
  // device memory were out of range; block numbers in host memory are those of the capture.
  virtual Result<std::unique_ptr<CapturedWork>> capture(DeviceProgram& program, DeviceStream stream,
                                                        const DeviceIndices& indices,
                                                        const std::atomic<uint64_t>* abort,
                                                        std::atomic<uint64_t>* fault) = 0;
  // The first replay waits for `value`, each later one for `perReplay` more. Whoever sees the end
  // of the graph says so by waitEnded(), once.
  virtual Result<std::unique_ptr<CapturedWork>> captureWait(DeviceStream stream,
                                                            const std::byte* line, uint64_t value,
                                                            uint64_t perReplay,
                                                            const std::atomic<uint64_t>* abort) = 0;
  // Each replay adds 1 to `word`, a borrowed one, when what was captured before is done.
  virtual Result<std::unique_ptr<CapturedWork>> captureBell(DeviceStream stream,
                                                            std::atomic<uint64_t>* word,
                                                            const std::atomic<uint64_t>* abort) = 0;
  // Calls `gone` when the graph and all its executables are gone, on a thread of the driver's that
  // must not call CUDA.
  virtual Status keepByGraph(DeviceStream stream, std::function<void()> gone) = 0;

  // --- Messages ---
  // Rings and words that a peer's device writes, zeroed; for one peer. Nothing else lies in the
  // pages that are exported with it but areas of other peers.
  virtual Result<std::unique_ptr<Allocation>> makeArea(size_t bytes) = 0;
  virtual Result<std::unique_ptr<RegionNames>> makeRegionNames() = 0;
  // Programs of waits, copies and stores on rings. Late local places and sizes come with each call.
  // kNotSupported naming what is too much. `names` of the rules outlives the steps.
  virtual Result<std::unique_ptr<DeviceSteps>> prepareSteps(const Program& program,
                                                            const Binding& binding,
                                                            const StepRules& rules) = 0;
  // Enqueues the calls in their order; the post ends with the last one. Whoever sees the end says
  // so by waitEnded(), once. Errors: as post().
  virtual Result<DevicePost> postSteps(DeviceStream stream, std::span<const StepCall> calls) = 0;
  // The same as a part of a graph; calls have cursors in memory of the device. waitEnded() when the
  // graph is gone.
  virtual Result<std::unique_ptr<CapturedWork>> captureSteps(DeviceStream stream,
                                                             std::span<const StepCall> calls) = 0;

  // A word that streams of this device and CPUs read and write; 0 when it is lent.
  virtual Result<std::atomic<uint64_t>*> borrowWord() = 0;
  // It is lent again once `after` has ended.
  virtual void returnWord(std::atomic<uint64_t>* word, const DevicePost& after = {}) = 0;

  // Copies and stores by the copy engine, in a queue of their own. Errors: kSystem, kOutOfMemory.
  virtual Result<std::unique_ptr<PortQueue>> makeQueue() = 0;
  // A kernel of `blocks` thread blocks that serves `state`, memory of this device, zeroed; `left`:
  // a word of the host that the device reaches, 0. Both outlive it, and its last launch.
  virtual Result<std::unique_ptr<ResidentPort>> makeResidentPort(port::ResidentState* state,
                                                                 uint64_t* left,
                                                                 uint32_t blocks) = 0;
  // The stream stores `value` to a word of pinned memory of the host when it gets there. Errors of
  // this and callHost(): kInvalidArgument (a stream of another GPU), kSystem.
  virtual Status storeOn(DeviceStream stream, uint64_t* word, uint64_t value) = 0;
  // Calls `function` on a thread of the driver's when the stream gets there; part of the graph
  // where it is being captured. It must not call CUDA, nor wait.
  virtual Status callHost(DeviceStream stream, void (*function)(void*), void* argument) = 0;

  // All streams of this process share one hardware queue, also those of makeQueue(): what copies to
  // memory of a device stands behind a kernel that is behind another one that waits.
  virtual bool hasOneQueue() const = 0;

  // Makes host memory reachable for all devices of this kind, at the address it has. Whole pages
  // are pinned; it may take a fraction of a second per GiB. Errors: kNotSupported, kUnavailable
  // (just being unpinned), kOutOfMemory, kSystem.
  virtual Result<std::unique_ptr<DevicePin>> pin(std::byte* address, size_t bytes) = 0;

  // Makes memory of another device of this process reachable for this one, at the address it has.
  // `base`: where what `memory` describes begins. It stays so. Errors: kNotSupported (the two have
  // no path to each other), kSystem.
  virtual Status open(const MemoryDescription& memory, const std::byte* base) = 0;

  // Words in [address, address + bytes) go away: nothing waits for them or adds to them any more.
  // Never waits. `memory`, in which they lie, is held until nobody looks at them, which can be as
  // long as a thread is stopped in a post.
  virtual void forgetWords(const std::byte* address, size_t bytes,
                           std::shared_ptr<void> memory) = 0;

  // OK while the device works. Asks the driver: not for every look.
  virtual Status health() = 0;
  // What it does with which engine from which size on, for people.
  virtual std::string explain() const = 0;
};

// Those of one context, in the order in which its user named the devices.
using DeviceExecutors = std::vector<std::shared_ptr<DeviceExecutor>>;

// The one of a device; kInvalidArgument for a device that the context was not created with.
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
