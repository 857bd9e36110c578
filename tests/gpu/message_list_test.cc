// SPDX-License-Identifier: Apache-2.0
//
// Messages in many pieces on streams: shapes, several regions, beside other messages, both ways at
// once, shapes that differ, graphs, memory that is new or goes, ends.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "tests/gpu/talker.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

// Where the pieces of a list lie in one region of each side; both sides make the same.
struct Layout {
  struct Piece {
    size_t from, to, bytes;
  };
  std::vector<Piece> pieces;

  // One behind the other, with gaps that leave no two of them alike on 16 bytes; the last comes
  // first where they go.
  static Layout of(const std::vector<size_t>& sizes, uint32_t seed = 1) {
    std::minstd_rand random(seed);
    Layout layout;
    size_t from = random() % 16, to = random() % 16;
    for (const size_t bytes : sizes) {
      layout.pieces.push_back({from, 0, bytes});
      from += bytes + random() % 20;
    }
    for (auto piece = layout.pieces.rbegin(); piece != layout.pieces.rend(); ++piece) {
      piece->to = to;
      to += piece->bytes + 1 + random() % 20;
    }
    return layout;
  }
  static Layout random(size_t count, size_t most, uint32_t seed) {
    std::minstd_rand random(seed);
    std::vector<size_t> sizes(count);
    for (size_t& bytes : sizes) bytes = 1 + random() % most;
    return of(sizes, seed);
  }
  size_t end() const {
    size_t most = 0;
    for (const Piece& piece : pieces)
      most = std::max({most, piece.from + piece.bytes, piece.to + piece.bytes});
    return most;
  }
  std::vector<MessageBlock> sent(const Region& region) const {
    std::vector<MessageBlock> blocks;
    for (const Piece& piece : pieces) blocks.push_back({&region, piece.from, piece.bytes});
    return blocks;
  }
  std::vector<MessageBlock> received(const Region& region) const {
    std::vector<MessageBlock> blocks;
    for (const Piece& piece : pieces) blocks.push_back({&region, piece.to, piece.bytes});
    return blocks;
  }
  // What is received into memory of `value`s, when fill(seed) was sent.
  std::vector<unsigned char> image(size_t bytes, int value, uint32_t seed) const {
    std::vector<unsigned char> whole(bytes, static_cast<unsigned char>(value)), source(bytes);
    fill(source.data(), bytes, seed);
    for (const Piece& piece : pieces)
      std::memcpy(whole.data() + piece.to, source.data() + piece.from, piece.bytes);
    return whole;
  }
};

std::vector<unsigned char> bytesOf(const Region& region, size_t bytes) {
  std::vector<unsigned char> seen(bytes);
  mustCuda(cudaMemcpy(seen.data(), region.data(), bytes, cudaMemcpyDefault), "copy");
  return seen;
}

constexpr int kBefore = 9;  // what a region holds that is received into

// Rank 0 sends it to rank 1, which looks at all of the region, the gaps too.
void passOn(Talker& side, int index, const Line& line, const Layout& layout, uint32_t seed) {
  const size_t bytes = layout.end() + 64;
  ASSERT_LE(bytes, side.in.bytes());
  if (index == 0) {
    fill(side.out.data(), bytes, seed);
    must(must(side.ranks->sendList(1, layout.sent(side.out), side.on()), "send").wait(kPatience),
         "wait for a send");
  } else {
    clear(side.in.data(), bytes, kBefore);
    must(must(side.ranks->recvList(0, layout.received(side.in), side.on()), "recv").wait(kPatience),
         "wait for a receive");
    EXPECT_TRUE(bytesOf(side.in, bytes) == layout.image(bytes, kBefore, seed))
        << layout.pieces.size() << " pieces";
  }
  line.meet();
}

