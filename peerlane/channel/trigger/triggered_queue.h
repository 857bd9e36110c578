// SPDX-License-Identifier: Apache-2.0
//
// TriggeredQueue: transfers that the CPU prepares and another executor launches and awaits, by
// running short programs without addresses. post: put, get, signal, add and receive only prepare.
// commit: makes the program that launches all that was posted since the last commit. peek: makes
// the program that waits for a commit's completion. The three are PeerDirect Async's (2017). See
// docs/triggered.md.
//
// A queue has one emitter. *Mapped*: loads and stores of the executor reach all memory, and the
// commit's program is the transfer itself. *Doorbell*: the program stores a number, a server thread
// of the context has the links perform the operations up to it, and mirrors their completion into a
// word that the peek waits for.
//
// Order: operations of one queue take effect in the order in which they were posted; nothing is
// promised between queues, or between a queue and put() or get().
// Threads: one thread at a time posts, commits, takes back, peeks and polls (the poster). One
// executor at a time enqueues and runs the programs; it may be another thread. cancel(), status()
// and wake() may come from anywhere.
// Failure: the first one ends the queue, and everything of it; status() says why. Every wait for a
// count is released then; an executor of one's own that waits for `arrived` looks at the status
// word. Lifetime: the regions of what was posted stay in use until its commit is complete, was
// taken back, or the queue has failed; what was not committed when it failed, until the poster's
// next call; what another executor may be running on a mapped queue, until that has run. Handles
// are cheap copies; with the last one the queue is closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/memory/region.h"
#include "peerlane/program/model/executor_abilities.h"
#include "peerlane/program/model/program.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class TriggeredCore;
struct TriggerOp;

enum class TriggerEmitter : uint8_t {
  kAuto,    // mapped where it can be: the first post decides, receive() apart
  kMapped,  // memory that loads and stores do not reach is refused when it is posted
  kDoorbell
};

struct TriggerOptions {
  // Who runs the programs. What it lacks and the emitter needs refuses creation, by name.
  ExecutorAbilities executor = ExecutorAbilities::cpu();
  TriggerEmitter emitter = TriggerEmitter::kAuto;
  // Doorbell queues: operations launched or prepared and not complete; a power of two, 2 to 1024.
  uint32_t operations = 64;
  // Commits made and not complete; a power of two, 2 to 1024.
  uint32_t commits = 32;
  // Whose streams and kernels run the programs; the host: its threads. A queue belongs to one
  // stream, the first one that a program of it was enqueued on. Kernels run what resolve() gives.
  Device device{};
  // How long a post may wait for regions that are not imported yet.
  std::chrono::nanoseconds importTimeout = std::chrono::seconds(10);
};

// What a number in the programs of a queue means to an executor that runs them by itself.
struct TriggerRow {
  const char* name = "";
  std::byte* host = nullptr;  // its address for loads and stores of the CPU; null: there is none
  uint64_t bytes = 0;
};

// One making of a commit or peek. Numbers of commits begin with 1; one that was taken back is used
// again, with another making.
struct TriggerId {
  uint64_t number = 0;
  uint64_t making = 0;
  friend bool operator==(const TriggerId&, const TriggerId&) = default;
};

struct TriggerProgram {
  TriggerId id;
  // Until the commit has ended or was taken back, or the peek was passed or aborted; empty where
  // there is nothing to do.
  const Program* program = nullptr;
};

// A program as a flat list with addresses, for trigger_device.h.
struct TriggerList {
  uint32_t ops = 0;
  const uint64_t* status = nullptr;  // not 0 once the queue has failed; lives as long as the queue
};

class TriggeredQueue {
 public:
  TriggeredQueue() = default;

  // Errors: kInvalidArgument, kNotSupported (an ability is missing), what Peer::status() says.
  static Result<TriggeredQueue> create(const Peer& peer, const TriggerOptions& options = {});

  // --- Post: prepares, and launches nothing. An error prepares nothing. Errors of all: kTryAgain
  // when `operations` of them are under way, and the queue's failure ---
  Status put(std::span<const Block> blocks);
  Status get(std::span<const Block> blocks);
  // Adds to the peer's signal once everything that was posted before is visible there. Of a mapped
  // queue of a device: kUnavailable when none of the signal's 7 words for devices is free; the
  // queue has one from its first addition to its end.
  Status signal(uint32_t number, uint64_t add = 1);
  // Adds to the 64-bit word at `offset` (a multiple of 8) of a region of the peer, in the same
  // order. kNotSupported where the link adds to no word of such memory. Only the owner knows
  // whether a region that can be mapped is one of Context::allocate: where an agent adds, it
  // refuses another one when the addition comes, which fails the queue.
  Status add(const RemoteRegion& region, uint64_t offset, uint64_t value);
  // The commit is complete only once this side's signal `number` is at least `value`: the arrival
  // of what the peer put before it added. Launches nothing; so a peek of a commit of receives alone
  // passes once they have arrived, whether that was enqueued or not.
  Status receive(uint32_t number, uint64_t value);
  // Takes back what was posted since the last commit.
  void discard();

