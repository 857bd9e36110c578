// SPDX-License-Identifier: Apache-2.0
//
// How two contexts meet: by ticket in every form, by address and secret, and every way in which
// they must not.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <sstream>

#include "peerlane/core/limits.h"
#include "peerlane/os/process.h"
#include "peerlane/os/socket.h"
#include "peerlane/session/wire/handshake.h"
#include "tests/os/child_process.h"
#include "tests/os/open_files.h"
#include "tests/os/scratch_folder.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

// Both ends are alive and are each other's only peer.
void expectConnected(Context& a, Context& b, const Peer& toB, const char* link) {
  const Peer toA = MUST(b.accept(kSoon));
  EXPECT_EQ(toB.contextId(), b.id());
  EXPECT_EQ(toA.contextId(), a.id());
  EXPECT_EQ(toB.route().link, link);
  EXPECT_EQ(toA.route().link, link);
  const std::string text = "hello";
  EXPECT_OK(toB.sendMessage(1, std::as_bytes(std::span(text))));
  EXPECT_EQ(MUST(toA.receiveMessage(1, kSoon)).size(), text.size());
  EXPECT_OK(toA.sendMessage(1, std::as_bytes(std::span(text))));
  EXPECT_EQ(MUST(toB.receiveMessage(1, kSoon)).size(), text.size());
  EXPECT_EQ(a.peers().size(), 1u);
  EXPECT_EQ(b.peers().size(), 1u);
  EXPECT_EQ(b.accept(0ms).status().code(), Code::kTimeout) << "one connect, one peer";
}

TEST(Connect, ByTheTicketItself) {
  auto a = makeContext();
  auto b = makeContext();
  expectConnected(*a, *b, MUST(a->connect(b->ticket(), kSoon)), "self");
}

TEST(Connect, ByATicketInAFile) {
  auto a = makeContext();
  auto b = makeContext();
  const ScratchFolder folder;
  std::ofstream(folder.file("ticket")) << "\n  " << b->ticket() << "\n";
  expectConnected(*a, *b, MUST(a->connect("@" + folder.file("ticket"), kSoon)), "self");
  const auto missing = a->connect("@" + folder.file("nothing"), kSoon);
  ASSERT_FALSE(missing.isOk());
  EXPECT_NE(missing.status().message().find("nothing"), std::string_view::npos);
}

TEST(Connect, ByATicketInTheEnvironment) {
  auto a = makeContext();
  auto b = makeContext();
  ASSERT_EQ(setenv("CONNECT_TEST_TICKET", b->ticket().c_str(), 1), 0);
  expectConnected(*a, *b, MUST(a->connect("env:CONNECT_TEST_TICKET", kSoon)), "self");
  ASSERT_EQ(unsetenv("CONNECT_TEST_TICKET"), 0);
  EXPECT_FALSE(a->connect("env:CONNECT_TEST_TICKET", kSoon).isOk());
}

TEST(Connect, ByATicketOnStandardInput) {
  auto a = makeContext();
  auto b = makeContext();
  std::istringstream text(b->ticket() + "\n");
  std::streambuf* const before = std::cin.rdbuf(text.rdbuf());
  auto peer = a->connect("-", kSoon);
  std::cin.rdbuf(before);
  expectConnected(*a, *b, MUST(std::move(peer)), "self");
}

TEST(Connect, ByAddressAndSecretOverEachFamily) {
  for (const char* listen : {"127.0.0.1:0", "[::1]:0"}) {
    auto a = makeContext();
    auto b = makeContext({}, {listen});
    std::string address;
    for (const std::string& each : b->addresses())
      if (each.find("unix:") == std::string::npos) address = each;
    ASSERT_NE(address, "") << listen;
    // The address leads to this very host, so the Unix socket is taken and the best link with it.
    expectConnected(*a, *b, MUST(a->connect(address, b->secretText(), kSoon)), "self");
  }
}