TEST(StreamLists, NumbersOfPieces) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    uint32_t seed = 1;
    for (const size_t count : {1, 2, 31, 33, 128, 511, 512, 513, 3000, 4096})
      for (const size_t most : {1, 700}) {
        ++seed;
        passOn(side, index, line, Layout::random(count, most, seed), seed);
      }
  }));
}

// From one thread block's worth to what all of them share; small pieces beside large ones.
TEST(StreamLists, SizesOfPieces) {
  PEERLANE_NEEDS_GPUS(1);
  constexpr size_t kRoom = size_t{16} << 20;
  EXPECT_TRUE(runBoth(
      [](Talker& side, int index, const Line& line) {
        uint32_t seed = 50;
        const size_t kMiB = size_t{1} << 20;
        for (const std::vector<size_t>& sizes : {std::vector<size_t>{1025},
                                                 {131072},
                                                 {131073},
                                                 {6 * kMiB + 3},
                                                 {1, 5 * kMiB + 77, 3},
                                                 {kMiB, kMiB, kMiB, 1, kMiB + 1},
                                                 std::vector<size_t>(128, 65536),
                                                 std::vector<size_t>(7, 2047),
                                                 std::vector<size_t>(200, 4095)}) {
          ++seed;
          passOn(side, index, line, Layout::of(sizes, seed), seed);
        }
      },
      60, Memory::kVmm, kRoom));
}

// Pieces of several regions and of other memory than the GPU's, at both sides, in any order.
TEST(StreamLists, SeveralRegions) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    constexpr size_t kRegions = 6, kEach = 100000, kPieces = 300;
    const Memory kinds[] = {Memory::kVmm, Memory::kMalloc, Memory::kShared};
    std::vector<Region> regions;
    for (size_t i = 0; i < kRegions; ++i)
      regions.push_back(makeRegion(*side.context, side.device, kinds[i % 3], kEach));
    for (uint32_t round = 0; round < 6; ++round) {
      std::vector<MessageBlock> blocks;
      for (size_t i = 0; i < kPieces; ++i) {
        // Both sides come by all regions, in orders of their own.
        const size_t region = index == 0 ? i % kRegions : (i * 5 + 1) % kRegions;
        blocks.push_back({&regions[region], i / kRegions * 500 + 4 * (i % 3), 400});
      }
      for (size_t i = 0; i < kRegions; ++i)
        if (index == 0)
          fill(regions[i].data(), kEach, 10 * round + static_cast<uint32_t>(i));
        else
          fill(regions[i].data(), kEach, 1000);
      const auto posted = index == 0 ? side.ranks->sendList(1, blocks, side.on())
                                     : side.ranks->recvList(0, blocks, side.on());
      must(must(posted, "post").wait(kPatience), "wait");
      for (size_t i = 0; index == 1 && i < kPieces; ++i)
        EXPECT_EQ(wrongWords(blocks[i].region->data() + blocks[i].offset, 400,
                             10 * round + static_cast<uint32_t>(i % kRegions), blocks[i].offset),
                  0u)
            << "piece " << i;
      line.meet();
    }
  }));
}

// As many regions as a list may name, all of them new.
TEST(StreamLists, ManyFreshRegions) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    constexpr size_t kRegions = 150, kEach = 4096;
    std::byte* const memory = mapMemfd(kRegions * kEach);
    std::vector<Region> regions;
    std::vector<MessageBlock> blocks;
    for (size_t i = 0; i < kRegions; ++i)
      regions.push_back(
          must(side.context->registerRegion(memory + i * kEach, kEach, Access::kRemoteReadWrite),
               "register"));
    for (const Region& region : regions) blocks.push_back({&region, 8, 1200});
    if (index == 0) fill(memory, kRegions * kEach, 3);
    const auto posted = index == 0 ? side.ranks->sendList(1, blocks, side.on())
                                   : side.ranks->recvList(0, blocks, side.on());
    must(must(posted, "post").wait(kPatience), "wait");
    for (size_t i = 0; index == 1 && i < kRegions; ++i)
      EXPECT_EQ(wrongWords(memory + i * kEach + 8, 1200, 3, i * kEach + 8), 0u) << i;
    line.meet();
  }));
}