  // --- Commit ---
  // So many ops the program of a commit would have now, and that of a peek of that commit.
  uint32_t commitOps() const;
  uint32_t peekOps(uint64_t number) const;
  // The program that launches what was posted; an empty one where nothing was. Nothing is consumed
  // by an error: kInvalidArgument when it would have more than `mostOps` ops, with the number that
  // it needs; kTryAgain when `commits` of them are under way.
  Result<TriggerProgram> commit(uint32_t mostOps = UINT32_MAX);
  // Takes back the last commit and its operations. kInvalidArgument: it is not the last one, it was
  // enqueued, or a peek waits for it.
  Status rollback(const TriggerId& commit);

  // --- Peek ---
  // The program that waits until commit `number` is complete. kInvalidArgument: there is no such
  // commit, or too many ops; kTryAgain: 16 peeks are under way.
  Result<TriggerProgram> peek(uint64_t number, uint32_t mostOps = UINT32_MAX);
  // kInvalidArgument: it was enqueued.
  Status abortPeek(const TriggerId& peek);
  // OK once the commit is complete. kTryAgain: it is not, or a peek of it is under way. Else the
  // queue's failure.
  Status poll(uint64_t number);

  // --- Run, by an executor of one's own: enqueue first, in the order of the numbers, then run the
  // program, with the targets of targets(). From here on nothing is taken back. The executor must
  // not look at a program after its last op: the poster may make another one in its place ---
  Status enqueueCommit(const TriggerId& commit);
  Status enqueuePeek(const TriggerId& peek);
  // --- Run on a stream of TriggerOptions::device: enqueued when the call returns. Between commit
  // and completion the stream holds memory operations, copies and kernels of the library alone ---
  // An error fails the queue: what was posted with the commit is lost.
  Status enqueueCommit(const TriggerId& commit, DeviceStream stream);
  // The stream goes on when the commit is complete. `timeout`: then the queue fails with kTimeout,
  // which releases the stream, as any failure does; status() says which.
  Status enqueuePeek(const TriggerId& peek, DeviceStream stream,
                     std::chrono::nanoseconds timeout = std::chrono::hours(24));
  // In the order of their numbers; valid until the next post.
  std::span<const TriggerRow> targets() const;
  // The program of a commit or peek as a flat list for runTriggered() (trigger_device.h), with the
  // addresses of TriggerOptions::device. The poster's, before it is enqueued; a queue that a kernel
  // uses must stay until the kernel has ended. kInvalidArgument: `room` is too small, with the size
  // that it needs; or the program has ended.
  Result<TriggerList> resolve(const TriggerProgram& program, std::span<TriggerOp> room) const;

  // --- Run by this thread ---
  Status execute(const TriggerId& commit);
  // Waits as Signal::wait() does. kTimeout: the peek is still under way, and may be run again.
  Status executePeek(const TriggerId& peek, std::chrono::nanoseconds timeout);
  // peek() and executePeek() in one.
  Status wait(uint64_t number, std::chrono::nanoseconds timeout);

  // --- Any thread ---
  // Ends the queue with kCancelled: what was launched ends early, waits are released. Idempotent.
  void cancel();
  // OK, or the first failure.
  Status status() const;
  // Doorbell queues: an executor is about to store a bell; the server, which may nap for a
  // millisecond, looks now and for a while. Mapped ones: an executor of one's own has added to a
  // signal; a thread of the peer that sleeps for it is woken. execute() needs neither.
  void wake();
  // "mapped" or "doorbell", or "undecided" before the first post of kAuto; and why not the other
  // one, for people.
  std::string emitter() const;
  std::string whyNotOther() const;

  explicit operator bool() const { return core_ != nullptr; }

 private:
  explicit TriggeredQueue(std::shared_ptr<TriggeredCore> core);
  struct Closed;  // closes the queue with the last handle
  std::shared_ptr<TriggeredCore> core_;
  std::shared_ptr<Closed> closed_;
};

}  // namespace peerlane