TEST(Connect, ByTheAddressAsTheListenerHasIt) {
  auto a = makeContext();
  auto b = makeContext({}, {"lo:127.0.0.1:0"});
  std::string address;
  for (const std::string& one : b->addresses())
    if (one.starts_with("127.")) address = one;
  const auto unknown = a->connect("no-such-interface:" + address, b->secretText(), kSoon);
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("no-such-interface"), std::string_view::npos);
  expectConnected(*a, *b, MUST(a->connect("lo:" + address, b->secretText(), kSoon)), "self");
}

TEST(Connect, ByAddressStaysWithTcpWhereTheUnixSocketIsOutOfReach) {
  // The other side's Unix socket is in a folder that this side does not know.
  const ScratchFolder folder;
  Config elsewhere;
  elsewhere.socketDirectory = folder.path();
  auto a = makeContext();
  auto b = makeContext(elsewhere, {"127.0.0.1:0"});
  std::string address;
  for (const std::string& each : b->addresses())
    if (each.find("unix:") == std::string::npos) address = each;
  expectConnected(*a, *b, MUST(a->connect(address, b->secretText(), kSoon)), "tcp");
}

TEST(Connect, ByUnixPathInADirectory) {
  const ScratchFolder folder;
  Config config;
  config.socketDirectory = folder.path();
  auto a = makeContext(config);
  auto b = makeContext(config);
  const std::string address = b->addresses().front();
  EXPECT_NE(address.find(folder.path()), std::string::npos);
  expectConnected(*a, *b, MUST(a->connect(address, b->secretText(), kSoon)), "self");
  auto c = makeContext(config);
  auto d = makeContext(config);
  expectConnected(*c, *d, MUST(c->connect(d->ticket(), kSoon)), "self");
}

TEST(Connect, ByASecretOfTheUsersOwn) {
  const std::string secret(64, '7');
  auto a = makeContext();
  auto b = makeContext({}, {}, secret);
  expectConnected(*a, *b, MUST(a->connect(b->addresses().front(), secret, kSoon)), "self");
  EXPECT_EQ(Context::create({Config(), {}, "too short"}).status().code(), Code::kInvalidArgument);
}

TEST(Connect, EachLinkAloneWorks) {
  for (const char* link : {"self", "shm", "tcp"}) {
    auto a = makeContext(withLinks({link}));
    auto b = makeContext(withLinks({link}));
    expectConnected(*a, *b, MUST(a->connect(b->ticket(), kSoon)), link);
  }
}

TEST(Connect, EncryptedTcpIsAgreedOrRefusedOnBothSides) {
  Config encrypted = withLinks({"tcp"});
  encrypted.tcpEncrypt = true;
  encrypted.tcpSockets = 1;
  auto a = makeContext(encrypted);
  auto b = makeContext(encrypted);
  const Peer peer = MUST(a->connect(b->ticket(), kSoon));
  EXPECT_NE(peer.route().toString().find(", over one socket\n"), std::string::npos);
  EXPECT_NE(peer.route().toString().find("data between the hosts:    encrypted ("),
            std::string::npos)
      << peer.route().toString();
  expectConnected(*a, *b, peer, "tcp");
  auto clear = makeContext(withLinks({"tcp"}));
  Config several = withLinks({"tcp"});
  several.tcpSockets = 3;
  auto other = makeContext(several);
  auto third = makeContext(several);
  const Route route = MUST(third->connect(other->ticket(), kSoon)).route();
  EXPECT_EQ(route.protection, "not encrypted");
  EXPECT_EQ(route.sockets, 3u);
  EXPECT_NE(route.toString().find("not encrypted, over up to 3 sockets\n"), std::string::npos);
  const auto isRefused = [](Context& from, Context& to, const std::string& why) {
    const auto refused = from.connect(to.ticket(), kSoon);
    ASSERT_FALSE(refused.isOk());
    EXPECT_EQ(refused.status().code(), Code::kNotSupported);
    EXPECT_NE(refused.status().message().find("PEERLANE_TCP_ENCRYPT is " + why),
              std::string_view::npos)
        << refused.status().toString();
    // Another link would hide the cause, and need not encrypt.
    EXPECT_EQ(refused.status().message().find("allow "), std::string_view::npos)
        << refused.status().toString();
  };
  isRefused(*a, *clear, "1 on the side that connected and 0 on the side that listened");
  isRefused(*clear, *a, "0 on the side that connected and 1 on the side that listened");
  // Nor where the other side offers more.
  isRefused(*a, *makeContext(), "1 on the side that connected and 0 on the side that listened");
  isRefused(*makeContext(), *a, "0 on the side that connected and 1 on the side that listened");
}

