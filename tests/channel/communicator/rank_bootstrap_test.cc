// SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet by rank 0's address, and those that must not: whoever is refused, and whoever
// would wait for him, is told the reason and does not wait for the time to pass.
#include <future>

#include "peerlane/channel/communicator/bootstrap_queue.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Kind = BootstrapNote::Kind;

constexpr uint32_t kChannel = 0xfffffffe;
constexpr std::chrono::minutes kForever{1};  // nobody may come to the end of it

testing::AssertionResult says(const Status& status, const std::vector<std::string>& parts) {
  const std::string text = status.toString();
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
  return testing::AssertionSuccess();
}

class RankBootstrapTest : public testing::Test {
 protected:
  using Made = std::future<Status>;

  RankBootstrapTest() : zero(makeContext({}, {"127.0.0.1:0"})) {
    address = zero->addresses().back();
  }

  // Keeps the communicator until the test ends: who has one may not lose the others.
  Made meet(Context& context, Rank rank, uint32_t ranks,
            std::chrono::nanoseconds timeout = kForever) {
    return std::async(std::launch::async, [this, &context, rank, ranks, timeout] {
      CommunicatorOptions options;
      options.timeout = timeout;
      auto made = Communicator::create(context, Bootstrap{rank, ranks, address, zero->secretText()},
                                       options);
      if (!made.isOk()) return made.status();
      const std::lock_guard lock(mutex);
      met.push_back(std::move(*made));
      return Status::ok();
    });
  }
  // Somebody who plays a rank, or nobody: what rank 0 says to him is heard at his own queue.
  struct Guest {
    Peer peer;
    std::shared_ptr<BootstrapQueue> queue = std::make_shared<BootstrapQueue>();
    void say(const BootstrapNote& note) const {
      ASSERT_OK(BootstrapQueue::sendNote(*peer.core(), note));
    }
    BootstrapNote hear() const {
      EXPECT_TRUE(soon([&] { return queue->any(); }));
      const auto heard = queue->next();
      return heard ? MUST(heard->note) : BootstrapNote();
    }
  };
  Guest connect(Context& context) {
    Guest guest{MUST(context.connect(address, zero->secretText(), kSoon))};
    guest.queue->subscribe(*guest.peer.core(), 0);
    return guest;
  }
  // What rank 0 waits for is there once it waits.
  bool shows(const std::string& text) {
    return soon([&] { return zero->dump().find(text) != std::string::npos; });
  }
  std::unique_ptr<Context> zero;
  std::unique_ptr<Context> a = makeContext();
  std::unique_ptr<Context> b = makeContext();
  std::string address;
  std::mutex mutex;
  std::vector<std::unique_ptr<Communicator>> met;
};

TEST_F(RankBootstrapTest, WhoCountsOtherwiseIsToldAndSoAreAllOthers) {
  Made host = meet(*zero, 0, 3);
  Made innocent = meet(*a, 1, 3);
  ASSERT_TRUE(shows("for rank 2 of 3 to introduce")) << zero->dump();
  Made wrong = meet(*b, 2, 2 + 2);
  const std::vector<std::string> why = {"InvalidArgument: ",
                                        "a peer introduced itself as rank 2 of 4; there are 3"};
  EXPECT_TRUE(says(host.get(), why));
  EXPECT_TRUE(says(wrong.get(), why));
  EXPECT_TRUE(says(innocent.get(), why));
}

TEST_F(RankBootstrapTest, WhoComesAfterARefusalIsToldTheReason) {
  Made host = meet(*zero, 0, 3);
  ASSERT_TRUE(shows("for ranks 1, 2 of 3 to introduce")) << zero->dump();
  Made wrong = meet(*b, 2, 4);
  const std::string why = "a peer introduced itself as rank 2 of 4; there are 3";
  EXPECT_TRUE(says(host.get(), {why}));
  EXPECT_TRUE(says(wrong.get(), {why}));
  EXPECT_TRUE(says(meet(*a, 1, 3).get(),
                   {"InvalidArgument: rank 0 has ended the bootstrap of the ranks: " + why}));
  // The next time counts for itself.
  host = meet(*zero, 0, 3);
  ASSERT_TRUE(shows("for ranks 1, 2 of 3 to introduce")) << zero->dump();
  Made one = meet(*a, 1, 3);
  Made two = meet(*b, 2, 3);
  EXPECT_OK(host.get());
  EXPECT_OK(one.get());
  EXPECT_OK(two.get());
  met.clear();
}

TEST_F(RankBootstrapTest, TheSecondOfOneRankIsToldAndSoAreAllOthers) {
  const Guest first = connect(*a);
  Made host = meet(*zero, 0, 3);
  first.say({.kind = Kind::kHello, .rank = 1, .ranks = 3, .text = "pl1"});
  ASSERT_TRUE(shows("for rank 2 of 3 to introduce")) << zero->dump();
  Made second = meet(*b, 1, 3);
  const std::vector<std::string> why = {
      "a peer introduced itself as rank 1 of 3; that rank is taken"};
  EXPECT_TRUE(says(host.get(), why));
  EXPECT_TRUE(says(second.get(), why));
  EXPECT_EQ(first.hear().kind, Kind::kGaveUp);
}

