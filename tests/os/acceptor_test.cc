// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <string>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/os/guest_list.h"
#include "peerlane/os/socket.h"
#include "tests/os/few_descriptors.h"

namespace peerlane {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class AcceptorTest : public testing::Test {
 protected:
  AcceptorTest() {
    setLogSink([this](LogLevel, std::string_view, std::string_view) { ++lines_; });
    Fd listener = listenOn(SocketAddress::parse("127.0.0.1:0").value()).value();
    address_ = localAddress(listener.get()).value();
    acceptor_ = Acceptor::create(*loop_, std::move(listener), "the door",
                                 {.connection = [this](Fd one) { came_.push_back(std::move(one)); },
                                  .turnedAway =
                                      [this](int one) {
                                        ++turnedAway_;
                                        (void)sendSome(one, std::as_bytes(std::span("why", 3)));
                                      }})
                    .value();
  }
  ~AcceptorTest() override { setLogSink({}); }
  // Turns of the loop until then, or for long enough.
  template <typename Condition>
  bool turnUntil(const Condition& condition) {
    const auto limit = Clock::now() + std::chrono::seconds(20);
    while (!condition() && Clock::now() < limit) loop_->waitOnce(milliseconds(5));
    return condition();
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::create().value();
  SocketAddress address_;
  std::vector<Fd> came_;
  size_t turnedAway_ = 0;
  size_t lines_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, TakesAllThatWait) {
  std::vector<Fd> guests;
  for (int i = 0; i < 10; ++i) guests.push_back(connectStart(address_).value());
  loop_->waitOnce(std::chrono::seconds(20));
  EXPECT_EQ(came_.size(), 10u) << "one event, all of the queue";
}

TEST_F(AcceptorTest, WithoutADescriptorEverybodyIsToldAndTheNextOneIsTaken) {
  constexpr size_t kGuests = 100;
  std::vector<Fd> guests;
  for (size_t i = 0; i < kGuests; ++i) guests.push_back(connectStart(address_).value());
  {
    const FewDescriptors none(0);
    EXPECT_TRUE(turnUntil([&] { return turnedAway_ == kGuests; })) << turnedAway_;
    EXPECT_TRUE(came_.empty());
    for (const Fd& guest : guests) {
      std::array<std::byte, 8> space;
      const auto got = recvSome(guest.get(), space);
      EXPECT_EQ(got.isOk() ? *got : 0, 3u) << got.status().toString();
    }
    EXPECT_LE(lines_, static_cast<size_t>(LogLimit::kAtOnce) + 5);
  }
  const Fd guest = connectStart(address_).value();
  EXPECT_TRUE(turnUntil([&] { return came_.size() == 1; }));
}

// The kernel says that there is no descriptor before it looks whether anybody waits.
TEST_F(AcceptorTest, WithoutADescriptorAnEmptyQueueIsNobodysFailure) {
  const Fd guest = connectStart(address_).value();
  const FewDescriptors none(0);
  EXPECT_TRUE(turnUntil([&] { return turnedAway_ == 1; }));
  EXPECT_EQ(lines_, 1u);
}

// The reserve is gone as well: whoever took its number.
TEST_F(AcceptorTest, WhereNothingHelpsItPauses) {
  const Fd guest = connectStart(address_).value();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit nothing{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &nothing);  // not even the one that is given up
  size_t calls = 0;
  for (const auto until = Clock::now() + milliseconds(500); Clock::now() < until;)
    calls += loop_->waitOnce(milliseconds(50));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_LE(calls, 20u) << "a queue that stays ready is not looked at all the time";
  EXPECT_TRUE(turnUntil([&] { return came_.size() == 1; }));
}

TEST(GuestList, NobodyTakesTheRoomOfTheOthers) {
  GuestList list({.inAll = 5, .ofOne = 3});
  std::vector<GuestList::Place> places;
  for (int i = 0; i < 3; ++i) places.push_back(list.admit("user 7").value());
  const auto fourth = list.admit("user 7");
  EXPECT_EQ(fourth.status().code(), Code::kTryAgain);
  EXPECT_NE(fourth.status().message().find("3 of user 7 (at most 3)"), std::string_view::npos)
      << fourth.status().toString();
  places.push_back(list.admit("user 8").value());
  places.push_back(list.admit("user 9").value());
  EXPECT_EQ(list.admit("user 10").status().code(), Code::kTryAgain) << "in all";
  places.erase(places.begin());
  EXPECT_TRUE(list.admit("user 7").isOk());
  places.clear();
  EXPECT_EQ(list.size(), 0u);
}

}  // namespace
}  // namespace peerlane