TEST(Connect, WithoutACommonLinkBothAreToldWhy) {
  auto a = makeContext(withLinks({"shm"}));
  auto b = makeContext(withLinks({"tcp"}));
  const auto refused = a->connect(b->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_NE(refused.status().message().find("shm: not offered by the peer"), std::string_view::npos)
      << refused.status().toString();
  const std::string setting = "PEERLANE_LINKS (Config::links) of process " +
                              std::to_string(getpid()) +
                              " is shm: allow tcp, which the other side offers, or leave it unset";
  EXPECT_NE(refused.status().message().find(setting), std::string_view::npos)
      << refused.status().toString();
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
}

#if !defined(__SANITIZE_THREAD__)  // it allows no threads in a forked child
// Why connecting from another process to `b` fails; empty if it does not, or the child broke off.
std::string refusalInAnotherProcess(const Context& b, const Config& config) {
  const std::string ticket = b.ticket();
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);  // a hang ends the child by a signal
    auto a = Context::create({config, {}, ""});
    if (!a.isOk()) _exit(1);
    const auto peer = (*a)->connect(ticket, kSoon);
    if (peer.isOk()) _exit(2);
    const std::string text = peer.status().toString();
    if (write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(3);
    a->reset();
    _exit(0);
  }
  close(ends[1]);
  const auto deadline = child::Clock::now() + 2 * kSoon;
  std::string text;
  while (child::readSome(ends[0], text, deadline)) {
  }
  close(ends[0]);
  EXPECT_EQ(child::collect(pid, deadline), 0);
  return text;
}

TEST(Connect, SelfAloneBetweenProcessesNamesTheSetting) {
  const std::string onBoth = " is self: allow shm or verbs or tcp on both sides, or leave it unset";
  const std::string onOne =
      " is self: allow shm or tcp, which the other side offers, or leave it unset";
  const Config any;
  const Config self = withLinks({"self"});
  // Whichever side forbids the rest, the caller is told.
  for (const auto& [mine, theirs, advice] :
       {std::tuple(self, self, onBoth), {self, any, onOne}, {any, self, onOne}}) {
    auto b = makeContext(theirs);
    const std::string text = refusalInAnotherProcess(*b, mine);
    EXPECT_EQ(text.find("NotSupported: "), 0u) << text;
    EXPECT_NE(text.find("self: the peer is another process"), std::string::npos) << text;
    EXPECT_NE(text.find("shm: not among PEERLANE_LINKS"), std::string::npos) << text;
    EXPECT_NE(text.find("PEERLANE_LINKS (Config::links) of process "), std::string::npos) << text;
    EXPECT_NE(text.find(advice), std::string::npos) << text;
    const std::string parent = "process " + std::to_string(getpid()) + " is self";
    EXPECT_EQ(text.find(parent) != std::string::npos, !theirs.links.empty()) << text;
    EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
    // That was no reason to turn away the next.
    auto near = makeContext(theirs);
    expectConnected(*near, *b, MUST(near->connect(b->ticket(), kSoon)), "self");
  }
}
#endif

TEST(Connect, TheWrongSecretIsRefusedAndDisturbsNobody) {
  auto a = makeContext();
  auto b = makeContext();
  const Peer friendly = MUST(a->connect(b->ticket(), kSoon));
  const Peer atB = MUST(b->accept(kSoon));
  const auto refused = a->connect(b->addresses().front(), std::string(64, '1'), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied) << refused.status().toString();
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
  EXPECT_EQ(friendly.state(), "ready");
  EXPECT_EQ(atB.state(), "ready");
  EXPECT_TRUE(soon([&] { return b->peers().size() == 1 && a->peers().size() == 1; }));
}