// On one stream and on several, with other messages between in orders that differ from side to
// side where streams do: lists meet lists.
TEST(StreamLists, BesideOtherMessages) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    constexpr size_t kRounds = 40, kShort = 512, kLong = 5000;  // whole words
    const cudaStream_t other = makeStream();
    const Layout layout = Layout::random(40, 1000, 5);
    const size_t listed = layout.end() / 4 * 4 + 64, each = listed + kShort + kLong;
    for (const bool several : {false, true}) {
      const auto lists = side.on(), singles = side.on(several ? other : nullptr);
      if (index == 0) fill(side.out.data(), kRounds * each, 8);
      if (index == 1) clear(side.in.data(), kRounds * each, kBefore);
      line.meet();
      for (size_t round = 0; round < kRounds; ++round) {
        const size_t at = round * each;
        std::vector<MessageBlock> blocks =
            index == 0 ? layout.sent(side.out) : layout.received(side.in);
        for (MessageBlock& block : blocks) block.offset += at;
        const auto list = [&] {
          must(index == 0 ? side.ranks->sendList(1, blocks, lists)
                          : side.ranks->recvList(0, blocks, lists),
               "list");
        };
        if (!several || index == 0) list();
        for (const auto& [behind, bytes] : {std::pair{listed, kShort}, {listed + kShort, kLong}})
          must(index == 0 ? side.ranks->send(1, side.out, at + behind, bytes, singles)
                          : side.ranks->recv(0, side.in, at + behind, bytes, singles),
               "message");
        if (several && index == 1) list();
      }
      mustSync(side.stream);
      mustSync(other);
      for (size_t round = 0; index == 1 && round < kRounds; ++round) {
        const size_t at = round * each;
        EXPECT_EQ(wrongWords(side.in.data() + at + listed, kShort + kLong, 8, at + listed), 0u);
        std::vector<unsigned char> seen(listed);
        std::vector<unsigned char> whole(kRounds * each);
        fill(whole.data(), whole.size(), 8);
        mustCuda(cudaMemcpy(seen.data(), side.in.data() + at, listed, cudaMemcpyDefault), "copy");
        for (const Layout::Piece& piece : layout.pieces)
          EXPECT_EQ(
              std::memcmp(seen.data() + piece.to, whole.data() + at + piece.from, piece.bytes), 0)
              << "round " << round;
      }
      line.meet();
    }
  }));
}

// Each side sends on one stream and receives on another, many at once and more than there are
// slots, all posted before anything is waited for. What was sent may be overwritten behind it.
TEST(StreamLists, BothWaysAtOnce) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    constexpr int kRounds = 30;
    const cudaStream_t back = makeStream();
    const Layout layout = Layout::random(60, 3000, 11);
    const size_t bytes = layout.end() + 64;
    std::vector<unsigned char> seen(kRounds * bytes);
    std::vector<Transfer> posted;
    clear(side.in.data(), bytes, 0);
    line.meet();
    for (int round = 0; round < kRounds; ++round) {
      const int mine = 2 * round + index + 1;
      mustCuda(cudaMemsetAsync(side.out.data(), mine, bytes, side.stream), "memset");
      posted.push_back(
          must(side.ranks->sendList(side.other, layout.sent(side.out), side.on()), "send"));
      posted.push_back(
          must(side.ranks->recvList(side.other, layout.received(side.in), side.on(back)), "recv"));
      mustCuda(cudaMemcpyAsync(seen.data() + static_cast<size_t>(round) * bytes, side.in.data(),
                               bytes, cudaMemcpyDeviceToHost, back),
               "copy");
    }
    for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
    mustSync(back);
    for (int round = 0; round < kRounds; ++round)
      for (const Layout::Piece& piece : layout.pieces) {
        const auto begin =
            seen.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(round) * bytes + piece.to);
        const int theirs = 2 * round + 1 - index + 1;
        EXPECT_TRUE(std::all_of(begin, begin + static_cast<ptrdiff_t>(piece.bytes),
                                [&](int byte) { return byte == theirs; }))
            << "round " << round;
      }
    line.meet();
  }));
}

