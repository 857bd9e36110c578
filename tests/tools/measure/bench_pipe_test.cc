// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tools/bench/sides/bench_memory.h"

namespace peerlane::bench {
namespace {

struct Ends {
  Ends() {
    auto pair = BenchPipe::makePair();
    EXPECT_TRUE(pair.isOk());
    here.emplace(std::move(pair->first));
    there.emplace(std::move(pair->second));
  }
  std::optional<BenchPipe> here;
  std::optional<BenchPipe> there;
};

TEST(BenchPipe, CarriesValuesAndTheirKind) {
  Ends ends;
  ASSERT_TRUE(ends.here->send(7, uint64_t{0x1234}).isOk());
  const auto message = ends.there->receive();
  ASSERT_TRUE(message.isOk());
  EXPECT_EQ(message->kind, 7u);
  EXPECT_EQ(message->as<uint64_t>().value(), 0x1234u);
  EXPECT_EQ(message->as<uint32_t>().status().code(), Code::kInternal);
}

TEST(BenchPipe, CarriesMoreThanASocketHolds) {
  Ends ends;
  const std::vector<std::byte> large(8 << 20, std::byte{0x5a});
  std::thread sender([&] { EXPECT_TRUE(ends.here->send(1, large).isOk()); });
  const auto message = ends.there->receive();
  sender.join();
  ASSERT_TRUE(message.isOk());
  EXPECT_EQ(message->content, large);
}

TEST(BenchPipe, CarriesDescriptors) {
  Ends ends;
  auto file = makeSharedFile("bench-pipe-test", 4096);
  ASSERT_TRUE(file.isOk());
  const int number = file->get();
  ASSERT_TRUE(ends.here->send(1, uint32_t{0}, {&number, 1}).isOk());
  const auto message = ends.there->receive();
  ASSERT_TRUE(message.isOk());
  ASSERT_EQ(message->descriptors.size(), 1u);
  // Two mappings of the same file show the same bytes.
  auto first = RawMapping::create(number, 0, 4096);
  auto second = RawMapping::create(message->descriptors[0].get(), 64, 100);
  ASSERT_TRUE(first.isOk() && second.isOk());
  first.value()->data()[70] = std::byte{9};
  EXPECT_EQ(second.value()->data()[6], std::byte{9});
}

TEST(BenchPipe, SaysThatTheOtherSideEnded) {
  Ends ends;
  ends.there.reset();
  EXPECT_EQ(ends.here->receive().status().code(), Code::kPeerLost);
  EXPECT_EQ(ends.here->send(1, uint64_t{0}).code(), Code::kPeerLost);
}

TEST(BenchMemory, FindsTheFileBehindAMapping) {
  auto file = makeSharedFile("bench-memory-test", 3 * 4096);
  ASSERT_TRUE(file.isOk());
  auto mapping = RawMapping::create(file->get(), 4096, 8192);
  ASSERT_TRUE(mapping.isOk());
  const auto found = findBackingFile(mapping.value()->data() + 100);
  ASSERT_TRUE(found.isOk()) << found.status().toString();
  EXPECT_EQ(found->offset, 4096u + 100u);
  auto again = RawMapping::create(found->file.get(), found->offset, 8);
  ASSERT_TRUE(again.isOk());
  mapping.value()->data()[100] = std::byte{3};
  EXPECT_EQ(again.value()->data()[0], std::byte{3});
}

TEST(BenchMemory, PrivateMemoryHasNoFile) {
  auto memory = PrivateMemory::create(4096);
  ASSERT_TRUE(memory.isOk());
  EXPECT_EQ(findBackingFile(memory.value()->data()).status().code(), Code::kNotSupported);
}

}  // namespace
}  // namespace peerlane::bench
