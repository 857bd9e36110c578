// SPDX-License-Identifier: Apache-2.0
//
// What networks do to connections.
#include <thread>

#include "peerlane/os/socket.h"
#include "tests/network/network_party.h"

namespace peerlane::network {
namespace {

constexpr size_t kMuch = 32 << 20;

class NetworkFaultTest : public NetworkTest {
 protected:
  // Two hosts on one wire. `one` listens at 10.0.0.1:4000.
  void make(const NetworkHost::Role& ofOne, const NetworkHost::Role& ofOther) {
    wire_ = std::make_unique<NetworkWire>();
    one_ = std::make_unique<NetworkHost>(ofOne);
    other_ = std::make_unique<NetworkHost>(ofOther);
    one_->plug(*wire_, {"10.0.0.1/24"});
    other_->plug(*wire_, {"10.0.0.2/24"});
    one_->begin();
    ASSERT_EQ(one_->line().hear(), "listens");
    other_->begin();
  }
  void expectEnds() {
    EXPECT_EQ(other_->end(), "");
    EXPECT_EQ(one_->end(), "");
  }

  std::unique_ptr<NetworkWire> wire_;
  std::unique_ptr<NetworkHost> one_;
  std::unique_ptr<NetworkHost> other_;
};

Config withPeerTimeout(std::chrono::nanoseconds timeout) {
  Config config;
  config.peerTimeout = timeout;
  return config;
}

// The role of `one` in most tests: a peer puts once, and says when to look.
void takeOnePut(const Line& test) {
  test.expect("begin");
  NetworkParty party({"10.0.0.1:4000"});
  test.tell("listens");
  party.accept();
  party.share(kMuch);
  party.hear("look");
  party.expectFilled(1);
  party.say("bye");
}

// What is posted meanwhile goes on afterwards.
TEST_F(NetworkFaultTest, ACutOfFiveSecondsIsSurvived) {
  make(takeOnePut, [](const Line& test) {
    test.expect("begin");
    NetworkParty party;
    party.connect("10.0.0.1:4000");
    party.share(kMuch);
    party.reach();
    party.fill(1);
    test.tell("cut");
    test.expect("is cut");
    const Transfer put = party.put(kMuch);
    test.tell("posted");
    must(put.wait(60s));
    party.say("look");
    party.hear("bye");
  });
  EXPECT_EQ(other_->line().hear(), "cut");
  one_->cut();
  other_->line().tell("is cut");
  EXPECT_EQ(other_->line().hear(), "posted");
  std::this_thread::sleep_for(5s);  // the length of the cut, which is what is tested
  one_->heal();
  expectEnds();
}

// For the side that sends, for the side that waits, and for the one that does neither.
TEST_F(NetworkFaultTest, ACutForEverEndsBothSides) {
  constexpr auto kTimeout = 2s;
  const auto expectLost = [](const NetworkParty& party, std::chrono::nanoseconds within) {
    const auto begun = Clock::now();
    const Result<std::vector<std::byte>> heard = party.peer.receiveMessage(kWords, 30s);
    while (party.peer.status().code() == Code::kPeerSilent && Clock::now() - begun < 30s)
      std::this_thread::sleep_for(10ms);
    require(party.peer.status().code() == Code::kPeerLost, party.peer.status().toString());
    const auto took = Clock::now() - begun;
    require(took < within, "it took " + std::to_string(took.count()) + " ns");
  };
  make(
      [=](const Line& test) {
        test.expect("begin");
        NetworkParty party({"10.0.0.1:4000"}, withPeerTimeout(kTimeout));
        test.tell("listens");
        party.accept();
        party.share(kMuch);
        test.expect("is cut");
        expectLost(party, 15s);  // keep-alive of an idle connection: 4 s at least
      },
      [=](const Line& test) {
        test.expect("begin");
        NetworkParty party({}, withPeerTimeout(kTimeout));
        party.connect("10.0.0.1:4000");
        party.share(kMuch);
        party.reach();
        test.tell("cut");
        test.expect("is cut");
        const Transfer put = party.put(kMuch);
        expectLost(party, 10s);  // sooner: what it sent has no answer
        require(!put.wait(kSoon).isOk() && put.done(), "the put did not end");
      });
  EXPECT_EQ(other_->line().hear(), "cut");
  one_->cut();
  one_->line().tell("is cut");
  other_->line().tell("is cut");
  expectEnds();
}

// The control connection passes, the data connection does not: connect() says so.
TEST_F(NetworkFaultTest, AFilteredDataPortFailsTheConnect) {
  make(
      [](const Line& test) {
        test.expect("begin");
        // What it answers from these ports is lost, as behind a filter.
        run("ip rule add ipproto tcp sport 5000-5009 blackhole");
        Config config;
        config.ports = {5000, 5009};
        config.connectTimeout = 2s;
        NetworkParty party({"10.0.0.1:4000"}, config);
        test.tell("listens");
        test.expect("end");
      },
      [](const Line& test) {
        test.expect("begin");
        Config config;
        config.connectTimeout = 2s;
        NetworkParty party({}, config);
        const auto begun = Clock::now();
        const Status failed = party.context->connect("10.0.0.1:4000", kSecret, kSoon).status();
        require(!failed.isOk(), "connect() said OK");
        require(Clock::now() - begun < 5s, "it took too long");
        // The data connection gives up, and names its port, or the wait for all of it does: both
        // after the same time.
        const bool isNamed = failed.message().find("10.0.0.1:500") != std::string_view::npos ||
                             failed.message().find("waited 2000 ms") != std::string_view::npos;
        require(isNamed && failed.message().find("data connection") != std::string_view::npos,
                failed.toString());
      });
  EXPECT_EQ(other_->end(), "");
  one_->line().tell("end");
  EXPECT_EQ(one_->end(), "");
}

// A process that stands still reads nothing, and its kernel answers all the same: it is silent, not
// lost. What waited for it ends so, and the connection goes on when it does.
TEST_F(NetworkFaultTest, APeerThatStopsReadingIsSilent) {
  make(takeOnePut, [](const Line& test) {
    test.expect("begin");
    NetworkParty party({}, withPeerTimeout(1s));
    party.connect("10.0.0.1:4000");
    party.share(kMuch);
    party.reach();
    party.fill(1);
    test.tell("stop");
    test.expect("has stopped");
    const Transfer put = party.put(kMuch);
    const auto until = Clock::now() + 5s;  // five times the timeout
    while (Clock::now() < until) {
      require(party.peer.state() != "lost", party.peer.status().toString());
      std::this_thread::sleep_for(50ms);
    }
    require(party.peer.state() == "silent", "it is " + party.peer.state());
    test.tell("continue");
    require(put.wait(kSoon).code() == Code::kPeerSilent, put.status().toString());
    while (party.peer.state() == "silent") std::this_thread::sleep_for(10ms);
    must(party.put(kMuch).wait(kSoon));
    party.say("look");
    party.hear("bye");
  });
  EXPECT_EQ(other_->line().hear(), "stop");
  one_->freeze();
  other_->line().tell("has stopped");
  EXPECT_EQ(other_->line().hear(), "continue");
  one_->thaw();
  expectEnds();
}

// Strangers that connect and leave at any point do not keep a peer out.
TEST_F(NetworkFaultTest, AThousandConnectionsAreDroppedHalfWay) {
  make(
      [](const Line& test) {
        test.expect("begin");
        Config config;
        config.ports = {5000, 5000};  // data, whichever port control has
        NetworkParty party({"10.0.0.1:4000"}, config);
        test.tell("listens");
        for (int i = 0; i < 2; ++i) {
          party.accept();
          party.share(4096);
          party.hear("look");
          party.expectFilled(1);
          party.say("bye");
          party.hear("bye");
        }
      },
      [](const Line& test) {
        test.expect("begin");
        const auto visit = [] {
          NetworkParty party;
          party.connect("10.0.0.1:4000");
          party.share(4096);
          party.fill(1);
          must(party.put(4096).wait(kSoon));
          party.say("look");
          party.hear("bye");
          party.say("bye");
        };
        visit();  // from now on there is a data listener
        const std::vector<std::byte> noise(200, std::byte{0x55});
        for (int i = 0; i < 1000; ++i) {
          const uint16_t port = i % 2 == 0 ? 4000 : 5000;
          const Fd socket = must(connectStart(must(SocketAddress::fromIp("10.0.0.1", port))));
          while (connectResult(socket.get()).code() == Code::kTryAgain) std::this_thread::yield();
          (void)sendSome(socket.get(), std::span(noise).first(static_cast<size_t>(i) % 100));
        }
        visit();
      });
  expectEnds();
}

}  // namespace
}  // namespace peerlane::network
