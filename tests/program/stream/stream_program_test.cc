// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/stream_program.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <utility>

namespace peerlane::stream {
namespace {

constexpr uint64_t kBytes = 64;

// Two memories that adjoin, here and there.
struct Neighbours {
  alignas(16) std::array<std::byte, 2 * kBytes> here{};
  alignas(16) std::array<std::byte, 2 * kBytes> there{};

  Binding binding() {
    Binding binding;
    for (std::byte* const at :
         {here.data(), here.data() + kBytes, there.data(), there.data() + kBytes})
      binding.targets.push_back({.address = at, .bytes = kBytes});
    return binding;
  }
};

size_t piecesOf(const Program& program, Neighbours& memories) {
  const auto lowered = StreamProgram::lower(program, memories.binding(), {}, EngineChoice());
  EXPECT_TRUE(lowered.isOk()) << lowered.status().toString();
  return lowered.isOk() ? (*lowered)->pieces().size() : 0;
}

ProgramBuilder builder() {
  ProgramBuilder made("neighbours");
  for (const char* const name : {"here 0", "here 1"}) made.local(name);
  for (const char* const name : {"there 0", "there 1"}) made.remote(name);
  return made;
}

CopyLayout listOf(std::vector<Segment> segments) {
  CopyLayout list;
  list.segments = std::move(segments);
  return list;
}

TEST(StreamProgram, MergesNeighboursOfOneMemory) {
  Neighbours memories;
  EXPECT_EQ(piecesOf(builder().copyList(listOf({{2, 0, 0, 0, 16}, {2, 0, 16, 16, 48}})).build(),
                     memories),
            1u);
  EXPECT_EQ(piecesOf(builder()
                         .copy({.target = 2}, {.target = 0}, 16)
                         .copy({.target = 2, .offset = 16}, {.target = 0, .offset = 16}, 48)
                         .build(),
                     memories),
            1u);
}

// The driver refuses a copy from one allocation on into the next.
TEST(StreamProgram, LeavesMemoriesApartThatAdjoin) {
  Neighbours memories;
  for (const auto& [to, from] : {std::pair<TargetId, TargetId>{3, 1}, {2, 1}, {3, 0}}) {
    const uint64_t toOffset = to == 2 ? kBytes / 2 : 0, fromOffset = from == 0 ? kBytes / 2 : 0;
    const Segment first{2, 0, to == 2 ? 0 : kBytes / 2, from == 0 ? 0 : kBytes / 2, kBytes / 2};
    const Segment second{to, from, toOffset, fromOffset, kBytes / 2};
    EXPECT_EQ(piecesOf(builder().copyList(listOf({first, second})).build(), memories), 2u);
    EXPECT_EQ(piecesOf(builder()
                           .copy({.target = 2, .offset = first.toOffset},
                                 {.target = 0, .offset = first.fromOffset}, first.bytes)
                           .copy({.target = to, .offset = toOffset},
                                 {.target = from, .offset = fromOffset}, second.bytes)
                           .build(),
                       memories),
              2u);
  }
}

// The copy after a list is compared with the list's last segment.
TEST(StreamProgram, LeavesACopyAfterAListApart) {
  Neighbours memories;
  EXPECT_EQ(piecesOf(builder()
                         .copy({.target = 3, .offset = 32}, {.target = 1, .offset = 32}, 16)
                         .copyList(listOf({{2, 0, 48, 48, 16}}))
                         .copy({.target = 3}, {.target = 1}, 16)
                         .build(),
                     memories),
            3u);
}

// The copies of one program are made in any order; the general way keeps it.
TEST(StreamProgram, LeavesCopiesInOrderToOthers) {
  Neighbours memories;
  const auto refuses = [&](const Program& program) {
    return StreamProgram::lower(program, memories.binding(), {}, EngineChoice()).status().code() ==
           Code::kNotSupported;
  };
  const Place here{.target = 0}, there{.target = 2}, behind{.target = 2, .offset = 16};
  EXPECT_FALSE(refuses(builder().copy(there, here, 16).copy(behind, here, 16).build()));
  EXPECT_TRUE(refuses(builder().copy(there, here, 16).copy(behind, there, 16).build())) << "reads";
  EXPECT_TRUE(refuses(builder().copy(there, here, 16).copy(here, behind, 16).build())) << "writes";
  EXPECT_TRUE(refuses(builder().copy(there, here, 17).copy(behind, here, 16).build())) << "twice";
  EXPECT_TRUE(refuses(builder().copy(there, here, 16).fence().copy(behind, here, 16).build()));
}

}  // namespace
}  // namespace peerlane::stream
