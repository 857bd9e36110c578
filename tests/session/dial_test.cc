// SPDX-License-Identifier: Apache-2.0
//
// A context that may be reached at several addresses: those that lead nowhere, to nobody or to
// somebody else do not keep anybody from it.
#include <poll.h>

#include "peerlane/os/socket.h"
#include "peerlane/session/handshake.h"
#include "tests/session/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

std::string tcpAddressOf(const Context& context) {
  for (const std::string& address : context.addresses())
    if (!address.starts_with("unix:")) return address;
  return {};
}

// A ticket of `context` with these addresses instead of its own.
std::string ticketOf(const Context& context, std::vector<std::string> addresses) {
  Ticket ticket = MUST(Ticket::decode(context.ticket()));
  ticket.addresses = std::move(addresses);
  return MUST(ticket.encode());
}

// Somebody who takes connections and never says a word.
struct Silent {
  Fd listener = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  std::string address = MUST(localAddress(listener.get())).toString();
};

Config patient() {
  Config config;
  config.connectTimeout = 60s;
  return config;
}

TEST(Dial, AnAddressThatNeverAnswersCostsAMoment) {
  const Silent silent;
  auto a = makeContext(patient());
  auto b = makeContext(patient(), {"127.0.0.1:0"});
  const auto begin = std::chrono::steady_clock::now();
  const Peer toB = MUST(a->connect(ticketOf(*b, {silent.address, tcpAddressOf(*b)}), 60s));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "not the whole time of one attempt";
  EXPECT_EQ(toB.contextId(), b->id());
  (void)MUST(b->accept(kSoon));
  EXPECT_TRUE(eventually([&] { return a->peers().size() == 1; }));
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout) << "one connect, one peer";
}

TEST(Dial, SomebodyElseAtAnAddressIsNotTheEnd) {
  auto a = makeContext();
  auto b = makeContext({}, {"127.0.0.1:0"});
  auto other = makeContext({}, {"127.0.0.1:0"});
  const Peer toB = MUST(a->connect(ticketOf(*b, {tcpAddressOf(*other), tcpAddressOf(*b)}), kSoon));
  EXPECT_EQ(toB.contextId(), b->id());
  EXPECT_EQ(other->accept(0ms).status().code(), Code::kTimeout);
}

TEST(Dial, AnAddressThatCannotBeReadIsNotTheEnd) {
  auto a = makeContext();
  auto b = makeContext({}, {"127.0.0.1:0"});
  const std::string later = "carrier-pigeon:7";  // as a later version may have them
  EXPECT_OK(a->connect(ticketOf(*b, {later, "no address", tcpAddressOf(*b)}), kSoon).status());
}

TEST(Dial, TheEndNamesEveryAddressWithItsReason) {
  const Silent silent;
  auto a = makeContext();
  auto b = makeContext();
  auto other = makeContext({}, {"127.0.0.1:0"});
  const auto refused = a->connect(
      ticketOf(*b, {"no address", "127.0.0.1:1", tcpAddressOf(*other), silent.address}), 1s);
  ASSERT_FALSE(refused.isOk());
  const std::string text(refused.status().message());
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied) << text;
  for (const std::string& part :
       {std::string("no address: "), std::string("127.0.0.1:1: connect"),
        tcpAddressOf(*other) + ": authentication failed", silent.address + ": no answer in"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST(Dial, OfAddressesThatAllLeadThereOneWins) {
  auto a = makeContext();
  auto b = makeContext({}, {"127.0.0.1:0", "[::1]:0"});
  for (int round = 0; round < 20; ++round) {
    const Peer toB = MUST(a->connect(b->ticket(), kSoon));
    const Peer toA = MUST(b->accept(kSoon));
    EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
    EXPECT_EQ(toB.route().link, "self") << "the best address comes first";
    toB.close();
    EXPECT_TRUE(eventually([&] { return a->peers().empty() && b->peers().empty(); }));
  }
}

// A full queue says that somebody listens there: it is worth more than the next address.
TEST(Dial, AFullQueueIsTriedAgain) {
  const auto name = "unix:@peerlane-full-" + std::to_string(getpid());
  const SocketAddress full = MUST(SocketAddress::parse(name));
  const Fd listener = MUST(listenOn(full, 0));
  std::vector<Fd> waiting;
  for (;;) {
    auto one = connectStart(full);
    if (!one.isOk()) {
      ASSERT_EQ(one.status().code(), Code::kTryAgain) << one.status().toString();
      break;
    }
    waiting.push_back(std::move(*one));
  }
  auto a = makeContext(patient());
  auto b = makeContext(patient(), {"127.0.0.1:0"});
  std::thread host([&] {
    EXPECT_EQ(b->accept(300ms).status().code(), Code::kTimeout)
        << "another address was taken while somebody listened at the better one";
    // Room, at last; and somebody who speaks another version.
    for (size_t i = 0; i < waiting.size(); ++i) (void)MUST(acceptOne(listener.get()));
    pollfd wanted{listener.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wanted, 1, 20'000), 1) << "it did not come back";
    const Fd guest = MUST(acceptOne(listener.get()));
    auto reject = Handshake::rejectionFor(Handshake::Reason::kMajor);
    reject[8] = std::byte{99};
    EXPECT_OK(sendSome(guest.get(), reject).status());
    pollfd gone{guest.get(), POLLIN, 0};
    (void)poll(&gone, 1, 20'000);
  });
  auto peer = a->connect(ticketOf(*b, {name, tcpAddressOf(*b)}), 60s);
  host.join();
  EXPECT_OK(peer.status());
}

// --- Handles and the context's end; doors that nobody needs ---

TEST(Dial, AnInvitationOutlivesItsContext) {
  auto guest = makeContext();
  auto host = makeContext();
  Invitation invitation = MUST(host->invite());
  const Peer held = MUST(host->connect(guest->ticket(), kSoon));  // keeps what is behind it
  const std::string before = invitation.ticket();
  host.reset();
  const std::string after = invitation.ticket();
  EXPECT_TRUE(after.empty() || after == before) << after;
  EXPECT_EQ(invitation.accept(0ms).status().code(), Code::kClosed);
}

}  // namespace
}  // namespace peerlane
