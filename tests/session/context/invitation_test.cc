// SPDX-License-Identifier: Apache-2.0
//
// Tickets for one peer: who is met by which, once, and what ends them.
#include <future>

#include "peerlane/core/limits.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/os/child_process.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

TEST(Invitation, EachIsMetByItsOwnGuest) {
  auto host = makeContext();
  auto first = makeContext(), second = makeContext(), third = makeContext();
  Invitation toFirst = MUST(host->invite());
  Invitation toSecond = MUST(host->invite());
  // In the other order, and one that came by the context's own ticket.
  (void)MUST(third->connect(host->ticket(), kSoon));
  (void)MUST(second->connect(toSecond.ticket(), kSoon));
  (void)MUST(first->connect(toFirst.ticket(), kSoon));
  EXPECT_EQ(MUST(toFirst.accept(kSoon)).contextId(), first->id());
  EXPECT_EQ(MUST(toSecond.accept(kSoon)).contextId(), second->id());
  EXPECT_EQ(MUST(host->accept(kSoon)).contextId(), third->id());
  EXPECT_EQ(host->accept(0ms).status().code(), Code::kTimeout) << "guests are not met twice";
}

TEST(Invitation, IsWorthOnePeer) {
  auto host = makeContext();
  auto first = makeContext(), second = makeContext();
  Invitation invitation = MUST(host->invite());
  const std::string ticket = invitation.ticket();
  (void)MUST(first->connect(ticket, kSoon));
  const Peer late = MUST(second->connect(ticket, kSoon));
  EXPECT_EQ(MUST(invitation.accept(kSoon)).contextId(), first->id());
  EXPECT_EQ(second->connect(ticket, kSoon).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(invitation.accept(kSoon).status().code(), Code::kClosed) << "taken before";
  invitation.cancel();
  EXPECT_EQ(late.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
}

TEST(Invitation, TwoContextsMeetMoreThanOnce) {
  auto host = makeContext(), guest = makeContext();
  std::vector<Invitation> invitations;
  for (int i = 0; i < 8; ++i) invitations.push_back(MUST(host->invite()));
  for (Invitation& invitation : invitations) (void)MUST(guest->connect(invitation.ticket(), kSoon));
  for (Invitation& invitation : invitations)
    EXPECT_EQ(MUST(invitation.accept(kSoon)).contextId(), guest->id());
  EXPECT_EQ(guest->peers().size(), invitations.size());
}

TEST(Invitation, WaitsForItsGuest) {
  auto host = makeContext(), guest = makeContext();
  Invitation invitation = MUST(host->invite());
  EXPECT_EQ(invitation.accept(0ms).status().code(), Code::kTimeout);
  auto accepted = std::async(std::launch::async, [&] { return invitation.accept(kSoon); });
  (void)MUST(guest->connect(invitation.ticket(), kSoon));
  EXPECT_EQ(MUST(accepted.get()).contextId(), guest->id()) << "a timeout leaves it open";
}

TEST(Invitation, IsWorthNothingOnceCancelled) {
  auto host = makeContext(), guest = makeContext();
  Invitation invitation = MUST(host->invite());
  const std::string ticket = invitation.ticket();
  auto accepted = std::async(std::launch::async, [&] { return invitation.accept(kSoon); });
  invitation.cancel();
  EXPECT_EQ(accepted.get().status().code(), Code::kCancelled);
  EXPECT_EQ(guest->connect(ticket, kSoon).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(invitation.accept(kSoon).status().code(), Code::kCancelled);
}

// Guests whom nobody took are told by the progress thread, when it comes to it.
TEST(Invitation, IsCancelledWhileACallbackStands) {
  auto host = makeContext(), guest = makeContext();
  Invitation invitation = MUST(host->invite());
  const Peer unwanted = MUST(guest->connect(invitation.ticket(), kSoon));
  ASSERT_TRUE(soon([&] { return host->peers().size() == 1; }));
  StandingCallback stands(host->peers().front().core()->progress());
  auto cancel = std::async(std::launch::async, [&] { invitation.cancel(); });
  const bool isBack = cancel.wait_for(kSoon) == std::future_status::ready;
  stands.goOn();
  EXPECT_TRUE(isBack);
  EXPECT_EQ(unwanted.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
}

TEST(Invitation, EndsWithItsHandle) {
  auto host = makeContext(), guest = makeContext();
  std::string ticket;
  {
    const Invitation invitation = MUST(host->invite());
    ticket = invitation.ticket();
  }
  EXPECT_EQ(guest->connect(ticket, kSoon).status().code(), Code::kPermissionDenied);
  Invitation reused = MUST(host->invite());
  ticket = reused.ticket();
  reused = MUST(host->invite());
  EXPECT_EQ(guest->connect(ticket, kSoon).status().code(), Code::kPermissionDenied);
  EXPECT_TRUE(guest->connect(reused.ticket(), kSoon).isOk());
}

TEST(Invitation, AGuestThatNobodyTookIsClosedWithIt) {
  auto host = makeContext(), guest = makeContext();
  std::optional<Invitation> invitation = MUST(host->invite());
  const Peer peer = MUST(guest->connect(invitation->ticket(), kSoon));
  invitation.reset();
  EXPECT_EQ(peer.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
}

TEST(Invitation, AGuestThatLeftAgainDoesNotUseItUp) {
  auto host = makeContext(), hasty = makeContext(), patient = makeContext();
  Invitation invitation = MUST(host->invite());
  for (int i = 0; i < 3; ++i) MUST(hasty->connect(invitation.ticket(), kSoon)).close();
  const Peer stays = MUST(patient->connect(invitation.ticket(), kSoon));
  // That the others have left may be known a little later.
  for (;;) {
    const Peer taken = MUST(invitation.accept(kSoon));
    if (taken.contextId() == patient->id()) break;
    EXPECT_EQ(taken.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
    ASSERT_TRUE(invitation.reopen());
  }
}

TEST(Invitation, TakesAGuestThatLeftAMessage) {
  auto host = makeContext(), guest = makeContext();
  Invitation invitation = MUST(host->invite());
  const Peer hasty = MUST(guest->connect(invitation.ticket(), kSoon));
  ASSERT_OK(hasty.sendMessage(1, std::as_bytes(std::span("done"))));
  hasty.close();
  ASSERT_TRUE(soon([&] { return host->peers().empty(); }));
  EXPECT_OK(MUST(invitation.accept(kSoon)).receiveMessage(1, kSoon).status());
}

// Guests that left messages: they are shown, take no place, and come after one that is there.
TEST(Invitation, AGuestThatIsThereComesBeforeThoseThatLeftMessages) {
  auto host = makeContext(), hasty = makeContext(), patient = makeContext();
  Invitation invitation = MUST(host->invite());
  for (uint32_t i = 0; i < limits::kPeersLeft + 1; ++i) {
    const Peer guest = MUST(hasty->connect(invitation.ticket(), kSoon));
    ASSERT_OK(guest.sendMessage(1, std::as_bytes(std::span(&i, 1))));
    ASSERT_TRUE(soon([&] { return host->peers().size() == 1; }));
    guest.close();
    ASSERT_TRUE(soon([&] { return host->peers().empty(); }));
  }
  const std::string shown = std::to_string(limits::kPeersLeft) + " peers connected and not taken";
  EXPECT_NE(host->dump().find(shown), std::string::npos) << host->dump();
  const Peer stays = MUST(patient->connect(invitation.ticket(), kSoon));
  ASSERT_TRUE(soon([&] { return host->peers().size() == 1; }));
  EXPECT_EQ(MUST(invitation.accept(kSoon)).contextId(), patient->id());
  for (uint32_t i = 1; i <= limits::kPeersLeft; ++i) {
    ASSERT_TRUE(invitation.reopen());
    const auto message = MUST(MUST(invitation.accept(kSoon)).receiveMessage(1, kSoon));
    EXPECT_EQ(message.at(0), std::byte(i)) << "the first one is dropped";
  }
  ASSERT_TRUE(invitation.reopen());
  EXPECT_EQ(invitation.accept(0ms).status().code(), Code::kTimeout);
}

// A guest for whom there is no room until another one is taken is not told that its secret is
// wrong.
TEST(Invitation, OneGuestTooManyComesAgainUntilThereIsRoom) {
  auto host = makeContext(), guest = makeContext();
  Invitation invitation = MUST(host->invite());
  std::vector<Peer> early;
  for (int i = 0; i < 8; ++i) early.push_back(MUST(guest->connect(invitation.ticket(), kSoon)));
  ASSERT_TRUE(soon([&] { return host->peers().size() == early.size(); }));
  const auto refused = guest->connect(invitation.ticket(), 2s).status();
  EXPECT_NE(refused.code(), Code::kPermissionDenied) << refused.toString();
  EXPECT_NE(refused.toString().find("that nobody has taken"), std::string::npos)
      << refused.toString();
  auto late = std::async(std::launch::async,
                         [&] { return guest->connect(invitation.ticket(), kSoon).status(); });
  early.front().close();
  EXPECT_OK(late.get());
}

TEST(Invitation, IsOpenedOnceMore) {
  auto host = makeContext(), first = makeContext(), second = makeContext();
  Invitation invitation = MUST(host->invite());
  EXPECT_FALSE(invitation.reopen()) << "it is open";
  (void)MUST(first->connect(invitation.ticket(), kSoon));
  (void)MUST(invitation.accept(kSoon));
  EXPECT_TRUE(invitation.reopen());
  EXPECT_FALSE(invitation.reopen());
  EXPECT_EQ(invitation.accept(0ms).status().code(), Code::kTimeout);
  (void)MUST(second->connect(invitation.ticket(), kSoon));
  EXPECT_EQ(MUST(invitation.accept(kSoon)).contextId(), second->id());
  EXPECT_EQ(invitation.accept(kSoon).status().code(), Code::kClosed) << "taken before";
  invitation.cancel();
  EXPECT_FALSE(invitation.reopen());
}

TEST(Invitation, OutlivesItsContext) {
  auto host = makeContext();
  Invitation invitation = MUST(host->invite());
  auto accepted = std::async(std::launch::async, [&] { return invitation.accept(kSoon); });
  host.reset();
  EXPECT_EQ(accepted.get().status().code(), Code::kClosed);
  EXPECT_EQ(invitation.accept(kSoon).status().code(), Code::kClosed);
  EXPECT_TRUE(invitation.ticket().empty());
  EXPECT_EQ(Invitation().accept(kSoon).status().code(), Code::kInvalidArgument);
}

TEST(Invitation, IsRefusedInAForkedChild) {
  auto host = makeContext();
  Invitation invitation = MUST(host->invite());
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a hang ends the child by a signal
    const bool refused = host->invite().status().code() == Code::kNotSupported &&
                         invitation.accept(kSoon).status().code() == Code::kNotSupported;
    invitation.cancel();  // does nothing to the parent's
    _exit(refused ? 0 : 1);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + 40s), 0);
  auto guest = makeContext();
  EXPECT_TRUE(guest->connect(invitation.ticket(), kSoon).isOk());
}

}  // namespace
}  // namespace peerlane
