// SPDX-License-Identifier: Apache-2.0
//
// A context that may be reached at several addresses: those that lead nowhere, to nobody or to
// somebody else do not keep anybody from it.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>

#include "peerlane/os/socket.h"
#include "peerlane/session/wire/handshake.h"
#include "tests/session/peer/session_pair.h"

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
  // clock: half of the minute that one attempt has
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "not the whole time of one attempt";
  EXPECT_EQ(toB.contextId(), b->id());
  (void)MUST(b->accept(kSoon));
  EXPECT_TRUE(soon([&] { return a->peers().size() == 1; }));
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
      ticketOf(*b, {"no address", "127.0.0.1:1", tcpAddressOf(*other), silent.address}), 3s);
  ASSERT_FALSE(refused.isOk());
  const std::string text(refused.status().message());
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied) << text;
  for (const std::string& part :
       {std::string("no address: "), std::string("127.0.0.1:1: connect"),
        tcpAddressOf(*other) + ": authentication failed",
        silent.address + ": nobody there showed that he knows the secret"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

// The ticket as it would be if its context lived there.
std::string whyNotReached(Context& from, const Context& to, uint64_t hostIdentity) {
  Ticket ticket = MUST(Ticket::decode(to.ticket()));
  ticket.hostIdentity = hostIdentity;
  const auto refused = from.connect(MUST(ticket.encode()), kSoon);
  EXPECT_FALSE(refused.isOk());
  return std::string(refused.status().message());
}

TEST(Dial, WhatIsElsewhereIsSaidToBeThereWithItsCure) {
  auto a = makeContext();
  auto b = makeContext();
  const std::string boot = MUST(bootId());
  const uint64_t network = namespaceInode("net");
  const std::string elsewhere = whyNotReached(*a, *b, hostIdentityOf(boot, network + 1));
  EXPECT_NE(elsewhere.find(": on this host, in another network namespace: set PEERLANE_SOCKET_DIR "
                           "to a folder that both see"),
            std::string::npos)
      << elsewhere;
  EXPECT_EQ(elsewhere.find("another host"), std::string::npos) << elsewhere;
  const std::string other = whyNotReached(*a, *b, hostIdentityOf("another boot", network));
  EXPECT_NE(other.find(": on another host, or from before this one was restarted"),
            std::string::npos)
      << other;
  // Where nothing is known the address is tried.
  Ticket unknown = MUST(Ticket::decode(b->ticket()));
  unknown.hostIdentity = 0;
  EXPECT_OK(a->connect(MUST(unknown.encode()), kSoon).status());
}

TEST(Dial, APathThatLeadsNowhereNamesItsSetting) {
  auto a = makeContext();
  auto b = makeContext();
  const std::string path = "unix:/nowhere/peerlane-" + b->id() + ".sock";
  const auto refused = a->connect(ticketOf(*b, {path}), kSoon);
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("its PEERLANE_SOCKET_DIR is no folder that both see"),
            std::string_view::npos)
      << refused.status().toString();
}

TEST(Dial, AddressesThatFailAlikeShareTheReason) {
  auto a = makeContext(withLinks({"shm"}));
  auto b = makeContext(withLinks({"tcp"}), {"127.0.0.1:0", "[::1]:0"});
  const auto refused = a->connect(b->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  const std::string text(refused.status().message());
  std::vector<std::string> overTcp = MUST(Ticket::decode(b->ticket())).addresses;
  std::erase_if(overTcp, [](const std::string& each) { return each.starts_with("unix:"); });
  ASSERT_EQ(overTcp.size(), 2u) << "the Unix socket has a reason of its own";
  EXPECT_TRUE(text.starts_with("no address of context " + b->id() + " led to a connection; "))
      << "somebody was reached: " << text;
  EXPECT_NE(text.find(overTcp[0] + ", " + overTcp[1] + ": no link works"), std::string::npos)
      << text;
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
    EXPECT_TRUE(soon([&] { return a->peers().empty() && b->peers().empty(); }));
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

// Somebody between a context and its guests who keeps the first `late` hellos to himself until the
// context has had enough, and passes everything else on.
class SlowWay {
 public:
  SlowWay(std::string to, int late) : to_(std::move(to)), late_(late) {}
  ~SlowWay() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return MUST(localAddress(listener_.get())).toString(); }
  int guests() const { return guests_; }

 private:
  static bool isReadable(int fd) {
    pollfd wanted{fd, POLLIN, 0};
    return poll(&wanted, 1, 20'000) == 1;
  }
  // False at the end.
  static bool pass(const Fd& from, const Fd& to) {
    std::array<std::byte, 4096> space;
    const auto got = recvSome(from.get(), space);
    if (!got.isOk()) return got.status().code() == Code::kTryAgain;
    for (size_t sent = 0; sent < *got;) {
      const auto some = sendSome(to.get(), std::span(space).first(*got).subspan(sent));
      if (!some.isOk() && some.status().code() != Code::kTryAgain) return false;
      if (some.isOk()) sent += *some;
    }
    return *got > 0;
  }
  void run() {
    while (isReadable(listener_.get())) {
      const auto guest = acceptOne(listener_.get());
      if (!guest.isOk()) return;
      const Fd host = MUST(connectStart(MUST(SocketAddress::parse(to_))));
      if (++guests_ <= late_) {
        EXPECT_TRUE(isReadable(host.get())) << "the context waits for ever";
        while (isReadable(host.get()) && pass(host, *guest)) {
        }
        continue;
      }
      std::array<pollfd, 2> both{pollfd{guest->get(), POLLIN, 0}, pollfd{host.get(), POLLIN, 0}};
      while (poll(both.data(), both.size(), 20'000) > 0 && pass(*guest, host) && pass(host, *guest))
        continue;
    }
  }

  const std::string to_;
  const int late_;
  std::atomic<int> guests_{0};
  Fd listener_ = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  std::thread thread_{[this] { run(); }};
};

Config withTimeForAHello(std::chrono::milliseconds time) {
  Config config;
  config.connectTimeout = time;
  return config;
}

TEST(Dial, WhoseHelloCameLateComesAgain) {
  auto a = makeContext(patient());
  auto b = makeContext(withTimeForAHello(1s), {"127.0.0.1:0"});
  const SlowWay way(tcpAddressOf(*b), 1);
  EXPECT_OK(a->connect(ticketOf(*b, {way.address()}), 60s).status());
  EXPECT_GE(way.guests(), 2);
  a.reset();
}

TEST(Dial, WhoIsAlwaysLateHasItsTimeAndTheReason) {
  auto a = makeContext(patient());
  auto b = makeContext(withTimeForAHello(20ms), {"127.0.0.1:0"});
  const SlowWay way(tcpAddressOf(*b), 1'000'000);
  const Status late = a->connect(ticketOf(*b, {way.address()}), 2s).status();
  EXPECT_EQ(late.code(), Code::kTimeout) << late.toString();
  EXPECT_NE(late.message().find("hello did not come"), std::string_view::npos) << late.toString();
  EXPECT_GT(way.guests(), 2);
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
