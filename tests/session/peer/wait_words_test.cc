// SPDX-License-Identifier: Apache-2.0
//
// What timeouts and dumps say: of every call that waits, for what, of whom, how long, and the last
// known cause; of every thing that came and that nobody took, how many.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <future>

#include "peerlane/os/process.h"
#include "peerlane/os/socket.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/wire/ticket.h"
#include "tests/os/open_files.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

testing::AssertionResult says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
  return testing::AssertionSuccess();
}

// Of what may be asked again: words that need a turn of the progress thread are left out where that
// thread is off the processor within another one.
template <typename Text>
testing::AssertionResult eventuallySays(const Text& text, const std::vector<std::string>& parts) {
  std::string last;
  (void)soon([&] {
    last = text();
    return bool(says(last, parts));
  });
  return says(last, parts);
}

class WaitWords : public testing::Test {
 protected:
  WaitWords() : toB(MUST(a->connect(b->ticket(), kSoon))), toA(MUST(b->accept(kSoon))) {}
  // The same process: no address, and its own number.
  const std::string us = "peer 1 (process " + std::to_string(getpid()) + ")";
  std::unique_ptr<Context> a = makeContext();
  std::unique_ptr<Context> b = makeContext();
  Peer toB;
  Peer toA;
};

TEST_F(WaitWords, AcceptSaysThatTheContextDoesNotListen) {
  EXPECT_TRUE(eventuallySays(
      [&] { return b->accept(20ms).status().toString(); },
      {"Timeout: waited ", " ms for a peer to connect here", "this context does not listen",
       "ContextOptions::listen", "unix:@peerlane-" + b->id()}));
  auto open = makeContext({}, {"127.0.0.1:0"});
  const std::string address = open->addresses().back();
  std::string text;
  EXPECT_TRUE(eventuallySays([&] { return text = open->accept(1ms).status().toString(); },
                             {"it can be reached at", address}));
  EXPECT_FALSE(says(text, {"does not listen"}));
}

TEST_F(WaitWords, AcceptTellsWhyTheLastGuestWasTurnedAway) {
  auto open = makeContext({}, {"127.0.0.1:0"});
  const std::string secret(64, 'b');
  EXPECT_EQ(a->connect(open->addresses().back(), secret, kSoon).status().code(),
            Code::kPermissionDenied);
  EXPECT_TRUE(
      eventuallySays([&] { return open->accept(1ms).status().toString(); },
                     {"the last one that came, ", " ago, was turned away: PermissionDenied"}));
}

TEST_F(WaitWords, AnInvitationNamesItsTicket) {
  Invitation invitation = MUST(a->invite());
  EXPECT_TRUE(eventuallySays([&] { return invitation.accept(1ms).status().toString(); },
                             {"for a peer to connect with the ticket of an invitation"}));
}

TEST_F(WaitWords, ATimeoutSaysHowLongThePeerHasBeenSilent) {
  Config config;
  config.heartbeat = 50ms;
  config.peerTimeout = 10min;
  const auto here = makeContext(config), there = makeContext(config);
  const Peer toThere = MUST(here->connect(there->ticket(), kSoon));
  const Peer toHere = MUST(there->accept(kSoon));
  const auto waitsInVain = [&] {
    const std::string text = toThere.receiveMessage(9, 1ms).status().toString();
    return bool(says(text, {"for a message on channel 9 of peer 1", " (nothing heard of it for "}));
  };
  std::promise<void> goOn;
  toHere.core()->progress().post([stand = goOn.get_future().share()] { stand.wait(); });
  EXPECT_TRUE(soon(waitsInVain));
  goOn.set_value();
  EXPECT_TRUE(soon([&] { return !waitsInVain(); }));
}

