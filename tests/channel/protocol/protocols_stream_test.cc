// SPDX-License-Identifier: Apache-2.0
//
// Every shipped program that has no late target, run by the CPU executor and on a stream of a GPU
// in software, in the program's order: both leave the same memory, and the stream held nothing but
// memory operations, copies and kernels.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "peerlane/channel/protocol/device_get_protocol.h"
#include "peerlane/channel/protocol/device_list_protocol.h"
#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "peerlane/channel/protocol/staged_protocol.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/program/stream/ordered/ordered_program.h"
#include "tests/fake/software_gpu/software_stream.h"
#include "tests/gpu/ordered_fixture.h"

namespace peerlane {
namespace {

constexpr uint32_t kRingSlots = 4;
constexpr uint64_t kTargetBytes = 32768;  // of each target
constexpr MessageLane kShippedLane{.slots = kRingSlots,
                                   .inboxStrideBytes = kInboxPayloadOffset + 1024};

PutPayload twoPieces(TargetId first) {
  PutPayload payload;
  payload.targets = {{.name = "place", .side = Side::kRemote}, {.name = "payload"}};
  const auto from = static_cast<TargetId>(first + 1);
  payload.layout.segments = {{first, from, 0, 100, 300}, {first, from, 500, 0, 41}};
  return payload;
}

std::vector<Program> shippedPrograms() {
  const StreamShape stream{.slots = kRingSlots};
  const ListRing list{.slots = kRingSlots, .slotBytes = 512};
  const StagedShape one{.slots = kRingSlots, .chunkBytes = 96, .lastChunkBytes = 41};
  const StagedShape several{.slots = kRingSlots, .chunkBytes = 96, .chunks = 3};
  const NotifyShape notify{.slots = kRingSlots, .messageBytes = 100};
  return {eagerSender({kShippedLane, 1000}),
          eagerSender({kShippedLane}),
          eagerReceiver({kShippedLane, 1000}),
          rendezvousGetReceiver({kShippedLane, 1000}),
          rendezvousPutSender({kShippedLane, 1000}),
          rendezvousPutReceiver({kShippedLane, 1000}),
          stagedSender(one),
          stagedSender(several),
          stagedReceiver(one),
          stagedReceiver(several),
          notifySender(notify, {}),
          notifySender(notify, twoPieces(kNotifySenderFirstData)),
          notifyReceiver(notify),
          signalSender(3),
          putSignal(twoPieces(kSignalSenderFirstData), 3),
          streamEagerSend(stream),
          streamEagerRecv(stream),
          streamPutSend(stream),
          streamPutHead(stream),
          streamPutTail(stream),
          streamGetHead(stream),
          streamGetTail(stream),
          streamGetRecv(stream),
          streamListSend(list),
          streamListHead(list)};
}

bool touches(const Program& program, bool Target::*property) {
  return std::any_of(program.ops.begin(), program.ops.end(), [&](const Op& op) {
    for (const TargetId id : {op.to.target, op.from.target})
      if (id != kNoTarget && program.targets[id].*property) return true;
    return false;
  });
}

bool isAwaited(const Program& program, TargetId id) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [id](const Op& op) { return op.code == OpCode::kWait && op.to.target == id; });
}

uint64_t nodesOfOthers() {
  using softgpu::NodeKind;
  uint64_t sum = 0;
  for (const NodeKind kind :
       {NodeKind::kFill, NodeKind::kHost, NodeKind::kEvent, NodeKind::kFree, NodeKind::kGraph})
    sum += softgpu::nodesOf(kind);
  return sum;
}

class ProtocolsOnStream : public gputest::OrderedFixture {
 protected:
  using Memory = std::vector<std::vector<std::byte>>;  // of each target

  // Where a stream finds target `id`: words that it waits for in pinned memory, and every second
  // one of the others.
  std::byte* placeOf(const Program& program, size_t id) const {
    const bool isPinned = isAwaited(program, static_cast<TargetId>(id)) || id % 2 == 0;
    return isPinned ? pinned(id * kTargetBytes) : device(id * kTargetBytes);
  }
  // As if the peer had done its part: every wait is satisfied.
  static Memory satisfied(const Program& program, uint64_t cursor) {
    Memory memory(program.targets.size());
    for (size_t id = 0; id < memory.size(); ++id)
      for (size_t i = 0; i < kTargetBytes; ++i)
        memory[id].push_back(static_cast<std::byte>(id * 91 + i * 7 + i / 256 + cursor));
    for (const Op& op : program.ops) {
      if (op.code != OpCode::kWait) continue;
      const Target& target = program.targets[op.to.target];
      const uint64_t value = cursor + static_cast<uint64_t>(op.operand.delta);
      uint64_t offset = op.to.offset;
      if (target.slots > 0)
        offset += (cursor + static_cast<uint64_t>(int64_t{op.to.slotDelta})) % target.slots *
                  target.strideBytes;
      std::memcpy(memory[op.to.target].data() + offset, &value, sizeof(value));
    }
    return memory;
  }
  static void runOnCpu(const Program& program, Memory& memory, std::span<const uint64_t> cursors) {
    Binding binding;
    for (std::vector<std::byte>& target : memory)
      binding.targets.push_back(at(target.data(), kTargetBytes));
    cpu::CpuProgram prepared;
    ASSERT_OK(prepared.prepare(program, binding));
    cpu::CpuRun run;
    run.start(prepared, cursors);
    ASSERT_EQ(run.advance(UINT64_MAX), cpu::Step::kEnded);
    ASSERT_EQ(run.code(), Code::kOk);
  }
  // In the program's order, also what the executor would post in a faster way.
  Result<std::unique_ptr<stream::OrderedProgram>> lower(const Program& program,
                                                        Engine engine) const {
    Binding binding;
    for (size_t id = 0; id < program.targets.size(); ++id)
      binding.targets.push_back(at(placeOf(program, id), kTargetBytes));
    const cuda::CurrentContext current(*gpu_);
    return stream::OrderedProgram::lower(program, binding, {.engine = engine}, {}, abilities_,
                                         [](stream::StreamProgram&) { return Status::ok(); });
  }
  void runOnStream(const Program& program, stream::OrderedProgram& prepared, Memory& memory,
                   std::span<const uint64_t> cursors) {
    for (size_t id = 0; id < memory.size(); ++id)
      CUDA_OK(cudaMemcpy(placeOf(program, id), memory[id].data(), kTargetBytes, cudaMemcpyDefault));
    CUDA_OK(cudaDeviceSynchronize());
    std::atomic<uint64_t>& completion = word(kBytes / 8 - 1);
    completion = 0;
    const uint64_t before = nodesOfOthers();
    {
      const cuda::CurrentContext current(*gpu_);
      ASSERT_OK(prepared.enqueue(
          {.stream = streams_[0],
           .engine = &engine_,
           .cursors = cursors,
           .completion = {reinterpret_cast<uint64_t*>(&completion), {nullptr, 1}}}));
    }
    while (completion != 1) std::this_thread::yield();
    EXPECT_EQ(nodesOfOthers(), before);
    for (size_t id = 0; id < memory.size(); ++id)
      memory[id] = bytesAt(placeOf(program, id), kTargetBytes);
  }