// Somebody with the secret who says nothing, before and while ranks meet; he can be accepted later.
TEST_F(RankBootstrapTest, ASilentGuestStopsNobody) {
  const Guest before = connect(*a);
  Made host = meet(*zero, 0, 3);
  Made one = meet(*b, 1, 3);
  auto c = makeContext();
  Made two = meet(*c, 2, 3);
  EXPECT_OK(host.get());
  EXPECT_OK(one.get());
  EXPECT_OK(two.get());
  const Peer guest = MUST(zero->accept(kSoon));
  EXPECT_EQ(guest.contextId(), a->id());
  EXPECT_OK(before.peer.sendMessage(1, {}));
  EXPECT_OK(guest.receiveMessage(1, kSoon).status());
  met.clear();
}

// One that left a message for the program before and one that leaves while ranks meet.
TEST_F(RankBootstrapTest, GuestsThatLeaveMessagesAreAcceptedAfterwards) {
  const std::byte one[1] = {};
  auto c = makeContext(), d = makeContext();
  const Peer before = MUST(c->connect(address, zero->secretText(), kSoon));
  ASSERT_OK(before.sendMessage(1, one));
  ASSERT_TRUE(soon([&] { return zero->peers().size() == 1; }));
  before.close();
  ASSERT_TRUE(soon([&] { return zero->peers().empty(); }));
  const Peer meanwhile = MUST(d->connect(address, zero->secretText(), kSoon));
  ASSERT_OK(meanwhile.sendMessage(1, one));
  ASSERT_TRUE(soon([&] { return zero->peers().size() == 1; }));
  Made host = meet(*zero, 0, 3);
  Made first = meet(*a, 1, 3);
  ASSERT_TRUE(shows("for rank 2 of 3 to introduce")) << zero->dump();
  meanwhile.close();
  ASSERT_TRUE(soon([&] { return zero->peers().size() == 1; }));
  Made second = meet(*b, 2, 3);
  EXPECT_OK(host.get());
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  for (int left = 0; left < 2; ++left)
    EXPECT_OK(MUST(zero->accept(kSoon)).receiveMessage(1, kSoon).status());
  met.clear();
}

// Who does not speak as ranks do is no rank.
TEST_F(RankBootstrapTest, AGuestWhoTalksNonsenseLeavesAlone) {
  const Guest guest = connect(*a);
  const std::string text = "no hello";
  ASSERT_OK(guest.peer.core()->messages().send(
      kChannel, {std::as_bytes(std::span(text)).begin(), std::as_bytes(std::span(text)).end()}));
  Made host = meet(*zero, 0, 2);
  Made one = meet(*b, 1, 2);
  EXPECT_OK(host.get());
  EXPECT_OK(one.get());
  met.clear();
}

TEST_F(RankBootstrapTest, AnAbsentRankZeroIsNamedWithTheLastCause) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(1);
  const auto never =
      Communicator::create(*a, Bootstrap{1, 2, "127.0.0.1:1", std::string(64, 'b')}, options);
  EXPECT_EQ(never.status().code(), Code::kTimeout);
  EXPECT_TRUE(says(never.status(), {"waited ", " ms for rank 0 to listen at 127.0.0.1:1; last: ",
                                    "Connection refused"}));
}

TEST_F(RankBootstrapTest, ARankZeroThatDoesNotListenSaysSo) {
  const std::vector<std::string> parts = {"Timeout: waited ",
                                          " ms for rank 1 of 2 to introduce themselves to rank 0",
                                          "this context does not listen"};
  Status alone;
  // Again where the progress thread was off the processor, which leaves out what it was waited for.
  (void)soon([&] {
    alone = meet(*a, 0, 2, 20ms).get();
    return bool(says(alone, parts));
  });
  EXPECT_TRUE(says(alone, parts));
}

// One whose time is over ends it for all, with what it waited for.
TEST_F(RankBootstrapTest, AllHearOfTheFirstThatGivesUp) {
  const Guest one = connect(*a);
  one.say({.kind = Kind::kHello, .rank = 1, .ranks = 3, .text = a->ticket()});
  Made host = meet(*zero, 0, 3);
  Made two = meet(*b, 2, 3);
  ASSERT_TRUE(shows(" of 3 to connect to those below them")) << zero->dump();
  one.say({.kind = Kind::kGaveUp, .code = Code::kTimeout, .text = "waited 1 s for a bus"});
  EXPECT_TRUE(says(host.get(),
                   {"Timeout: rank 1 has ended the bootstrap of the ranks: waited 1 s for a bus"}));
  EXPECT_TRUE(
      says(two.get(), {"Timeout: rank 0 has ended the bootstrap of the ranks: rank 1 has ended "
                       "the bootstrap of the ranks: waited 1 s for a bus"}));
}