// In groups on one stream, both ways, more lists than slots, in orders that differ, beside other
// messages.
TEST(StreamLists, InGroups) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    constexpr size_t kLists = 10, kShort = 500, kLong = 60000;
    const Layout layout = Layout::random(50, 400, 31);
    const size_t listed = layout.end() + 64, each = listed + kShort + kLong;
    for (int round = 0; round < 6; ++round) {
      const auto seed = static_cast<uint32_t>(100 * round);
      fill(side.out.data(), kLists * each, seed + static_cast<uint32_t>(index));
      clear(side.in.data(), kLists * each, kBefore);
      line.meet();
      auto group = side.ranks->group();
      const auto add = [&](bool sends) {
        for (size_t i = 0; i < kLists; ++i) {
          std::vector<MessageBlock> blocks =
              sends ? layout.sent(side.out) : layout.received(side.in);
          for (MessageBlock& block : blocks) block.offset += i * each;
          sends ? group.sendList(side.other, blocks) : group.recvList(side.other, blocks);
          for (const auto& [at, bytes] :
               {std::pair{i * each + listed, kShort}, {i * each + listed + kShort, kLong}})
            sends ? group.send(side.other, side.out, at, bytes)
                  : group.recv(side.other, side.in, at, bytes);
        }
      };
      add(index == 0);
      add(index != 0);
      must(must(group.post(side.on()), "group").wait(kPatience), "wait");
      std::vector<unsigned char> source(kLists * each);
      fill(source.data(), source.size(), seed + side.other);
      const auto seen = bytesOf(side.in, kLists * each);
      for (size_t i = 0; i < kLists; ++i) {
        const size_t at = i * each;
        for (const Layout::Piece& piece : layout.pieces)
          EXPECT_EQ(std::memcmp(&seen[at + piece.to], &source[at + piece.from], piece.bytes), 0)
              << "round " << round << ", list " << i;
        EXPECT_EQ(std::memcmp(&seen[at + listed], &source[at + listed], kShort + kLong), 0)
            << "round " << round << ", message " << i;
      }
      line.meet();
    }
    // A list that cannot be leaves the group unposted.
    auto group = side.ranks->group();
    group.send(side.other, side.out, 0, 8).sendList(side.other, {});
    EXPECT_EQ(group.post(side.on()).status().code(), Code::kInvalidArgument);
    line.meet();
  }));
}

// One side is far ahead: so many long lists that the GPU's memory for them is full.
TEST(StreamLists, ManyWaitForTheOtherSide) {
  PEERLANE_NEEDS_GPUS(1);
  for (const int ahead : {0, 1})
    EXPECT_TRUE(runBoth([ahead](Talker& side, int index, const Line& line) {
      constexpr size_t kLists = 40;
      const Layout layout = Layout::random(4096, 30, 21);
      const size_t bytes = layout.end() + 64;
      if (index == 0)
        fill(side.out.data(), bytes, 4);
      else
        clear(side.in.data(), bytes, kBefore);
      if (index != ahead) (void)line.receive();
      for (size_t i = 0; i < kLists; ++i)
        must(index == 0 ? side.ranks->sendList(1, layout.sent(side.out), side.on())
                        : side.ranks->recvList(0, layout.received(side.in), side.on()),
             "post");
      if (index == ahead) line.send("posted");
      mustSync(side.stream);
      if (index == 1) {
        EXPECT_TRUE(bytesOf(side.in, bytes) == layout.image(bytes, kBefore, 4));
      }
      line.meet();
    }));
}