// The right secret at an address where another context lives: two contexts may share a secret.
TEST(Connect, TheWrongContextIsRefused) {
  const std::string secret(64, '7');
  auto a = makeContext();
  auto b = makeContext({}, {}, secret);
  auto c = makeContext({}, {}, secret);
  Ticket ticket = MUST(Ticket::decode(b->ticket()));
  ticket.addresses = c->addresses();
  const auto refused = a->connect(MUST(ticket.encode()), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied) << refused.status().toString();
}

TEST(Connect, ToItselfIsRefused) {
  auto a = makeContext();
  const auto refused = a->connect(a->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_TRUE(soon([&] { return a->peers().empty(); }));
}

TEST(Connect, WhatIsNoTicketIsRefusedUnread) {
  auto a = makeContext();
  for (const char* text : {"", "hello", "pl1AAAA", "10.0.0.1:4000"}) {
    const auto refused = a->connect(text, kSoon);
    ASSERT_FALSE(refused.isOk()) << text;
    EXPECT_TRUE(refused.status().code() == Code::kInvalidArgument ||
                refused.status().code() == Code::kCorrupt)
        << refused.status().toString();
  }
  EXPECT_EQ(a->connect("127.0.0.1:1", "no secret", kSoon).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->connect("nonsense address", std::string(64, '1'), kSoon).status().code(),
            Code::kInvalidArgument);
}

TEST(Connect, WhereNobodyListensEachAddressIsNamed) {
  auto a = makeContext();
  std::string ticket;
  std::string id;
  {
    auto gone = makeContext({}, {"127.0.0.1:0"});
    ticket = gone->ticket();
    id = gone->id();
  }
  const auto refused = a->connect(ticket, kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("unix:@peerlane-" + id), std::string_view::npos);
  EXPECT_NE(refused.status().message().find("127.0.0.1:"), std::string_view::npos)
      << refused.status().toString();
}

TEST(Connect, SomebodyWhoNeverAnswersIsATimeout) {
  const Fd listener = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  const std::string address = MUST(localAddress(listener.get())).toString();
  Config patient;
  patient.connectTimeout = 60s;
  auto a = makeContext(patient);
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = a->connect(address, std::string(64, '1'), 100ms);
  EXPECT_EQ(refused.status().code(), Code::kTimeout) << refused.status().toString();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
  // clock: half of the minute that one attempt has
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  // PEERLANE_CONNECT_TIMEOUT bounds one attempt, too.
  Config hasty;
  hasty.connectTimeout = 100ms;
  auto b = makeContext(hasty);
  EXPECT_EQ(b->connect(address, std::string(64, '1'), kSoon).status().code(), Code::kTimeout);
  EXPECT_TRUE(soon([&] { return b->peers().empty(); }));
}

// --- Versions. The other side is a handshake on a bare socket. ---

HandshakeOptions speaker(const Secret& secret, uint16_t major) {
  HandshakeOptions options;
  options.secret = secret;
  options.keyId = keyIdOf(secret);
  options.self = ContextId::random();
  options.major = major;
  return options;
}

Status writeAll(const Fd& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    pollfd wanted{socket.get(), POLLOUT, 0};
    (void)poll(&wanted, 1, 20'000);
    PEERLANE_ASSIGN(const size_t sent, sendSome(socket.get(), bytes));
    bytes = bytes.subspan(sent);
  }
  return Status::ok();
}

// Feeds the handshake until it is done or refused.
Status converse(const Fd& socket, Handshake& handshake) {
  PEERLANE_RETURN_IF_ERROR(writeAll(socket, handshake.start()));
  std::array<std::byte, 512> space;
  for (;;) {
    pollfd wanted{socket.get(), POLLIN, 0};
    if (poll(&wanted, 1, 20'000) != 1) return Status(Code::kTimeout, "silence");
    PEERLANE_ASSIGN(const size_t got, recvSome(socket.get(), space));
    if (got == 0) return Status(Code::kPeerLost, "the end");
    auto progress = handshake.feed(std::span(space).first(got));
    if (!progress.isOk()) {
      (void)writeAll(socket, handshake.rejection());
      return progress.status();
    }
    PEERLANE_RETURN_IF_ERROR(writeAll(socket, progress->send));
    if (progress->done) return Status::ok();
  }
}

TEST(Connect, AnInitiatorOfAnotherMajorIsToldBoth) {
  auto b = makeContext();
  const Secret secret = MUST(Secret::fromText(b->secretText()));
  auto handshake = MUST(Handshake::create(Handshake::Role::kInitiator, speaker(secret, 7)));
  const Fd socket = MUST(connectStart(MUST(SocketAddress::parse(b->addresses().front()))));
  const Status refused = converse(socket, *handshake);
  EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
  EXPECT_NE(refused.message().find('7'), std::string_view::npos);
  EXPECT_NE(refused.message().find(std::to_string(kProtocolMajor)), std::string_view::npos);
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
  EXPECT_TRUE(soon([&] { return b->peers().empty(); }));
}

TEST(Connect, AnAcceptorOfAnotherMajorIsNamed) {
  const Fd listener = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  const std::string address = MUST(localAddress(listener.get())).toString();
  const Secret secret = Secret::random();
  std::thread other([&] {
    pollfd wanted{listener.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wanted, 1, 20'000), 1);
    const Fd socket = MUST(acceptOne(listener.get()));
    auto handshake = MUST(Handshake::create(Handshake::Role::kAcceptor, speaker(secret, 9)));
    EXPECT_EQ(converse(socket, *handshake).code(), Code::kNotSupported);
  });
  auto a = makeContext();
  const auto refused = a->connect(address, secret.revealText(), kSoon);
  other.join();
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kNotSupported) << refused.status().toString();
  EXPECT_NE(refused.status().message().find('9'), std::string_view::npos);
}

// --- Coming and going ---

TEST(Connect, AHundredTimesLeavesNothingBehind) {
  for (const char* link : {"self", "shm", "tcp"}) {
    auto a = makeContext(withLinks({link}));
    auto b = makeContext(withLinks({link}));
    const std::string ticket = b->ticket();
    const auto meet = [&](int round) {
      const Peer toB = MUST(a->connect(ticket, kSoon));
      const Peer toA = MUST(b->accept(kSoon));
      // Either side may be the one that leaves.
      (round % 2 == 0 ? toB : toA).close();
      ASSERT_TRUE(soon([&] { return a->peers().empty() && b->peers().empty(); }));
    };
    for (int i = 0; i < 10; ++i) meet(i);
    const size_t files = MUST(openFileCount());
    const uint64_t resident = MUST(residentBytes());
    for (int i = 0; i < 100; ++i) meet(i);
    EXPECT_TRUE(soon([&] { return MUST(openFileCount()) <= files; }))
        << link << ": " << MUST(openFileCount()) << " descriptors, before " << files;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(MUST(residentBytes()), resident + (2 << 20)) << link;
#else
    (void)resident;
#endif
  }
}

// Who is gone before it is accepted stays for its messages' sake, and not for ever.
TEST(Connect, PeersThatLeftMessagesAreAccepted) {
  auto a = makeContext();
  auto b = makeContext();
  const auto visit = [&](uint8_t number) {
    const Peer toB = MUST(a->connect(b->ticket(), kSoon));
    if (number != 0) {
      ASSERT_OK(toB.sendMessage(1, std::as_bytes(std::span(&number, 1))));
    }
    ASSERT_TRUE(soon([&] { return b->peers().size() == 1; }));
    toB.close();
    ASSERT_TRUE(soon([&] { return b->peers().empty(); }));
  };
  visit(0);
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout) << "it left nothing";
  constexpr auto kMost = static_cast<uint8_t>(limits::kPeersLeft);
  for (uint8_t i = 1; i <= kMost + 1; ++i) visit(i);
  for (uint8_t i = 2; i <= kMost + 1; ++i) {
    const Peer left = MUST(b->accept(0ms));
    EXPECT_EQ(left.status().code(), Code::kPeerLost);
    EXPECT_EQ(MUST(left.receiveMessage(1, kSoon)).at(0), std::byte{i});
    EXPECT_EQ(left.receiveMessage(1, kSoon).status().code(), Code::kPeerLost);
  }
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout) << "the first one is dropped";
}

// The first to leave is the first to be dropped, and one that is still there comes before them.
TEST(Connect, OneThatStaysIsAcceptedBeforeThoseThatLeft) {
  auto a = makeContext(), stays = makeContext();
  auto b = makeContext();
  const std::byte one[1] = {};
  const Peer first = MUST(a->connect(b->ticket(), kSoon));
  ASSERT_OK(first.sendMessage(1, one));
  ASSERT_TRUE(soon([&] { return b->peers().size() == 1; }));
  const Peer second = MUST(stays->connect(b->ticket(), kSoon));
  ASSERT_TRUE(soon([&] { return b->peers().size() == 2; }));
  first.close();
  ASSERT_TRUE(soon([&] { return b->peers().size() == 1; }));
  EXPECT_EQ(MUST(b->accept(kSoon)).contextId(), stays->id());
  EXPECT_EQ(MUST(b->accept(kSoon)).contextId(), a->id());
}

// Its end may call the context.
TEST(Connect, ACallbackEndsWithoutTheContextsLock) {
  auto a = makeContext();
  auto invitation = std::make_shared<Invitation>(MUST(a->invite()));
  a->onPeer([invitation](const Peer&) {});
  invitation = std::make_shared<Invitation>(MUST(a->invite()));
  a->onPeer([invitation = std::exchange(invitation, nullptr)](const Peer&) {});
  a.reset();
}

TEST(Connect, ContextsComeAndGoToo) {
  auto b = makeContext();
  const auto visit = [&] {
    auto a = makeContext();
    const Peer toB = MUST(a->connect(b->ticket(), kSoon));
    const Peer toA = MUST(b->accept(kSoon));
    a.reset();
    EXPECT_TRUE(soon([&] { return toA.state() == "lost"; }));
    EXPECT_EQ(toB.state(), "closed");
    EXPECT_EQ(toA.status().code(), Code::kPeerLost);
  };
  for (int i = 0; i < 5; ++i) visit();
  const size_t files = MUST(openFileCount());
  for (int i = 0; i < 30; ++i) visit();
  EXPECT_TRUE(soon([&] { return MUST(openFileCount()) <= files; }));
}

TEST(Connect, FromManyThreadsAtOnce) {
  auto b = makeContext();
  constexpr int kThreads = 8;
  std::atomic<int> connected{0};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Context>> contexts;
  for (int i = 0; i < kThreads / 2; ++i) contexts.push_back(makeContext());
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const auto peer = contexts[static_cast<size_t>(i / 2)]->connect(b->ticket(), kSoon);
        EXPECT_OK(peer.status());
        if (peer.isOk()) connected.fetch_add(1);
      }
    });
  for (int i = 0; i < kThreads * 5; ++i) {
    const auto peer = b->accept(kSoon);
    ASSERT_OK(peer.status());
    EXPECT_EQ(peer->state(), "ready");
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected.load(), kThreads * 5);
  EXPECT_EQ(b->peers().size(), static_cast<size_t>(kThreads * 5));
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout);
}

TEST(Connect, ACallbackMayTakeThePeers) {
  auto a = makeContext();
  auto b = makeContext();
  std::atomic<int> called{0};
  std::string seen;
  Status connectedInside;
  b->onPeer([&](const Peer& peer) {
    seen = peer.contextId();
    // A blocking call here would wait for itself: it is refused.
    connectedInside = b->connect(a->ticket(), kSoon).status();
    called.fetch_add(1);
  });
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  EXPECT_TRUE(soon([&] { return called.load() == 1; }));
  EXPECT_EQ(seen, a->id());
  EXPECT_EQ(connectedInside.code(), Code::kInvalidArgument) << connectedInside.toString();
  EXPECT_EQ(b->accept(0ms).status().code(), Code::kTimeout) << "the callback had it";
  b->onPeer(nullptr);
  const Peer again = MUST(a->connect(b->ticket(), kSoon));
  EXPECT_OK(b->accept(kSoon).status());
}

}  // namespace
}  // namespace peerlane