TEST_F(WaitWords, MessagesNotificationsAndSignals) {
  EXPECT_TRUE(eventuallySays([&] { return toA.receiveMessage(9, 20ms).status().toString(); },
                             {"Timeout: waited ", " ms for a message on channel 9 of " + us}));
  EXPECT_TRUE(eventuallySays([&] { return waitNotification(toA, 20ms).status().toString(); },
                             {"Timeout: waited ", " ms for a notification of " + us}));
  EXPECT_OK(MUST(addSignal(toB, 7, 4)).wait(kSoon));
  const Signal signal = MUST(Signal::create(toA, 7));
  EXPECT_OK(signal.wait(4, kSoon));
  EXPECT_TRUE(
      eventuallySays([&] { return signal.wait(5, 20ms).toString(); },
                     {"Timeout: waited ", " ms for signal 7 of " + us + " to reach 5; it is 4"}));
}

TEST_F(WaitWords, ATransferAndAFlushNameWhatIsUnderWay) {
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < slab::kNotifySlots; ++i) EXPECT_OK(MUST(notify(toB, what)).wait(kSoon));
  const Transfer stuck = MUST(notify(toB, what));
  const std::vector<std::string> why = {"notify op ", "the peer has 16 notifications that it did",
                                        "waitNotification"};
  EXPECT_TRUE(eventuallySays([&] { return stuck.wait(20ms).toString(); },
                             {"Timeout: waited ", "for this to end: transfer to " + us}));
  EXPECT_TRUE(eventuallySays([&] { return stuck.wait(1ms).toString(); }, why));
  EXPECT_TRUE(eventuallySays([&] { return flush(toB, 1ms).toString(); },
                             {"for 1 transfers to " + us + " to end"}));
  EXPECT_TRUE(eventuallySays([&] { return a->dump(); }, why));
  EXPECT_TRUE(says(b->dump(), {"16 notifications not taken", "the peer's next one waits"}));
  for (uint32_t i = 0; i <= slab::kNotifySlots; ++i)
    EXPECT_OK(waitNotification(toA, kSoon).status());
  EXPECT_OK(stuck.wait(kSoon));
  EXPECT_FALSE(says(b->dump(), {"notifications not taken"}));
}

TEST_F(WaitWords, ATransferOnAHostStreamIsShownWhileItIsBlocked) {
  const auto stream = MUST(HostStream::create());
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < slab::kNotifySlots; ++i) EXPECT_OK(MUST(notify(toB, what)).wait(kSoon));
  const Transfer stuck = MUST(notify(toB, what, stream.get()));
  EXPECT_TRUE(eventuallySays([&] { return stuck.wait(1ms).toString(); },
                             {"transfer to " + us, "on a host stream"}));
  EXPECT_TRUE(eventuallySays([&] { return a->dump(); },
                             {"for this to go on: transfer to " + us, "the peer has 16"}));
  stuck.cancel();
  EXPECT_EQ(stuck.wait(kSoon).code(), Code::kCancelled);
}

TEST_F(WaitWords, UnregisterNamesWhoHasTheRegion) {
  const Region region = MUST(b->allocate(4096));
  const RemoteRegion remote = MUST(toB.importRegion(region.share()));
  ASSERT_OK(remote.prepare(kSoon));
  // A transfer that cannot end keeps the importer from letting go.
  const Region local = MUST(a->allocate(4096));
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < slab::kNotifySlots; ++i) EXPECT_OK(MUST(notify(toB, what)).wait(kSoon));
  const Block block{&local, 0, &remote, 0, 64};
  PostOptions options;
  options.notify = what;
  const Transfer stuck = MUST(put(toB, {&block, 1}, options));
  EXPECT_TRUE(eventuallySays(
      [&] { return b->unregister(region, 20ms).toString(); },
      {"Timeout: waited ", " ms for region ",
       "(4096 bytes) to be let go of: ", "1 peers have it imported: " + us + " ready"}));
  EXPECT_TRUE(
      eventuallySays([&] { return a->unregister(local, 1ms).toString(); }, {"1 transfers use it"}));
  stuck.cancel();
  EXPECT_EQ(stuck.wait(kSoon).code(), Code::kCancelled);
  EXPECT_OK(b->unregister(region, kSoon));
}