// --- Sides that differ ---

TEST(StreamLists, ShapesThatDifferAreTold) {
  PEERLANE_NEEDS_GPUS(1);
  using Sizes = std::vector<size_t>;
  static const std::pair<Sizes, Sizes> kCases[] = {
      {{100, 200, 300}, {100, 200}},        // fewer
      {{100, 200}, {100, 200, 300}},        // more
      {{100, 200, 300}, {100, 300, 200}},   // another order
      {{400000}, {400001}},                 // another size
      {{400000}, {200000, 200000}},         // the same sum
      {Sizes(4096, 100), Sizes(600, 100)},  // long lists
      {Sizes(513, 1000), Sizes(512, 1000)}};
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    clear(side.in.data(), kBytes, kBefore);
    for (int round = 0; round < 2; ++round)  // the slots come round
      for (const auto& [sent, received] : kCases) {
        const auto posted =
            index == 0 ? side.ranks->sendList(1, Layout::of(sent).sent(side.out), side.on())
                       : side.ranks->recvList(0, Layout::of(received).received(side.in), side.on());
        const Status status = must(posted, "post").wait(kPatience);
        EXPECT_EQ(status.code(), Code::kSizeMismatch) << status.toString();
      }
    if (index == 1) {
      const auto seen = bytesOf(side.in, kBytes);
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int byte) { return byte == kBefore; }));
    }
    line.meet();
    // The next ones are not disturbed, neither lists nor others.
    for (uint32_t i = 0; i < 9; ++i)
      passOn(side, index, line, Layout::random(100 + i, 900, i + 1), i);
    const auto posted = index == 0 ? side.ranks->send(1, side.out, 0, 50000, side.on())
                                   : side.ranks->recv(0, side.in, 0, 50000, side.on());
    must(must(posted, "post").wait(kPatience), "wait");
    line.meet();
  }));
}

TEST(StreamLists, WhatCannotBeIsRefused) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    const auto expect = [&](bool sends, const std::vector<MessageBlock>& blocks, Code code,
                            const std::string& name, std::optional<Protocol> protocol = {}) {
      MessageOptions options = side.on();
      options.protocol = protocol;
      const Status status = sends ? side.ranks->sendList(side.other, blocks, options).status()
                                  : side.ranks->recvList(side.other, blocks, options).status();
      EXPECT_EQ(status.code(), code) << status.toString();
      EXPECT_NE(status.toString().find(name), std::string::npos) << status.toString();
    };
    const Region readable =
        must(side.context->allocate(kBytes, {.device = side.device, .access = Access::kRemoteRead}),
             "allocate");
    const Region empty;
    for (const bool sends : {true, false}) {
      expect(sends, {}, Code::kInvalidArgument, "without pieces");
      expect(sends, {{&side.in, 0, 8}, {&side.in, 8, 0}}, Code::kInvalidArgument, "piece 1");
      expect(sends, {{&side.in, 0, 8}, {&side.in, kBytes, 1}}, Code::kInvalidArgument, "piece 1");
      expect(sends, {{&empty, 0, 8}}, Code::kInvalidArgument, "empty Region");
      expect(sends, {{nullptr, 0, 8}}, Code::kInvalidArgument, "empty Region");
      std::vector<MessageBlock> many;
      for (size_t i = 0; i < 4097; ++i) many.push_back({&side.in, 2 * i, 1});
      expect(sends, many, Code::kInvalidArgument, "4096");
      for (const Protocol protocol : {Protocol::kGet, Protocol::kRing, Protocol::kEager})
        expect(sends, {{&side.in, 0, 8}}, Code::kNotSupported, "auto or put", protocol);
    }
    expect(false, {{&side.in, 100, 50}, {&side.in, 300, 50}, {&side.in, 149, 10}},
           Code::kInvalidArgument, "overlap");
    expect(false, {{&side.in, 0, 8}, {&readable, 0, 8}}, Code::kPermissionDenied, "remote write");
    // Sent from, any region does, and pieces may be sent twice; none of the above cost a number.
    line.meet();
    const auto posted =
        index == 0
            ? side.ranks->sendList(
                  1, std::vector<MessageBlock>{{&readable, 0, 80}, {&readable, 40, 80}}, side.on())
            : side.ranks->recvList(
                  0, std::vector<MessageBlock>{{&side.in, 200, 80}, {&side.in, 0, 80}}, side.on());
    must(must(posted, "post").wait(kPatience), "wait");
    line.meet();
  }));
}

