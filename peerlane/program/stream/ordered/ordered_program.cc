// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/ordered/ordered_program.h"

#include <string>

#include "peerlane/program/kernel/launch/word_kernel.h"
#include "peerlane/program/stream/ordered/ordered_lowering.h"

namespace peerlane::stream {

Status checkWait(const WordOp& wait) {
  const uint64_t all = wait.width == Width::k32 ? 0xffffffffu : ~uint64_t{0};
  const bool isHopeless = (wait.compare == Compare::kEqual && wait.value > all) ||
                          (wait.compare == Compare::kAnd && (wait.value & all) == 0) ||
                          (wait.compare == Compare::kNor && (wait.value & all) == all);
  if (!isHopeless) return Status::ok();
  return Status(Code::kInvalidArgument, "no word satisfies this wait with " +
                                            std::to_string(wait.value) +
                                            ", so nobody could end or release it");
}

Result<std::unique_ptr<OrderedProgram>> OrderedProgram::lower(
    const Program& program, const Binding& binding, const DeviceExecutor::Preferences& preferences,
    const EngineChoice& choice, const WordAbilities& abilities,
    const std::function<Status(StreamProgram&)>& upload) {
  std::unique_ptr<OrderedProgram> made(new OrderedProgram);
  OrderedLowering lowering(program, binding, preferences, choice, abilities);
  PEERLANE_ASSIGN(made->parts_, lowering.run());
  for (const auto& copies : made->parts_.copies)
    if (copies->engine() != Engine::kCe) PEERLANE_RETURN_IF_ERROR(upload(*copies));
  return made;
}

Engine OrderedProgram::engine() const {
  return parts_.copies.empty() ? Engine::kCe : parts_.copies.front()->engine();
}

// Everything that can be refused is, before the first part is enqueued.
Status OrderedProgram::place(Cursors cursors) {
  if (cursors.size() != parts_.cursors)
    return Status(Code::kInvalidArgument, "the program has " + std::to_string(parts_.cursors) +
                                              " cursors, and the post brings " +
                                              std::to_string(cursors.size()));
  for (const MovingWord& moving : parts_.moving) {
    WordOp& word = parts_.words[moving.word];
    word.at = moving.place.at(cursors);
    word.value = valueOf(moving.value, cursors);
    if (word.kind == WordOp::Kind::kWait) PEERLANE_RETURN_IF_ERROR(checkWait(word));
  }
  return Status::ok();
}

Status OrderedProgram::enqueue(const Post& post) {
  PEERLANE_RETURN_IF_ERROR(place(post.cursors));
  OrderedPart last = parts_.order.back();
  if (post.completion.word != nullptr) {
    WordOp& completion = parts_.words[last.first + last.count++];
    completion = {.kind = WordOp::Kind::kStore,
                  .at = reinterpret_cast<std::byte*>(post.completion.word),
                  .value = post.completion.value.delta};
  }
  Status status;
  for (size_t i = 0; i + 1 < parts_.order.size() && status.isOk(); ++i)
    status = enqueuePart(parts_.order[i], post);
  if (status.isOk()) status = enqueuePart(last, post);
  // Whatever the driver says: a part of the program may be on the stream.
  if (status.isOk()) return status;
  return Status(Code::kSystem, std::string(status.message()));
}

Status OrderedProgram::enqueuePart(const OrderedPart& part, const Post& post) {
  switch (part.kind) {
    case OrderedPart::Kind::kWords:
      return postWordOps(post.stream, std::span(parts_.words).subspan(part.first, part.count));
    case OrderedPart::Kind::kCopies: return enqueueCopies(*parts_.copies[part.first], post);
    case OrderedPart::Kind::kSlotCopy: {
      const SlotCopy& copy = parts_.slotCopies[part.first];
      const kernel::CopyPiece piece{copy.from.at(post.cursors), copy.to.at(post.cursors),
                                    copy.bytes};
      return CopyEngine::oneByOne({&piece, 1}, post.stream);
    }
    case OrderedPart::Kind::kAddition: {
      const Addition& addition = parts_.additions[part.first];
      kernel::WordLaunch launch;
      launch.addition = {reinterpret_cast<uint64_t*>(addition.counter.at(post.cursors)),
                         {nullptr, valueOf(addition.value, post.cursors)}};
      launch.stream = post.stream;
      return kernel::launchWords(launch);
    }
  }
  return Status::ok();
}

// No launch may begin before what stands before it has ended: that may be a wait.
Status OrderedProgram::enqueueCopies(const StreamProgram& copies, const Post& post) {
  if (copies.engine() == Engine::kCe)
    return post.engine == nullptr ? CopyEngine::oneByOne(copies.pieces(), post.stream)
                                  : post.engine->copy(copies.pieces(), post.stream);
  kernel::CopyLaunch launch;
  launch.stream = post.stream;
  launch.ctas = copies.ctas();
  launch.method = copies.method();
  if (copies.blocks().blockBytes != 0) {
    launch.blocks = copies.blocks();
  } else if (copies.uploaded().count != 0) {
    launch.list = copies.uploaded();
  } else {
    launch.pieces = copies.pieces().data();
    launch.pieceCount = static_cast<uint32_t>(copies.pieces().size());
  }
  return kernel::launchCopy(launch);
}

}  // namespace peerlane::stream
