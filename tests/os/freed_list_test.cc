// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/freed_list.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

class FreedListTest : public testing::Test {
 protected:
  std::vector<FreedList::Link*> taken() {
    std::vector<FreedList::Link*> links;
    list_.take([&links](FreedList::Link& link) { links.push_back(&link); });
    return links;
  }
  bool rings() {
    pollfd bell{.fd = list_.bell(), .events = POLLIN, .revents = 0};
    return ::poll(&bell, 1, 0) == 1;
  }
  FreedList list_{MUST(makeEventFd())};
};

TEST_F(FreedListTest, ALinkIsTakenOnce) {
  EXPECT_FALSE(rings());
  std::array<FreedList::Link, 3> links;
  for (FreedList::Link& link : links) list_.add(link);
  EXPECT_TRUE(rings());
  EXPECT_EQ(taken().size(), links.size());
  EXPECT_TRUE(taken().empty());
  list_.add(links[1]);
  EXPECT_EQ(taken(), std::vector{&links[1]});
}

// Just added, or seen by the removal of another one.
TEST_F(FreedListTest, WhatIsRemovedIsNotTaken) {
  std::array<FreedList::Link, 4> links;
  for (FreedList::Link& link : links) list_.add(link);
  list_.remove(links[2]);
  list_.remove(links[0]);
  const auto rest = taken();
  EXPECT_EQ(rest.size(), 2u);
  for (const FreedList::Link* link : rest) EXPECT_TRUE(link == &links[1] || link == &links[3]);
  list_.remove(links[1]);  // taken before
  EXPECT_TRUE(taken().empty());
}

TEST_F(FreedListTest, NoneIsLostBetweenThoseWhoAddAndThoseWhoTake) {
  constexpr size_t kEach = 20000, kThreads = 3;
  std::vector<FreedList::Link> links(kEach * kThreads);
  std::atomic<size_t> done{0};
  std::vector<std::thread> adders;
  for (size_t thread = 0; thread < kThreads; ++thread)
    adders.emplace_back([&, thread] {
      for (size_t i = 0; i < kEach; ++i) list_.add(links[thread * kEach + i]);
      ++done;
    });
  size_t seen = 0;
  while (done.load() < kThreads) seen += taken().size();
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(seen + taken().size(), links.size());
}

}  // namespace
}  // namespace peerlane