// Without a stream of a GPU it is a message for each piece.
TEST(StreamLists, WithoutAStreamOfAGpu) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth(
      [](Talker& side, int index, const Line& line) {
        const Layout layout = Layout::random(20, 9000, 2);
        const size_t bytes = layout.end() + 64;
        std::vector<MessageBlock> blocks;
        if (index == 0) {
          fill(side.out.data(), bytes, 6);
          must(must(side.ranks->sendList(1, layout.sent(side.out)), "send").wait(kPatience),
               "wait");
        } else {
          std::memset(side.in.data(), kBefore, bytes);
          must(must(side.ranks->recvList(0, layout.received(side.in)), "recv").wait(kPatience),
               "wait");
          EXPECT_TRUE(bytesOf(side.in, bytes) == layout.image(bytes, kBefore, 6));
        }
        EXPECT_EQ(side.ranks->sendList(side.other, std::vector<MessageBlock>{{&side.in, 0, 0}})
                      .status()
                      .code(),
                  Code::kInvalidArgument);
        // In groups, too.
        auto group = side.ranks->group();
        group.recvList(side.other, layout.received(side.in))
            .sendList(side.other, layout.sent(side.out));
        must(must(group.post(), "group").wait(kPatience), "wait");
        // But not memory of a GPU, which no CPU can copy.
        const Region ofGpu = makeRegion(*side.context, side.device, Memory::kVmm, 4096);
        EXPECT_EQ(side.ranks->send(side.other, ofGpu, 0, 8).status().code(),
                  Code::kInvalidArgument);
        EXPECT_EQ(side.ranks->sendList(side.other, std::vector<MessageBlock>{{&ofGpu, 0, 8}})
                      .status()
                      .code(),
                  Code::kInvalidArgument);
        line.meet();
      },
      60, Memory::kShared));
}

// --- Graphs ---

