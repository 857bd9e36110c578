// SPDX-License-Identifier: Apache-2.0
//
// What a message on a stream costs its poster on a warm lane, counted.
#include "tests/gpu/counted_new.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

// The message's own object, where that of a message before is not back yet.
constexpr unsigned kAllocationsPerPost = 1;

TEST(StreamMessagePosts, AllocateOnlyTheMessage) {
  PEERLANE_NEEDS_GPUS(1);
  ASSERT_TRUE(CountedNew::counts());
  const auto side = [](int index, const Line& line) {
    const Meeting meeting(index, line);
    constexpr size_t kBytes = 4 << 20;
    const Region out = makeRegion(*meeting.context, meeting.device, Memory::kVmm, kBytes);
    const Region in = makeRegion(*meeting.context, meeting.device, Memory::kVmm, kBytes);
    const auto other = static_cast<Rank>(1 - index);
    std::vector<Peer> peers(2);
    peers[other] = meeting.peer;
    const auto ranks = must(Communicator::create(*meeting.context, peers, static_cast<Rank>(index)),
                            "communicator");
    MessageOptions on;
    on.deviceStream = meeting.deviceStream();
    for (const size_t bytes : {size_t{8}, size_t{2048}, size_t{70000}, size_t{1} << 20}) {
      constexpr int kWarm = 40, kCounted = 20;
      for (int i = 0; i < kWarm + kCounted; ++i) {
        unsigned cost[2] = {};
        Transfer posted[2];
        // One side sends first, the other receives.
        for (const int sends : {1 - index, index}) {
          CountedNew::begin();
          auto message = sends == 1 ? ranks->send(other, out, 0, bytes, on)
                                    : ranks->recv(other, in, 0, bytes, on);
          cost[sends] = CountedNew::end().count;
          posted[sends] = must(std::move(message), "post");
        }
        if (i >= kWarm) {
          for (const unsigned each : cost)
            EXPECT_LE(each, kAllocationsPerPost) << bytes << " bytes";
        }
        for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
      }
    }
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { side(0, line); },
                     [&](const Line& line) { side(1, line); }, 60));
}

}  // namespace
}  // namespace peerlane::gputest