  stream::CopyEngine engine_;
};

TEST_F(ProtocolsOnStream, LeaveTheMemoryThatTheCpuLeaves) {
  std::map<std::string, int> ran, refused;
  for (const Program& program : shippedPrograms()) {
    SCOPED_TRACE(program.toString());
    auto prepared = lower(program, Engine::kAuto);
    if (touches(program, &Target::late) || touches(program, &Target::packets)) {
      ++refused[program.name];
      EXPECT_EQ(prepared.status().code(), Code::kNotSupported);
      continue;
    }
    ++ran[program.name];
    ASSERT_OK(prepared.status());
    for (uint64_t cursor = 0; cursor < 2 * kRingSlots + 1; ++cursor) {
      const std::span<const uint64_t> cursors(&cursor, program.cursorAdvance.size());
      Memory expected = satisfied(program, cursor);
      Memory found = expected;
      ASSERT_NO_FATAL_FAILURE(runOnCpu(program, expected, cursors));
      ASSERT_NO_FATAL_FAILURE(runOnStream(program, **prepared, found, cursors));
      for (size_t id = 0; id < expected.size(); ++id)
        ASSERT_TRUE(expected[id] == found[id])
            << "'" << program.targets[id].name << "', cursor " << cursor;
    }
  }
  EXPECT_EQ(ran, (std::map<std::string, int>{{"eager-send", 2},
                                             {"staged-send", 2},
                                             {"staged-recv", 2},
                                             {"notify", 2},
                                             {"signal", 1},
                                             {"put-signal", 1},
                                             {"stream-put-head", 1},
                                             {"stream-put-tail", 1},
                                             {"stream-get-head", 1},
                                             {"stream-get-tail", 1},
                                             {"stream-list-head", 1}}));
  EXPECT_EQ(refused, (std::map<std::string, int>{{"eager-recv", 1},
                                                 {"rendezvous-get-recv", 1},
                                                 {"rendezvous-put-send", 1},
                                                 {"rendezvous-put-recv", 1},
                                                 {"notify-take", 1},
                                                 {"stream-eager-send", 1},
                                                 {"stream-eager-recv", 1},
                                                 {"stream-put-send", 1},
                                                 {"stream-get-recv", 1},
                                                 {"stream-list-send", 1}}));
}

// Both sides of a staging ring, each on a stream of its own, which wait for each other's words.
TEST_F(ProtocolsOnStream, AStagingRingBetweenTwoStreams) {
  constexpr uint64_t kMessages = 40;
  const StagedShape shape{.slots = 2, .chunkBytes = 96, .chunks = 5, .lastChunkBytes = 41};
  const uint64_t bytes = 4 * 96 + 41;
  const BoundTarget ring = at(device()), data = at(pinned(0), 8), credit = at(pinned(64), 8);
  auto sender = MUST(prepare(stagedSender(shape), {at(pinned(4096)), ring, data, credit}));
  auto receiver = MUST(prepare(stagedReceiver(shape), {at(pinned(8192)), ring, data, credit}));
  for (uint64_t message = 0; message < kMessages; ++message) {
    const uint64_t cursor = message * shape.chunks;
    for (uint64_t i = 0; i < bytes; ++i)
      pinned(4096)[i] = static_cast<std::byte>(message * 31 + i * 7 + i / 251);
    std::memset(pinned(8192), 0xEE, bytes + 1);
    const DevicePost received = post(*receiver, {&cursor, 1}, 1);
    const DevicePost sent = post(*sender, {&cursor, 1}, 0);
    finish(sent, 0);
    finish(received, 1);
    ASSERT_EQ(0, std::memcmp(pinned(4096), pinned(8192), bytes)) << "message " << message;
    ASSERT_EQ(pinned(8192)[bytes], std::byte{0xEE});
  }
  EXPECT_EQ(word(0), kMessages * shape.chunks);
  EXPECT_EQ(word(8), kMessages * shape.chunks);
}

}  // namespace
}  // namespace peerlane
