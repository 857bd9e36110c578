// SPDX-License-Identifier: Apache-2.0
//
// Port channels between two services of the host, over every link: threads call what kernels call.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include "tests/channel/port_pair.h"

namespace peerlane {
namespace {

constexpr port::ThisThread kThread;

class PortRouteTest : public RouteTest {
 protected:
  PortPair ports_;
};

// D3 D5: data goes there and back, each word with the number of its round.
TEST_P(PortRouteTest, PingPong) {
  constexpr uint64_t kWords = 1024, kBytes = kWords * 8, kRounds = 300;
  ASSERT_OK(ports_.open(pair_, kBytes * 2));
  const auto play = [&](PortSide& side, bool isFirst) {
    const PortChannelHandle channel = side.channel.deviceHandle();
    auto* out = reinterpret_cast<uint64_t*>(side.region.data());
    auto* in = out + kWords;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const auto send = [&] {
        for (uint64_t i = 0; i < kWords; ++i) out[i] = round * kWords + i + (isFirst ? 0 : 7);
        ASSERT_TRUE(channel.putWithSignal(kThread, kBytes, 0, kBytes));
      };
      if (isFirst) send();
      ASSERT_TRUE(channel.wait(kThread)) << side.channel.status().toString();
      for (uint64_t i = 0; i < kWords; ++i)
        ASSERT_EQ(std::atomic_ref<uint64_t>(in[i]).load(std::memory_order_relaxed),
                  round * kWords + i + (isFirst ? 7 : 0));
      if (!isFirst) send();
    }
  };
  std::thread other([&] { play(ports_.b, false); });
  play(ports_.a, true);
  other.join();
  EXPECT_OK(ports_.a.service->status());
  EXPECT_OK(ports_.a.channel.status());
}

INSTANTIATE_TEST_SUITE_P(Routes, PortRouteTest, everyRoute(), routeName);

}  // namespace
}  // namespace peerlane