TEST_F(WaitWords, MessagesNobodyReceivedAreShown) {
  for (int i = 0; i < 3; ++i) EXPECT_OK(toB.sendMessage(9, {}));
  EXPECT_TRUE(eventuallySays([&] { return b->dump(); }, {"3 messages not received on channel 9"}));
  for (int i = 0; i < 3; ++i) EXPECT_OK(toA.receiveMessage(9, kSoon).status());
  EXPECT_FALSE(says(b->dump(), {"messages not received"}));
}

TEST_F(WaitWords, PeersNobodyAcceptedAreShown) {
  const Peer another = MUST(a->connect(b->ticket(), kSoon));
  // Whoever connects may know before who is connected to.
  EXPECT_TRUE(
      eventuallySays([&] { return b->dump(); }, {"1 peers connected and not taken (accept)"}));
}

// Each in a thread of its own, all asleep at once.
TEST_F(WaitWords, ADumpShowsEveryThreadThatWaits) {
  const Region region = MUST(b->allocate(4096));
  std::atomic<int> thread{0};
  std::vector<std::future<void>> waiting;
  const auto begin = [&](auto&& call) { waiting.push_back(std::async(std::launch::async, call)); };
  begin([&] { EXPECT_OK(b->accept(kSoon).status()); });
  begin([&] { EXPECT_OK(toA.receiveMessage(9, kSoon).status()); });
  begin([&] { EXPECT_OK(waitNotification(toA, kSoon).status()); });
  begin([&] {
    thread = static_cast<int>(syscall(SYS_gettid));
    EXPECT_OK(MUST(Signal::create(toA, 3)).wait(1, kSoon));
  });
  std::string text;
  EXPECT_TRUE(eventuallySays([&] { return text = b->dump(); }, {"waiting: 4"}));
  EXPECT_TRUE(says(text, {"(at most 20.0 s) for a peer to connect here",
                          ") for a message on channel 9 of " + us, ") for a notification of " + us,
                          "thread " + std::to_string(thread.load()) + " has waited ",
                          ") for signal 3 of " + us + " to reach 1; it is 0"}));
  const Peer another = MUST(a->connect(b->ticket(), kSoon));
  EXPECT_OK(toB.sendMessage(9, {}));
  Notify what;
  what.message = std::span<const std::byte>();
  EXPECT_OK(MUST(notify(toB, what)).wait(kSoon));
  EXPECT_OK(MUST(addSignal(toB, 3)).wait(kSoon));
  for (auto& each : waiting) each.get();
  EXPECT_TRUE(eventuallySays([&] { return b->dump(); }, {"waiting: 0"}));
}

TEST_F(WaitWords, AConnectNamesItsAddressesAndTheLastCause) {
  Fd silent = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  const std::string address = MUST(localAddress(silent.get())).toString();
  Ticket ticket = MUST(Ticket::decode(b->ticket()));
  ticket.addresses = {"127.0.0.1:1", address};
  const std::string text = MUST(ticket.encode());
  const std::string whom = "context " + b->id() + " to answer";
  EXPECT_TRUE(eventuallySays([&] { return a->connect(text, 900ms).status().toString(); },
                             {"Timeout: waited ", " ms for " + whom + "; 127.0.0.1:1: connect",
                              address + ": nobody there showed that he knows the secret"}));
  auto connecting =
      std::async(std::launch::async, [&] { return a->connect(text, kSoon).status(); });
  EXPECT_TRUE(eventuallySays([&] { return a->dump(); },
                             {" (at most 20.0 s) for " + whom + " at 127.0.0.1:1, " + address +
                              "; last: 127.0.0.1:1: connect"}));
  silent.reset();
  EXPECT_TRUE(says(connecting.get().toString(), {"Unavailable: no address of context " + b->id()}));
}

