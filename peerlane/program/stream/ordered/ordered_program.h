// SPDX-License-Identifier: Apache-2.0
//
// OrderedProgram: any program of waits, stores, additions, fences, flushes and copies, lowered for
// streams of one GPU, which do all of it in the program's order. The general way: it knows no
// protocol and recognises no shape. StreamProgram (copies, then an addition to a signal) and
// StreamStepList (sides of messages) are the fast ways for what they recognise. External
// synchronization required.
//
//   runs of waits, stores, fences   memory operations, up to 255 in a call of the driver
//   runs of copies                  as StreamProgram makes them: copy engine or kernel
//   copies of rings' slots          the copy engine, one by one
//   additions                       a kernel of one thread each
//
// Between its first part and its completion a stream holds nothing else, so nothing in it waits for
// a thread of the host, but for whoever stores the awaited words.
#pragma once

#include <functional>
#include <memory>

#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"
#include "peerlane/program/stream/copy/copy_engine.h"
#include "peerlane/program/stream/copy/lowered_program.h"
#include "peerlane/program/stream/copy/word_abilities.h"
#include "peerlane/program/stream/ordered/ordered_parts.h"

namespace peerlane::stream {

class OrderedProgram final : public LoweredProgram {
 public:
  // With the GPU current. `upload` puts descriptors of copies by kernels where every launch finds
  // them, or leaves them alone if they fit its parameters. Errors, each naming the op and what
  // would be accepted: kNotSupported for a late target, LL packets, block numbers that come with a
  // post, memory that the stream does not reach, a word that the GPU's streams cannot use, and a
  // wait for a word that a CPU cannot store: nobody could release it. kInvalidArgument for an op
  // outside its target, or a wait that no value satisfies. Those of Program::check() and of
  // `upload`.
  static Result<std::unique_ptr<OrderedProgram>> lower(
      const Program& program, const Binding& binding,
      const DeviceExecutor::Preferences& preferences, const EngineChoice& choice,
      const WordAbilities& abilities, const std::function<Status(StreamProgram&)>& upload);

  Engine engine() const override;
  uint64_t bytes() const override { return parts_.bytes; }
  bool waits() const { return parts_.waits; }
  // Operands and slots of such a program are constants in one post, and others in the next.
  bool hasCursors() const { return parts_.cursors != 0; }

  struct Post {
    void* stream = nullptr;          // CUstream
    CopyEngine* engine = nullptr;    // null: the stream is being captured
    Cursors cursors{};               // one for each of the program
    kernel::WordStore completion{};  // a constant, stored last; word null: none
  };
  // Enqueues everything in order, with the GPU current. Posting path: it allocates nothing (but for
  // the room that the copy engine keeps for its longest list), takes no lock and enters the kernel
  // only where the driver does. Errors: kInvalidArgument (cursors; nothing was enqueued), kSystem
  // (the driver refused a part; those before it are enqueued).
  Status enqueue(const Post& post);

 private:
  OrderedProgram() : LoweredProgram(/*isOrdered=*/true) {}
  Status place(Cursors cursors);
  Status enqueuePart(const OrderedPart& part, const Post& post);
  static Status enqueueCopies(const StreamProgram& copies, const Post& post);

  OrderedParts parts_;
};

}  // namespace peerlane::stream
