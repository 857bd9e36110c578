// SPDX-License-Identifier: Apache-2.0
//
// Two hosts that have nothing in common but a network.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tests/network/network_party.h"
#include "tests/os/child_process.h"

namespace peerlane::network {
namespace {

// Bytes that an interface of this host has taken in.
uint64_t received(const std::string& interface) {
  std::ifstream table("/proc/net/dev");
  std::string line;
  while (std::getline(table, line)) {
    const size_t colon = line.find(interface + ":");
    if (colon != std::string::npos) return std::stoull(line.substr(colon + interface.size() + 1));
  }
  throw HostFailure("no interface " + interface);
}

// The listener's side of an exchange in both directions; then the connecting side's.
void serve(NetworkParty& party, size_t bytes) {
  party.accept();
  party.share(bytes);
  party.hear("look");
  party.expectFilled(1);
  party.fill(2);
  must(party.put(bytes).wait(kSoon));
  party.say("look");
  party.hear("bye");
}

void exchange(NetworkParty& party, size_t bytes) {
  party.share(bytes);
  party.fill(1);
  must(party.put(bytes).wait(kSoon));
  party.say("look");
  party.hear("look");
  party.expectFilled(2);
  party.say("bye");
}

constexpr size_t kMuch = 3 << 20;

void expectBothEnd(NetworkHost& one, NetworkHost& other) {
  one.begin();
  EXPECT_EQ(one.line().hear(), "listens");
  other.begin();
  EXPECT_EQ(other.end(), "");
  EXPECT_EQ(one.end(), "");
}

NetworkHost::Role listener(const std::vector<std::string>& at, size_t bytes) {
  return [at, bytes](const Line& test) {
    test.expect("begin");
    NetworkParty party(at);
    test.tell("listens");
    serve(party, bytes);
  };
}

NetworkHost::Role visitor(const std::string& address, size_t bytes) {
  return [address, bytes](const Line& test) {
    test.expect("begin");
    NetworkParty party;
    party.connect(address);
    exchange(party, bytes);
  };
}

void expectExchange(const std::string& listen, const std::string& ofOne,
                    const std::string& ofOther) {
  const NetworkWire wire;
  NetworkHost one(listener({listen}, kMuch));
  NetworkHost other(visitor(listen, kMuch));
  one.plug(wire, {ofOne});
  other.plug(wire, {ofOther});
  expectBothEnd(one, other);
}

TEST_F(NetworkTest, HostsExchangeOverIpv4) {
  expectExchange("10.0.0.1:4000", "10.0.0.1/24", "10.0.0.2/24");
}

TEST_F(NetworkTest, HostsExchangeOverIpv6) {
  expectExchange("[fd00::1]:4000", "fd00::1/64", "fd00::2/64");
}

// Data comes in where control does, and over no other interface.
TEST_F(NetworkTest, DataTakesTheInterfaceThatWasChosen) {
  const NetworkWire slow;
  const NetworkWire fast;
  NetworkHost one([](const Line& test) {
    test.expect("begin");
    NetworkParty party({"eth1:10.0.1.1:4000"});
    test.tell("listens");
    serve(party, kMuch);
    require(received("eth1") > kMuch, "the bytes did not come over eth1");
    require(received("eth0") < kMuch / 100, "they came over eth0");
  });
  NetworkHost other(visitor("10.0.1.1:4000", kMuch));
  for (NetworkHost* host : {&one, &other}) {
    const std::string last = host == &one ? ".1/24" : ".2/24";
    host->plug(slow, {"10.0.0" + last});
    host->plug(fast, {"10.0.1" + last});
  }
  expectBothEnd(one, other);
}

// Of three addresses in the ticket two are dead: one swallows what is sent there, one has nobody
// who answers for it.
TEST_F(NetworkTest, ATicketWithDeadAddressesConnects) {
  const NetworkWire wires[3];
  NetworkHost one([](const Line& test) {
    test.expect("begin");
    NetworkParty party({"10.0.0.1:4000", "10.0.1.1:4000", "10.0.2.1:4000"});
    test.tell(party.context->ticket());
    serve(party, 4096);
  });
  NetworkHost other([](const Line& test) {
    const std::string ticket = test.hear();
    NetworkParty party;
    const auto begun = Clock::now();
    party.connectBy(ticket);
    require(Clock::now() - begun < 5s, "the dead addresses took too long");
    exchange(party, 4096);
  });
  for (size_t i = 0; i < 3; ++i) {
    const std::string net = "10.0." + std::to_string(i);
    one.plug(wires[i], {net + ".1/24"});
    if (i != 1) other.plug(wires[i], {net + ".2/24"});
  }
  other.cut(0);
  one.begin();
  other.line().tell(one.line().hear());
  EXPECT_EQ(other.end(), "");
  EXPECT_EQ(one.end(), "");
}

// Two containers of one host: without a common folder they meet over the network, and each is told
// what would change that; with one they share memory.
TEST_F(NetworkTest, NetworksOfOneHostShareMemoryInACommonFolder) {
  std::string folder = (std::filesystem::temp_directory_path() / "peerlane-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const bool isCommon : {false, true}) {
    SCOPED_TRACE(isCommon);
    const NetworkWire wire;
    Config config;
    if (isCommon) config.socketDirectory = folder;
    const auto expectLink = [isCommon](const Peer& peer) {
      const Route route = peer.route();
      require(route.link == (isCommon ? "shm" : "tcp"), "the link is " + route.link);
      std::string refused;
      for (const std::string& each : route.refused) refused += each + "\n";
      require(isCommon || refused.find("link shm: the peer was not reached by a Unix socket; it is "
                                       "on this host, in another network namespace: set "
                                       "PEERLANE_SOCKET_DIR to a folder that both see") !=
                              std::string::npos,
              refused);
    };
    NetworkHost one([config, expectLink](const Line& test) {
      test.expect("begin");
      const auto context = must(Context::create({config, {"10.0.0.1:4000"}, ""}));
      test.tell(context->ticket());
      const Peer peer = must(context->accept(kSoon));
      expectLink(peer);
      must(peer.receiveMessage(kWords, kSoon));
    });
    NetworkHost other([config, expectLink](const Line& test) {
      const std::string ticket = test.hear();
      const auto context = must(Context::create({config, {}, ""}));
      const Peer peer = must(context->connect(ticket, kSoon));
      expectLink(peer);
      must(peer.sendMessage(kWords, bytesOf("bye"), kSoon));
      (void)peer.receiveMessage(kWords, kSoon);  // until the other one has gone
    });
    one.plug(wire, {"10.0.0.1/24"});
    other.plug(wire, {"10.0.0.2/24"});
    one.begin();
    other.line().tell(one.line().hear());
    EXPECT_EQ(other.end(), "");
    EXPECT_EQ(one.end(), "");
  }
  std::filesystem::remove_all(folder);
}

// Frames larger than the wire takes from now on are in flight when that changes.
TEST_F(NetworkTest, TheMtuMayChange) {
  const NetworkWire wire;
  NetworkHost one([](const Line& test) {
    test.expect("begin");
    NetworkParty party({"10.0.0.1:4000"});
    test.tell("listens");
    party.accept();
    party.share(kMuch);
    for (uint64_t round = 1; round <= 3; ++round) {
      party.hear("look");
      party.expectFilled(round);
      party.say("seen");
    }
    party.hear("bye");
  });
  NetworkHost other([](const Line& test) {
    test.expect("begin");
    NetworkParty party;
    party.connect("10.0.0.1:4000");
    party.share(kMuch);
    uint64_t round = 0;
    for (const char* mtu : {"9000", "1280", "1500"}) {
      party.fill(++round);
      const Transfer put = party.put(kMuch);
      run(std::string("ip link set eth0 mtu ") + mtu);
      must(put.wait(kSoon));
      party.say("look");
      party.hear("seen");
    }
    party.say("bye");
  });
  one.plug(wire, {"10.0.0.1/24"});
  other.plug(wire, {"10.0.0.2/24"});
  expectBothEnd(one, other);
}

// The example as two programs, each with the interface, the address and its rank.
TEST_F(NetworkTest, TwoInstancesOfAnExampleMeet) {
  const NetworkWire wire;
  const auto instance = [](const char* rank) {
    const std::string program = child::besideThis("example_05_port_bidirectional");
    return [command = program + " eth0:10.0.0.1:4000 " + rank](const Line& test) {
      test.expect("begin");
      run(command);
    };
  };
  NetworkHost one(instance("0"));
  NetworkHost other(instance("1"));
  one.plug(wire, {"10.0.0.1/24"});
  other.plug(wire, {"10.0.0.2/24"});
  one.begin();
  other.begin();
  EXPECT_EQ(other.end(), "");
  EXPECT_EQ(one.end(), "");
}

// A figure, not a gate: from connect() to the first byte there and acknowledged.
TEST_F(NetworkTest, ConnectingTakesAMoment) {
  constexpr int kTimes = 21;
  const NetworkWire wire;
  NetworkHost one([](const Line& test) {
    test.expect("begin");
    NetworkParty party({"10.0.0.1:4000"});
    test.tell("listens");
    for (int i = 0; i < kTimes; ++i) serve(party, 4096);
  });
  NetworkHost other([](const Line& test) {
    test.expect("begin");
    std::vector<double> micros;
    for (int i = 0; i < kTimes; ++i) {
      NetworkParty party;
      const auto begun = Clock::now();
      party.connect("10.0.0.1:4000");
      party.share(4096);
      party.fill(1);
      must(party.put(1).wait(kSoon));
      micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
      must(party.put(4096).wait(kSoon));
      party.say("look");
      party.hear("look");
      party.say("bye");
    }
    std::ranges::nth_element(micros, micros.begin() + kTimes / 2);
    test.tell(std::to_string(static_cast<int>(micros[kTimes / 2])));
  });
  one.plug(wire, {"10.0.0.1/24"});
  other.plug(wire, {"10.0.0.2/24"});
  one.begin();
  EXPECT_EQ(one.line().hear(), "listens");
  other.begin();
  const std::string median = other.line().hear();
  RecordProperty("connect_to_first_byte_us", median);
  std::printf("connect to first byte: %s us (p50 of %d)\n", median.c_str(), kTimes);
  EXPECT_EQ(other.end(), "");
  EXPECT_EQ(one.end(), "");
}

}  // namespace
}  // namespace peerlane::network