// A graph for each direction, on streams of their own, with lists short and long.
TEST(StreamLists, InAGraph) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_TWO_QUEUES();
  constexpr int kReplays = 100;
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    const Layout small = Layout::random(20, 100, 3), large = Layout::random(600, 2000, 4);
    const size_t bytes = large.end() + 64;
    const cudaStream_t back = makeStream();
    // Unknown memory cannot be waited for by a graph.
    mustCuda(cudaStreamBeginCapture(back, cudaStreamCaptureModeThreadLocal), "begin");
    EXPECT_EQ(
        side.ranks->recvList(side.other, small.received(side.in), side.on(back)).status().code(),
        Code::kNotPrepared);
    cudaGraph_t graph = nullptr;
    mustCuda(cudaStreamEndCapture(back, &graph), "end");
    mustCuda(cudaGraphDestroy(graph), "destroy");

    must(side.ranks->prepare(side.other, {&side.in, 1}), "prepare");
    Transfer sent, received;
    const auto capture = [&](cudaStream_t stream, const std::function<void()>& post) {
      mustCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
      for (int i = 0; i < 3; ++i) post();
      mustCuda(cudaStreamEndCapture(stream, &graph), "end");
      cudaGraphExec_t executable = nullptr;
      mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      mustCuda(cudaGraphDestroy(graph), "destroy");
      return executable;
    };
    const cudaGraphExec_t sends = capture(side.stream, [&] {
      must(side.ranks->sendList(side.other, small.sent(side.out), side.on()), "send");
      sent = must(side.ranks->sendList(side.other, large.sent(side.out), side.on()), "send");
    });
    const cudaGraphExec_t receives = capture(back, [&] {
      must(side.ranks->recvList(side.other, small.received(side.in), side.on(back)), "recv");
      received =
          must(side.ranks->recvList(side.other, large.received(side.in), side.on(back)), "recv");
    });
    EXPECT_EQ(received.wait(kPatience).code(), Code::kNotSupported);
    std::vector<unsigned char> seen(bytes);
    for (int i = 0; i < kReplays; ++i) {
      const int mine = (i * 2 + index) % 251, theirs = (i * 2 + 1 - index) % 251;
      mustCuda(cudaMemsetAsync(side.out.data(), mine, bytes, side.stream), "memset");
      mustCuda(cudaGraphLaunch(sends, side.stream), "launch");
      mustCuda(cudaGraphLaunch(receives, back), "launch");
      if (i % 20 != 19) continue;
      mustCuda(cudaMemcpyAsync(seen.data(), side.in.data(), bytes, cudaMemcpyDeviceToHost, back),
               "copy");
      mustSync(back);
      for (const Layout::Piece& piece : large.pieces) {
        const auto begin = seen.begin() + static_cast<ptrdiff_t>(piece.to);
        ASSERT_TRUE(std::all_of(begin, begin + static_cast<ptrdiff_t>(piece.bytes),
                                [&](int byte) { return byte == theirs; }))
            << "replay " << i;
      }
    }
    mustSync(side.stream);
    mustSync(back);
    EXPECT_EQ(side.ranks->sendList(side.other, small.sent(side.out), side.on()).status().code(),
              Code::kInvalidArgument);
    line.meet();
    for (const cudaGraphExec_t executable : {sends, receives})
      mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (const Transfer& each : {sent, received}) {
      while (each.status().code() == Code::kTryAgain && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_TRUE(each.status().isOk()) << each.status().toString();
    }
    line.meet();
  }));
}

// --- Memory that is new, or goes ---

// The sender has never heard of the regions: they are imported meanwhile.
TEST(StreamLists, FreshRegionsAreFound) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runBoth([](Talker& side, int index, const Line& line) {
    for (uint32_t i = 0; i < 8; ++i) {
      const Region fresh[] = {
          must(side.context->allocate(kBytes, {.device = side.device}), "allocate"),
          must(side.context->allocate(kBytes, {.device = side.device}), "allocate")};
      const std::vector<MessageBlock> blocks{
          {&fresh[0], 4096, 100000}, {&fresh[1], 64, 20000}, {&fresh[0], 0, 256}};
      if (index == 0) {
        for (const Region& region : fresh) fill(region.data(), kBytes, i);
        must(must(side.ranks->sendList(1, blocks, side.on()), "send").wait(kPatience), "wait");
      } else {
        must(must(side.ranks->recvList(0, blocks, side.on()), "recv").wait(kPatience), "wait");
        for (const MessageBlock& block : blocks)
          EXPECT_EQ(wrongWords(block.region->data() + block.offset, block.bytes, i, block.offset),
                    0u);
      }
      line.meet();
      for (const Region& region : fresh)
        must(side.context->unregister(region, kPatience), "unregister");
    }
  }));
}

