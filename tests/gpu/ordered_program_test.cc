// SPDX-License-Identifier: Apache-2.0
//
// Programs in their order on a stream: what is refused and why, batches, copies that build on each
// other, how waits are released, and what a graph makes of them.
#include "peerlane/program/stream/ordered/ordered_program.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/gpu/ordered_fixture.h"

namespace peerlane::gputest {
namespace {

using stream::OrderedProgram;
using stream::WordAbilities;
using stream::WordPlace;

class OrderedProgramTest : public OrderedFixture {
 protected:
  Status lower(const Program& program, std::vector<BoundTarget> targets,
               const WordAbilities& abilities) const {
    const cuda::CurrentContext current(*gpu_);
    return OrderedProgram::lower(program, {.targets = std::move(targets)}, {}, {}, abilities,
                                 [](stream::StreamProgram&) { return Status::ok(); })
        .status();
  }
  Status lower(const Program& program, std::vector<BoundTarget> targets) const {
    return lower(program, std::move(targets), abilities_);
  }
};

ProgramBuilder one(const char* target) {
  ProgramBuilder builder("one");
  builder.local(target);
  return builder;
}
Program waitFor(uint64_t value, Compare compare = Compare::kGreaterEqual,
                Width width = Width::k64) {
  return one("word")
      .wait({.target = 0}, {.delta = static_cast<int64_t>(value)}, compare, width)
      .build();
}

// The sentence names the op.
void expectRefused(const Status& status, Code code, const char* op, const char* why) {
  EXPECT_EQ(status.code(), code) << status.toString();
  const std::string text(status.message());
  EXPECT_NE(text.find(op), std::string::npos) << text;
  EXPECT_NE(text.find(why), std::string::npos) << text;
}

TEST_F(OrderedProgramTest, KnowsWhereWordsLie) {
  const cuda::CurrentContext current(*gpu_);
  EXPECT_EQ(WordPlace::of(pinned(8)).kind, WordPlace::Kind::kPinned);
  EXPECT_EQ(WordPlace::of(device(8)).kind, WordPlace::Kind::kGpu);
  EXPECT_EQ(WordPlace::of(device(8)).gpu, 0);
  alignas(8) std::byte pageable[8];
  EXPECT_EQ(WordPlace::of(pageable).kind, WordPlace::Kind::kUnknown);
}

TEST_F(OrderedProgramTest, RefusesWaitsThatNobodyCouldRelease) {
  expectRefused(lower(waitFor(1), {at(device())}), Code::kNotSupported, "op 0, a wait",
                "pinned host memory");
  std::vector<std::byte> pageable(4096);
  expectRefused(lower(waitFor(1), {at(pageable.data())}), Code::kNotSupported, "op 0, a wait",
                "pinned host memory");
  const Code never = Code::kInvalidArgument;
  const char* const hopeless = "no word satisfies";
  expectRefused(lower(waitFor(0, Compare::kAnd), {at(pinned())}), never, "a wait", hopeless);
  expectRefused(lower(waitFor(~0ull, Compare::kNor), {at(pinned())}), never, "a wait", hopeless);
  expectRefused(lower(waitFor(1ull << 32, Compare::kEqual, Width::k32), {at(pinned())}), never,
                "a wait", hopeless);
  expectRefused(lower(waitFor(1ull << 32, Compare::kAnd, Width::k32), {at(pinned())}), never,
                "a wait", hopeless);
  expectRefused(lower(waitFor(0xffffffff, Compare::kNor, Width::k32), {at(pinned())}), never,
                "a wait", hopeless);
  EXPECT_OK(lower(waitFor(1ull << 31, Compare::kAnd, Width::k32), {at(pinned())}));
}

TEST_F(OrderedProgramTest, RefusesWhatTheGpuLacks) {
  WordAbilities poor = abilities_;
  poor.has64Bits = poor.hasNor = poor.hasFlush = poor.ordersNicWrites = poor.addsToHost = false;
  const Code lacking = Code::kNotSupported;
  expectRefused(lower(waitFor(1), {at(pinned())}, poor), lacking, "a wait", "accepted: 32 bits");
  EXPECT_OK(lower(waitFor(1, Compare::kEqual, Width::k32), {at(pinned())}, poor));
  expectRefused(lower(waitFor(1, Compare::kNor, Width::k32), {at(pinned())}, poor), lacking,
                "a wait", "nor");
  const Program store = one("word").store({.target = 0}, {.delta = 1}, Order::kRelease).build();
  expectRefused(lower(store, {at(device())}, poor), lacking, "a store", "accepted: 32 bits");
  const Program flush = one("memory").flush(0).build();
  expectRefused(lower(flush, {at(device())}, poor), lacking, "a flush", "flush by the host");
  EXPECT_OK(lower(flush, {at(pinned())}, poor));
  poor.hasFlush = true;
  EXPECT_OK(lower(flush, {at(device())}, poor));
  const Program add = one("counter").add64({.target = 0}, {.delta = 1}, Order::kRelease).build();
  expectRefused(lower(add, {at(pinned())}, poor), lacking, "op 0", "atomically");
  EXPECT_OK(lower(add, {at(device())}, poor));
}

TEST_F(OrderedProgramTest, RefusesWhatAStreamDoesNotReach) {
  const Program store = one("word").store({.target = 0}, {.delta = 1}, Order::kRelease).build();
  expectRefused(lower(store, {{.bytes = 8}}), Code::kNotSupported, "op 0, a store", "not mapped");
  std::vector<std::byte> pageable(4096);
  expectRefused(lower(store, {at(pageable.data())}), Code::kNotSupported, "op 0, a store",
                "accepted: pinned");
  expectRefused(lower(store, {at(pinned(), 4)}), Code::kInvalidArgument, "op 0, a store",
                "outside of 'word'");
  ProgramBuilder late("late");
  late.target({.name = "later", .side = Side::kRemote, .late = true});
  late.local("from");
  late.fence().copy({.target = 0}, {.target = 1}, 8);
  expectRefused(lower(late.build(), {{}, at(pinned())}), Code::kNotSupported, "op 1, a copy",
                "bound late");
  ProgramBuilder packets("packets");
  packets.cursor(1);
  packets.target({.name = "packets", .packets = true});
  packets.waitPackets({.target = 0}, {.cursor = 0, .delta = 1}, 8);
  expectRefused(lower(packets.build(), {at(pinned())}), Code::kNotSupported, "op 0, a wait",
                "LL packets");
  ProgramBuilder ring("ring");
  ring.cursor(1);
  ring.target({.name = "ring", .cursor = 0, .slots = 4, .strideBytes = 64});
  ring.wait({.target = 0, .offset = 56}, {.cursor = 0});
  const Program inRing = ring.build();
  EXPECT_OK(lower(inRing, {at(pinned(), 256)}));
  expectRefused(lower(inRing, {at(pinned(), 255)}), Code::kInvalidArgument, "op 0, a wait",
                "outside of 'ring'");
  ProgramBuilder indexed("indexed");
  indexed.local("to");
  indexed.local("from");
  CopyLayout list;
  list.kind = CopyLayout::Kind::kIndexed;
  list.first = {0, 1, 0, 0, 16};
  list.toStride = list.fromStride = 16;
  list.count = list.toLimit = list.fromLimit = 4;
  indexed.copyList(list);
  expectRefused(lower(indexed.build(), {at(device()), at(pinned())}), Code::kNotSupported, "op 0",
                "block numbers");
}

TEST_F(OrderedProgramTest, RefusesOtherCursorsBeforeItEnqueues) {
  ProgramBuilder builder("cursors");
  builder.cursor(1);
  builder.local("word");
  builder.store({.target = 0}, {.delta = 5}, Order::kRelease)
      .wait({.target = 0}, {.cursor = 0}, Compare::kAnd);
  auto program = MUST(prepare(builder.build(), {at(pinned())}));
  EXPECT_EQ(executor_->post(*program, stream()).status().code(), Code::kInvalidArgument);
  const uint64_t cursors[] = {0, 0};
  EXPECT_EQ(executor_->post(*program, stream(), {}, cursors).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(executor_->post(*program, stream(), {}, {cursors, 1}).status().code(),
            Code::kInvalidArgument)
      << "& 0";
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(streams_[0]));
  EXPECT_EQ(word(0), 0u);
  const uint64_t four = 4;
  finish(post(*program, {&four, 1}));
  EXPECT_EQ(word(0), 5u);
}

// As many as fill a batch, one less, one more, and several batches: each value is stored once, in
// its place, and the completion comes after all.
TEST_F(OrderedProgramTest, WordsOfAnyNumber) {
  for (const size_t count : {1u, 253u, 254u, 255u, 256u, 257u, 509u, 510u, 511u, 1000u}) {
    ProgramBuilder builder("many");
    builder.local("words");
    builder.wait({.target = 0, .offset = 8 * count}, {.delta = 1});
    for (size_t i = 0; i < count; ++i) {
      builder.store({.target = 0, .offset = 8 * i}, {.delta = static_cast<int64_t>(7 * i + 1)},
                    Order::kRelaxed);
      word(i) = 0;
    }
    // The last one is overwritten: the order counts across batches.
    builder.store({.target = 0, .offset = 8 * (count - 1)}, {.delta = 99}, Order::kRelease);
    word(count) = 0;
    auto program = MUST(prepare(builder.build(), {at(pinned(), kBytes)}));
    const DevicePost made = post(*program);
    EXPECT_FALSE(made.ended());
    EXPECT_EQ(word(0), 0u);
    word(count) = 1;
    finish(made);
    for (size_t i = 0; i + 1 < count; ++i) ASSERT_EQ(word(i), 7 * i + 1) << i << " of " << count;
    EXPECT_EQ(word(count - 1), 99u);
  }
}

// A run of copies is one batch in no order, so what builds on an earlier copy must not be in it.
TEST_F(OrderedProgramTest, CopiesThatBuildOnEachOtherKeepTheirOrder) {
  for (const Engine engine : {Engine::kCe, Engine::kSm}) {
    ProgramBuilder builder("chain");
    builder.local("here");
    builder.remote("there");
    const auto copy = [&](uint64_t to, uint64_t from) {
      builder.copy({.target = 1, .offset = to}, {.target = 1, .offset = from}, 64);
    };
    builder.copy({.target = 1}, {.target = 0}, 64);  // write 0
    copy(64, 0);                                     // read what was written
    copy(0, 256);                                    // write what was read
    copy(0, 320);                                    // write what was written
    copy(128, 0);
    builder.store({.target = 0, .offset = 512}, {.delta = 1}, Order::kRelease);
    std::memset(pinned(), 'a', 64);
    std::vector<std::byte> start(512, std::byte{'.'});
    std::fill_n(start.begin() + 256, 64, std::byte{'b'});
    std::fill_n(start.begin() + 320, 64, std::byte{'c'});
    CUDA_OK(cudaMemcpy(device(), start.data(), 512, cudaMemcpyDefault));
    CUDA_OK(cudaDeviceSynchronize());
    auto program = MUST(prepare(builder.build(), {at(pinned()), at(device())}, {.engine = engine}));
    const DevicePost made = post(*program);
    CUDA_OK(cudaStreamSynchronize(streams_[0]));
    EXPECT_TRUE(made.ended());
    const auto found = bytesAt(device(), 192);
    EXPECT_EQ(found[0], std::byte{'c'}) << engineName(engine);
    EXPECT_EQ(found[64], std::byte{'a'});
    EXPECT_EQ(found[128], std::byte{'c'});
    EXPECT_EQ(word(64), 1u);
  }
}

// More pieces than a launch has parameters for, between a wait and a store, again and again.
TEST_F(OrderedProgramTest, LongListsBetweenWords) {
  constexpr uint64_t kPieces = 5000, kPiece = 24, kStep = 32;
  constexpr uint64_t kRoom = kPieces * kStep;
  for (const Engine engine : {Engine::kCe, Engine::kSm}) {
    ProgramBuilder builder("long");
    builder.cursor(1);
    builder.local("words");
    builder.local("from");
    builder.remote("to");
    CopyLayout list;
    for (uint64_t i = 0; i < kPieces; ++i)
      list.segments.push_back({2, 1, i * kStep, (kPieces - 1 - i) * kStep, kPiece});
    builder.wait({.target = 0}, {.cursor = 0, .delta = 1})
        .copyList(list)
        .store({.target = 0, .offset = 8}, {.cursor = 0, .delta = 1}, Order::kRelease);
    auto program =
        MUST(prepare(builder.build(), {at(pinned()), at(pinned(4096), kRoom), at(device(), kRoom)},
                     {.engine = engine}));
    word(0) = word(1) = 0;
    for (uint64_t round = 0; round < 5; ++round) {
      for (uint64_t i = 0; i < kRoom; ++i)
        pinned(4096)[i] = static_cast<std::byte>(i * 7 + i / 256 + round);
      CUDA_OK(cudaMemset(device(), 0xEE, kRoom));
      CUDA_OK(cudaDeviceSynchronize());
      const DevicePost made = post(*program, {&round, 1});
      word(0) = round + 1;
      finish(made);
      EXPECT_EQ(word(1), round + 1);
      const auto found = bytesAt(device(), kRoom);
      for (uint64_t i = 0; i < kRoom; ++i) {
        const uint64_t from = (kPieces - 1 - i / kStep) * kStep + i % kStep;
        ASSERT_EQ(found[i], i % kStep < kPiece ? pinned(4096)[from] : std::byte{0xEE}) << i;
      }
    }
  }
}

// A counter is added to, not stored: another stream adds meanwhile.
TEST_F(OrderedProgramTest, TwoStreamsAddToOneCounter) {
  constexpr uint64_t kAdds = 50;
  ProgramBuilder builder("adds");
  builder.cursor(1);
  builder.local("counter");
  for (uint64_t i = 0; i < kAdds; ++i)
    builder.add64({.target = 0}, {.cursor = i % 2 == 0 ? CursorId{0} : kNoCursor, .delta = 3},
                  Order::kRelease);
  builder.fence();
  const Program adds = builder.build();
  std::unique_ptr<DeviceProgram> programs[2] = {MUST(prepare(adds, {at(device())})),
                                                MUST(prepare(adds, {at(device())}))};
  const uint64_t cursors[] = {1000, 500'000};
  for (size_t i = 0; i < 2; ++i) (void)post(*programs[i], {&cursors[i], 1}, i);
  CUDA_OK(cudaDeviceSynchronize());
  uint64_t found = 0;
  CUDA_OK(cudaMemcpy(&found, device(), 8, cudaMemcpyDefault));
  EXPECT_EQ(found, 2 * kAdds * 3 + kAdds / 2 * (1000 + 500'000));
}

// The stream goes on with what stands behind the wait; its end shows that it is drained.
TEST_F(OrderedProgramTest, PoisonReleasesAWaitingStream) {
  ProgramBuilder builder("released");
  builder.cursor(1);
  builder.local("words");
  builder.remote("to");
  builder.wait({.target = 0}, {.cursor = 0, .delta = 1})
      .wait({.target = 0, .offset = 8}, {.cursor = 0, .delta = 1})
      .copy({.target = 1}, {.target = 0, .offset = 64}, 8)
      .store({.target = 0, .offset = 16}, {.cursor = 0, .delta = 1}, Order::kRelease);
  auto program = MUST(prepare(builder.build(), {at(pinned()), at(device())}));
  const uint64_t cursor = 41;
  const DevicePost made = post(*program, {&cursor, 1});
  word(0) = 42;
  for (int i = 0; i < 20; ++i) std::this_thread::yield();
  EXPECT_FALSE(made.ended());
  EXPECT_EQ(word(2), 0u);
  word(1) = kPoison;
  finish(made);
  EXPECT_EQ(word(2), 42u);
}

// Other waits are released by a value that satisfies them.
TEST_F(OrderedProgramTest, AStoreReleasesEveryComparison) {
  struct Row {
    Compare compare;
    Width width;
    uint64_t operand, before, after;
  };
  for (const Row& row :
       {Row{Compare::kGreaterEqual, Width::k64, 5, 4, kPoison},
        Row{Compare::kGreaterEqual, Width::k32, 5, 4, 5},
        Row{Compare::kGreaterEqual, Width::k32, 0xffffffff, 0xfffffffe, 2},
        Row{Compare::kEqual, Width::k64, 5, kPoison, 5}, Row{Compare::kEqual, Width::k32, 5, 4, 5},
        Row{Compare::kAnd, Width::k64, 6, 9, 4},
        Row{Compare::kAnd, Width::k32, 0x80000000, 0x7fffffff, 0x80000000},
        Row{Compare::kNor, Width::k64, 1, ~0ull, ~2ull},
        Row{Compare::kNor, Width::k32, 1, 0xfffffffe, 0xfffffffc}}) {
    if (row.compare == Compare::kNor && !abilities_.hasNor) continue;
    ProgramBuilder builder("wait");
    builder.local("words");
    builder
        .wait({.target = 0}, {.delta = static_cast<int64_t>(row.operand)}, row.compare, row.width)
        .store({.target = 0, .offset = 8}, {.delta = 1}, Order::kRelease);
    auto program = MUST(prepare(builder.build(), {at(pinned())}));
    word(0) = row.before;
    word(1) = 0;
    const DevicePost made = post(*program);
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    EXPECT_FALSE(made.ended()) << static_cast<int>(row.compare);
    EXPECT_EQ(word(1), 0u);
    word(0) = row.after;
    finish(made);
    EXPECT_EQ(word(1), 1u);
  }
}

// Constants become nodes of memory operations, copies and kernels; every replay does them again.
TEST_F(OrderedProgramTest, ConstantsBecomePartOfAGraph) {
  ProgramBuilder builder("captured");
  builder.local("words");
  builder.remote("far");
  builder.wait({.target = 0}, {.delta = 1}, Compare::kEqual)
      .copy({.target = 1, .offset = 64}, {.target = 0, .offset = 64}, 64)
      .add64({.target = 1}, {.delta = 1}, Order::kRelease)
      .store({.target = 0}, {.delta = 2}, Order::kRelease)
      .store({.target = 0, .offset = 8}, {.delta = 3}, Order::kRelease, Width::k32);
  auto program =
      MUST(prepare(builder.build(), {at(pinned()), at(device())}, {.engine = Engine::kCe}));
  CUDA_OK(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
  auto work = executor_->capture(*program, stream(), {}, nullptr, nullptr);
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(streams_[0], &graph));
  ASSERT_OK(work.status());
  cudaGraphNode_t nodes[16] = {};
  size_t count = std::size(nodes);
  CUDA_OK(cudaGraphGetNodes(graph, nodes, &count));
  constexpr int kMemoryOperations = 12;  // CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
  std::vector<int> types;
  for (size_t i = 0; i < count; ++i) {
    cudaGraphNodeType type{};
    // The runtime has no name for the driver's memory operations.
    const cudaError_t named = cudaGraphNodeGetType(nodes[i], &type);
    if (named != cudaErrorUnknown) {
      CUDA_OK(named);
    }
    types.push_back(named == cudaErrorUnknown ? kMemoryOperations : static_cast<int>(type));
    (void)cudaGetLastError();
  }
  EXPECT_EQ(types, (std::vector<int>{kMemoryOperations, cudaGraphNodeTypeMemcpy,
                                     cudaGraphNodeTypeKernel, kMemoryOperations}));
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (uint64_t replay = 1; replay <= 3; ++replay) {
    std::memset(pinned(64), static_cast<int>(replay), 64);
    CUDA_OK(cudaGraphLaunch(executable, streams_[0]));
    word(0) = 1;
    CUDA_OK(cudaStreamSynchronize(streams_[0]));
    EXPECT_EQ(word(0), 2u);
    EXPECT_EQ(word(1), 3u);
    const auto found = bytesAt(device(), 128);
    uint64_t counted = 0;
    std::memcpy(&counted, found.data(), 8);
    EXPECT_EQ(counted, replay);
    EXPECT_EQ(found[127], static_cast<std::byte>(replay));
  }
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
  executor_->waitEnded();
}

TEST_F(OrderedProgramTest, CursorsDoNotBecomePartOfAGraph) {
  ProgramBuilder builder("cursor");
  builder.cursor(1);
  builder.local("word");
  builder.store({.target = 0}, {.cursor = 0}, Order::kRelease);
  auto program = MUST(prepare(builder.build(), {at(pinned())}));
  CUDA_OK(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
  const Status status = executor_->capture(*program, stream(), {}, nullptr, nullptr).status();
  const uint64_t cursor = 1;
  const Status live = executor_->post(*program, stream(), {}, {&cursor, 1}).status();
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(streams_[0], &graph));
  EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
  EXPECT_EQ(live.code(), Code::kNotSupported) << live.toString();
  size_t count = 16;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &count));
  EXPECT_EQ(count, 0u);
  CUDA_OK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace peerlane::gputest