// One that spins for longer than anybody would look.
TEST(WaitWordsOfSpinners, AreInTheDump) {
  Config restless;
  restless.spin = 60s;
  auto a = makeContext(restless);
  auto b = makeContext();
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Peer toA = MUST(b->accept(kSoon));
  auto waiting = std::async(std::launch::async,
                            [&] { EXPECT_OK(MUST(Signal::create(toB, 3)).wait(1, kSoon)); });
  EXPECT_TRUE(eventuallySays([&] { return a->dump(); },
                             {"waiting: 1", ") for signal 3 of peer 1", " to reach 1; it is 0"}));
  EXPECT_OK(MUST(addSignal(toA, 3)).wait(kSoon));
  waiting.get();
  EXPECT_TRUE(eventuallySays([&] { return a->dump(); }, {"waiting: 0"}));
}

// --- Other sentences that a caller meets first ---

TEST_F(WaitWords, AContextIsNotItsOwnPeer) {
  const Status own = a->connect(a->ticket(), kSoon).status();
  EXPECT_EQ(own.code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(own.toString(), {"a context cannot be its own peer"}));
}

TEST_F(WaitWords, AGoodbyeHasOneVoice) {
  toB.close();
  ASSERT_TRUE(soon([&] { return !toA.status().isOk(); }));
  EXPECT_EQ(toA.status().message(), "peer 1: the peer closed the connection");
}

TEST_F(WaitWords, ABadAddressIsNamedOnce) {
  const Status bad = Context::create({Config(), {"300.1.1.1:1"}, ""}).status();
  EXPECT_EQ(bad.code(), Code::kInvalidArgument);
  const std::string text = bad.toString();
  EXPECT_TRUE(says(text, {"\"300.1.1.1\" is neither an IPv4 nor an IPv6 address", "name:PORT",
                          "eth0:1.2.3.4:PORT"}));
  EXPECT_EQ(text.find("accepted are"), text.rfind("accepted are")) << text;
}

TEST_F(WaitWords, BlocksThatOverlapAreNamedByTheirPlaces) {
  const Region region = MUST(b->allocate(4096));
  const RemoteRegion remote = MUST(toB.importRegion(region.share()));
  const Region local = MUST(a->allocate(4096));
  const std::vector<Block> blocks = {
      {&local, 0, &remote, 1000, 10}, {&local, 10, &remote, 0, 100}, {&local, 200, &remote, 50, 7}};
  EXPECT_TRUE(says(put(toB, blocks).status().toString(),
                   {"blocks 1 and 2 of the list (from 0) overlap at their destination"}));
}

// With what its descriptors are spent on, counted here. Two sides in one process need two fewer
// each: neither watches the other's /proc/PID/mem, and they share those of their slabs.
TEST_F(WaitWords, AProcessWithoutDescriptorsIsToldWhatToRaise) {
  const auto guest = makeContext(withLinks({"shm"}));
  const auto host = makeContext(withLinks({"shm"}));
  size_t before = MUST(openFileCount());
  const auto more = [&] { return MUST(openFileCount()) - before; };
  const Peer toHost = MUST(guest->connect(host->ticket(), kSoon));
  const Peer toGuest = MUST(host->accept(kSoon));
  EXPECT_TRUE(soon([&] { return more() == 2 * (10 - 2); })) << more();
  before = MUST(openFileCount());
  const Region region = MUST(host->allocate(4096));
  EXPECT_EQ(more(), 1u);
  const RemoteRegion remote = MUST(toHost.importRegion(region.share()));
  ASSERT_OK(remote.prepare(kSoon));
  // A descriptor that was sent is open twice for a moment. Then the two contexts of this process
  // share it; in another process it is one.
  EXPECT_TRUE(soon([&] { return more() == 1u; })) << more();
  EXPECT_TRUE(says(Status::system(EMFILE, "eventfd").toString(),
                   {"ulimit -n", "a peer on this host takes about 10 descriptors",
                    "memory of Context::allocate 1, an import of it 1"}));
}

}  // namespace
}  // namespace peerlane