// One of the regions of a receive is unregistered before the other side has posted its part, or
// while it does: then the list may still be met, else both sides hear that it will not be.
TEST(StreamLists, MemoryThatGoesBeforeItIsMet) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool isLate : {true, false})
    EXPECT_TRUE(runBoth([isLate](Talker& side, int index, const Line& line) {
      const auto isExpected = [isLate](const Status& status) {
        return status.code() == Code::kClosed || (!isLate && status.isOk());
      };
      passOn(side, index, line, Layout::random(3, 100, 1), 1);
      if (index == 1) {
        const Region fresh =
            must(side.context->allocate(kBytes, {.device = side.device}), "allocate");
        must(side.ranks->prepare(0, {&fresh, 1}), "prepare");
        const std::vector<MessageBlock> blocks{{&side.in, 0, 1000}, {&fresh, 0, 50000}};
        const auto waiting = side.ranks->recvList(0, blocks, side.on());
        if (!isLate) line.send("now");
        const Status gone = side.context->unregister(fresh, kPatience);
        EXPECT_TRUE(gone.isOk()) << gone.toString();
        const Status status = must(waiting, "post").wait(kPatience);
        EXPECT_TRUE(isExpected(status)) << status.toString();
        mustSync(side.stream);
        if (isLate) line.send("now");
      } else {
        (void)line.receive();
        const std::vector<MessageBlock> blocks{{&side.out, 0, 1000}, {&side.out, 2000, 50000}};
        const auto posted = side.ranks->sendList(1, blocks, side.on());
        const Status status = posted.isOk() ? posted->wait(kPatience) : posted.status();
        EXPECT_TRUE(isExpected(status)) << status.toString();
        mustSync(side.stream);
      }
      line.meet();
    })) << (isLate ? "late" : "at the same time");
}

// --- Ends ---

// Nobody meets it: both kinds of end, told to both sides, and the streams go on.
TEST(StreamLists, TimeoutAndCancel) {
  PEERLANE_NEEDS_GPUS(1);
  for (const bool cancels : {true, false})
    for (const bool sends : {true, false})
      EXPECT_TRUE(runBoth([=](Talker& side, int index, const Line& line) {
        const Code code = cancels ? Code::kCancelled : Code::kTimeout;
        passOn(side, index, line, Layout::random(5, 5000, 1), 1);
        if (index == 0) {
          MessageOptions options = side.on();
          if (!cancels) options.timeout = 50ms;
          const Layout layout = Layout::random(200, 3000, 2);
          const auto posted = sends ? side.ranks->sendList(1, layout.sent(side.out), options)
                                    : side.ranks->recvList(1, layout.received(side.in), options);
          Transfer transfer = must(posted, "post");
          if (cancels) transfer.cancel();
          EXPECT_EQ(transfer.wait(kPatience).code(), code) << transfer.status().toString();
          mustSync(side.stream);
        } else {
          Status status;
          const auto deadline = std::chrono::steady_clock::now() + kPatience;
          while (status.isOk() && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::yield();
            status = side.ranks->prepare(0, {});
          }
          EXPECT_EQ(status.code(), code) << status.toString();
          EXPECT_EQ(side.ranks->sendList(0, std::vector<MessageBlock>{{&side.out, 0, 8}}, side.on())
                        .status()
                        .code(),
                    code);
        }
        clear(side.in.data(), kBytes, 1);  // the device works
        line.meet();
      })) << (cancels ? "cancel " : "timeout ")
          << (sends ? "of a send" : "of a receive");
}

TEST(StreamLists, APeerThatDies) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runWithVictims(
      [](const Victims& victims) {
        const Victim victim = victims.next();
        const Talker side(0, victim.line());
        const cudaStream_t other = makeStream();
        const Layout layout = Layout::random(700, 2000, 2);
        auto received =
            must(side.ranks->recvList(1, layout.received(side.in), side.on(other)), "recv");
        auto sent = must(side.ranks->sendList(1, layout.sent(side.out), side.on()), "send");
        victim.kill();
        for (const Transfer& each : {received, sent})
          EXPECT_EQ(each.wait(kPatience).code(), Code::kPeerLost) << each.status().toString();
        mustSync(side.stream);
        mustSync(other);
        clear(side.in.data(), kBytes, 1);  // the device works
      },
      [](const Line& line) {
        const Talker side(1, line);
        for (;;) pause();
      }));
}

}  // namespace
}  // namespace peerlane::gputest