TEST_F(RankBootstrapTest, ARankMayComeAgainBeforeAllAreThere) {
  Made host = meet(*zero, 0, 3);
  const Guest first = connect(*a);
  first.say({.kind = Kind::kHello, .rank = 1, .ranks = 3, .text = "pl1"});
  ASSERT_TRUE(shows("for rank 2 of 3 to introduce")) << zero->dump();
  first.peer.close();
  ASSERT_TRUE(shows("for ranks 1, 2 of 3 to introduce themselves to rank 0; rank 1 came, and left"))
      << zero->dump();
  Made one = meet(*a, 1, 3);
  Made two = meet(*b, 2, 3);
  EXPECT_OK(host.get());
  EXPECT_OK(one.get());
  EXPECT_OK(two.get());
  met.clear();
}

// Who was rank 0 of a bootstrap that ended shows those out who come for it; whoever comes when it
// is another rank comes for that.
TEST_F(RankBootstrapTest, WhoWasRankZeroMayBeAnotherRank) {
  for (const Rank rank : {1u, 2u}) {
    const auto former = makeContext({}, {"127.0.0.1:0"});
    const auto meetThere = [&](Context& context, Rank as, uint32_t ranks) {
      return std::async(std::launch::async, [&, as, ranks] {
        CommunicatorOptions options;
        options.timeout = kForever;
        return Communicator::create(
                   context, Bootstrap{as, ranks, former->addresses().back(), former->secretText()},
                   options)
            .status();
      });
    };
    Made host = meetThere(*former, 0, 3);
    Made wrong = meetThere(*b, 2, 4);
    EXPECT_EQ(host.get().code(), Code::kInvalidArgument);
    EXPECT_EQ(wrong.get().code(), Code::kInvalidArgument);
    Made zeroth = meet(*zero, 0, 3);
    Made again = meet(*former, rank, 3);
    Made other = meet(*a, 3 - rank, 3);
    EXPECT_OK(zeroth.get());
    EXPECT_OK(again.get());
    EXPECT_OK(other.get());
    met.clear();
  }
}

// Whoever gives up tells the others by its progress thread, and does not wait for it.
TEST_F(RankBootstrapTest, GivingUpWaitsForNoCallback) {
  Made host = meet(*zero, 0, 3, std::chrono::seconds(3));
  Made one = meet(*a, 1, 3);
  ASSERT_TRUE(shows("for rank 2 of 3 to introduce themselves"));
  StandingCallback stands(zero->peers().front().core()->progress());
  const bool isBack = host.wait_for(kSoon) == std::future_status::ready;
  stands.goOn();
  EXPECT_TRUE(isBack);
  EXPECT_EQ(host.get().code(), Code::kTimeout);
  EXPECT_FALSE(one.get().isOk()) << "rank 0 gave up";
}

// Rank 0 tells so many tickets as are asked for at once, and no more before it is asked again.
TEST_F(RankBootstrapTest, TicketsAreToldSomeAtATime) {
  constexpr Rank kRanks = 41;
  Made host = meet(*zero, 0, kRanks);
  std::vector<Guest> ranks;
  for (Rank rank = 1; rank < kRanks; ++rank) {
    ranks.push_back(connect(*a));
    ranks.back().say({.kind = Kind::kHello,
                      .rank = rank,
                      .ranks = kRanks,
                      .text = "ticket " + std::to_string(rank)});
  }
  const Guest& last = ranks.back();
  for (const Rank first : {1u, 17u, 33u}) {
    last.say({.kind = Kind::kWant, .rank = first, .ranks = kRanks});
    for (Rank rank = first; rank < std::min(first + 16, kRanks - 1); ++rank) {
      const BootstrapNote heard = last.hear();
      EXPECT_EQ(heard.kind, Kind::kTicket);
      EXPECT_EQ(heard.text, "ticket " + std::to_string(rank));
    }
  }
  for (Rank rank = 1; rank < kRanks; ++rank)
    ranks[rank - 1].say({.kind = Kind::kMet, .rank = rank, .ranks = kRanks});
  for (const Guest& each : ranks) EXPECT_EQ(each.hear().kind, Kind::kGo);
  for (const Guest& each : ranks) each.peer.close();
  EXPECT_FALSE(host.get().isOk()) << "they are no communicator's";
}

// More than fit into one request for tickets.
TEST_F(RankBootstrapTest, ManyRanksMeet) {
  constexpr Rank kRanks = 19;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<Made> made;
  made.push_back(meet(*zero, 0, kRanks));
  for (Rank rank = 1; rank < kRanks; ++rank) contexts.push_back(makeContext());
  for (Rank rank = 1; rank < kRanks; ++rank)
    made.push_back(meet(*contexts[rank - 1], rank, kRanks));
  for (Made& each : made) EXPECT_OK(each.get());
  met.clear();
}

}  // namespace
}  // namespace peerlane
