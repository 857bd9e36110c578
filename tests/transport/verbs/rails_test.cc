// SPDX-License-Identifier: Apache-2.0
//
// Contexts with links over several NICs: which ones are taken, which one carries what, and what
// becomes of all that when one of them dies.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "peerlane/os/verbs/verbs_library.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/transport/all_transports.h"
#include "peerlane/transport/transport_list.h"
#include "peerlane/transport/verbs/verbs_transport.h"
#include "tests/channel/context_pair.h"
#include "tests/core/quiet_log.h"
#include "tests/transport/verbs/verbs_side.h"

namespace peerlane {
namespace {

// Contexts that are made while it lives find themselves nearest to the first device when they
// choose, and to the second from then on, as if their thread had moved to another NUMA node.
class MovedContexts {
 public:
  MovedContexts() {
    (void)allowsNetwork(Config());  // the library's own are listed
    for (const TransportEntry& each : transportEntries())
      if (each.name == "verbs") before_ = each;
    replaceBy({"verbs", before_.place, before_.scope, [](const Config& config, const auto& gpus) {
                 return makeVerbsTransports(config, gpus, rankOfMoved());
               }});
  }
  ~MovedContexts() { replaceBy(before_); }
  MovedContexts(const MovedContexts&) = delete;
  MovedContexts& operator=(const MovedContexts&) = delete;

 private:
  static RankRdma rankOfMoved() {
    return
        [hasMoved = false](const MemorySite&, const std::vector<RdmaCandidate>& devices) mutable {
          std::vector<RankedRdmaDevice> order;
          for (size_t i = 0; i < devices.size(); ++i) {
            const size_t index = hasMoved ? devices.size() - 1 - i : i;
            order.push_back({index, static_cast<uint32_t>(i), std::to_string(i) + " steps away"});
          }
          hasMoved = true;
          return Result<std::vector<RankedRdmaDevice>>(std::move(order));
        };
  }
  static void replaceBy(TransportEntry entry) {
    removeTransport("verbs");
    addTransport(std::move(entry));
  }
  TransportEntry before_;
};

// The software HCA has these settings from now on.
class Environment {
 public:
  explicit Environment(HcaSettings settings) : settings_(std::move(settings)) {
    for (const auto& [name, value] : settings_)
      ::setenv(("SOFTWARE_HCA_" + name).c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : settings_) ::unsetenv(("SOFTWARE_HCA_" + name).c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const HcaSettings settings_;
};

const HcaSettings kTwoDevices{{"DEVICES", "sw0,sw1"}};

Config configWith(uint8_t nics) {
  Config config = Config::fromEnvironment().value();
  config.links = {"verbs"};
  config.strict = true;
  config.ibNics = nics;
  config.ibTimeout = 20;  // 4.3 s: no pair may fail, however busy the machine is
  config.ibRetry = 6;
  return config;
}

HcaSettings reordering(const char* order) {
  HcaSettings settings = kTwoDevices;
  settings.insert({{"ORDER", order}, {"SEED", "5"}, {"WINDOW_US", "300"}, {"ACK", "received"}});
  return settings;
}

uint64_t bytesOver(const Context& context, const std::string& link, const char* direction) {
  const std::string metrics = context.metrics();
  uint64_t bytes = 0;
  for (size_t at = 0; (at = metrics.find("link=\"" + link + "\"", at)) != std::string::npos; ++at) {
    const std::string line = metrics.substr(at, metrics.find('\n', at) - at);
    if (line.find("\"" + std::string(direction) + "\"") != std::string::npos)
      bytes += std::stoull(line.substr(line.rfind(' ') + 1));
  }
  return bytes;
}

std::vector<std::string> linksOf(const Peer& peer) {
  std::vector<std::string> names;
  for (const Link* link : peer.core()->links().live()) names.push_back(link->traits().transport);
  return names;
}
using Names = std::vector<std::string>;

class Rails : public testing::Test {
 protected:
  void join(const Config& forA, const Config& forB) {
    pair_.emplace(forA, forB);
    near_.emplace(*pair_->a, kBytes, false, Access::kRemoteReadWrite, 1);
    far_.emplace(*pair_->b, kBytes, false, Access::kRemoteReadWrite, 2);
    remote_ = far_->importedBy(pair_->toB);
  }
  Transfer putAll(const PostOptions& options = {}) {
    const Block block{&near_->region(), 0, &remote_, 0, kBytes};
    return MUST(put(pair_->toB, std::span(&block, 1), options));
  }
  void fillNear(uint64_t seed) {
    for (size_t i = 0; i < kBytes; ++i)
      near_->data()[i] = static_cast<std::byte>((i * 7 + i / 251 + seed * 53) & 0xff);
    std::memcpy(near_->shadow(), near_->data(), kBytes);
  }
  // The far memory is as near's, each byte of it, and nothing beside it.
  testing::AssertionResult hasArrived() {
    std::memcpy(far_->shadow(), near_->shadow(), kBytes);
    return far_->isAsExpected();
  }
  // Puts with a word, one after the other: what the word tells of is whole when it is seen.
  void expectWordsAfterData(int rounds) {
    const Signal signal = MUST(Signal::create(pair_->toA, 3));
    for (int round = 1; round <= rounds; ++round) {
      fillNear(static_cast<uint64_t>(round));
      PostOptions options;
      options.notify.signal = 3;
      const char text[] = "there";
      if (round % 2 == 0) options.notify.message = std::as_bytes(std::span(text));
      const Transfer sent = putAll(options);
      ASSERT_OK(signal.wait(static_cast<uint64_t>(round), kSoon));
      ASSERT_TRUE(hasArrived()) << "round " << round;
      if (round % 2 == 0) {
        ASSERT_OK(waitNotification(pair_->toA, kSoon).status());
      }
      ASSERT_OK(sent.wait(kSoon));
    }
  }

  static constexpr size_t kBytes = 60'000;
  std::optional<ContextPair> pair_;
  std::optional<TestMemory> near_, far_;
  RemoteRegion remote_;
};

TEST_F(Rails, TransfersTakeTheNearestAndSayWhy) {
  const Environment devices(kTwoDevices);
  const MovedContexts moved;
  join(configWith(2), configWith(2));
  for (const Peer& peer : {pair_->toA, pair_->toB})
    EXPECT_EQ(linksOf(peer), (Names{"verbs", "verbs.2"}));
  const MemoryRoute route = pair_->toB.routeOf(remote_, near_->region());
  EXPECT_EQ(route.link, "verbs.2");
  EXPECT_EQ(route.nearness, "0 steps away");
  ASSERT_FALSE(route.refused.empty());
  EXPECT_EQ(route.refused.front(), "verbs: sw0:1 is farther: 1 steps away");
  const Route all = pair_->toB.route();
  EXPECT_EQ(all.link, "verbs") << "it carries the words";
  ASSERT_EQ(all.rails.size(), 2u);
  EXPECT_TRUE(all.rails[0].starts_with("verbs over sw0:1 at ")) << all.rails[0];
  EXPECT_TRUE(all.rails[0].ends_with(": 1 steps away")) << all.rails[0];
  EXPECT_TRUE(all.rails[1].starts_with("verbs.2 over sw1:1 at ")) << all.rails[1];
  EXPECT_NE(all.toString().find("by distance:               verbs.2 over"), std::string::npos)
      << all.toString();

  fillNear(3);
  ASSERT_OK(putAll().wait(kSoon));
  EXPECT_TRUE(hasArrived());
  std::memset(near_->data(), 0, kBytes);
  const Block block{&near_->region(), 0, &remote_, 0, kBytes};
  ASSERT_OK(MUST(get(pair_->toB, std::span(&block, 1))).wait(kSoon));
  EXPECT_TRUE(near_->isAsExpected());
  for (const char* direction : {"put", "get"}) {
    EXPECT_EQ(bytesOver(*pair_->a, "verbs.2", direction), kBytes) << direction;
    EXPECT_EQ(bytesOver(*pair_->a, "verbs", direction), 0u) << direction;
  }
}

// The owner registers a region with the NIC over which it is used, and not with the others.
TEST_F(Rails, ARegionIsImportedOverTheRailThatIsUsed) {
  const Environment devices(kTwoDevices);
  const MovedContexts moved;
  join(configWith(2), configWith(2));
  const auto& imports = pair_->toB.core()->imports();
  const RegionReference& reference = remote_.reference();
  ASSERT_OK(remote_.prepare(kSoon));
  ASSERT_OK(putAll().wait(kSoon));
  const auto imported = imports.all(reference.allocation, reference.generation);
  ASSERT_EQ(imported.size(), 1u);
  EXPECT_EQ(imported.front()->memory.agent, pair_->toB.core()->links().named("verbs.2"));
}

// Where it is used over both, it is taken back from both.
TEST_F(Rails, ARegionThatIsImportedTwiceIsTakenBackTwice) {
  const Environment devices(kTwoDevices);
  const MovedContexts moved;
  join(configWith(2), configWith(2));
  PeerCore& peer = *pair_->toB.core();
  std::vector<std::shared_ptr<ImportSlot>> slots;
  for (const char* name : {"verbs", "verbs.2"}) {
    const Link* const link = peer.links().named(name);
    const auto slot = ImportSlot::current(remote_.slot(), link);
    peer.imports().request(remote_.reference(), slot);
    const auto isThere = [&] { return slot->state == ImportSlot::State::kReady; };
    ASSERT_OK(peer.progress().wait(isThere, kSoon));
    EXPECT_EQ(slot->region->memory.agent, link) << name;
    EXPECT_EQ(ImportSlot::current(remote_.slot(), link), slot) << "it is asked for once";
    slots.push_back(slot);
  }
  EXPECT_NE(slots[0]->region, slots[1]->region);
  ASSERT_OK(pair_->b->unregister(far_->releaseRegion(), kSoon));
  for (const auto& slot : slots) EXPECT_FALSE(slot->region->gate.enter());
}

// Of as near ones the first is taken; there is one rail where nothing else was asked for.
TEST_F(Rails, WithoutDistancesTheFirstCarriesAll) {
  const Environment devices(kTwoDevices);
  join(configWith(2), configWith(2));
  const MemoryRoute route = pair_->toB.routeOf(remote_, near_->region());
  EXPECT_EQ(route.link, "verbs");
  ASSERT_FALSE(route.refused.empty());
  EXPECT_EQ(route.refused.front(), "verbs.2: sw1:1 is no nearer: no known place");
  fillNear(4);
  ASSERT_OK(putAll().wait(kSoon));
  EXPECT_TRUE(hasArrived());
  EXPECT_EQ(bytesOver(*pair_->a, "verbs", "put"), kBytes);
  ContextPair byItself(configWith(0));
  EXPECT_EQ(linksOf(byItself.toB), (Names{"verbs"}));
  EXPECT_TRUE(byItself.toB.route().rails.empty());
}

TEST_F(Rails, TheSmallerNumberCounts) {
  const Environment devices(kTwoDevices);
  const MovedContexts moved;
  for (const bool isDiallerPoorer : {true, false}) {
    join(configWith(isDiallerPoorer ? 1 : 2), configWith(isDiallerPoorer ? 2 : 1));
    for (const Peer& peer : {pair_->toA, pair_->toB}) EXPECT_EQ(linksOf(peer), (Names{"verbs"}));
    const Peer& richer = isDiallerPoorer ? pair_->toA : pair_->toB;
    const auto refused = richer.route().refused;
    EXPECT_NE(std::find(refused.begin(), refused.end(), "link verbs.2: not offered by the peer"),
              refused.end())
        << richer.route().toString();
    fillNear(6);
    ASSERT_OK(putAll().wait(kSoon));
    EXPECT_TRUE(hasArrived());
    near_.reset();
    far_.reset();
    remote_ = {};
    pair_.reset();
  }
}

TEST_F(Rails, MoreThanThereAreIsAnErrorThatNamesThem) {
  const Environment devices(kTwoDevices);
  const auto a = MUST(Context::create({configWith(3), {}, ""}));
  const auto b = MUST(Context::create({configWith(3), {}, ""}));
  const auto refused = a->connect(b->ticket(), kSoon);
  ASSERT_FALSE(refused.isOk());
  EXPECT_NE(refused.status().message().find(
                "verbs: PEERLANE_IB_NICS is 3; the devices that can be used are 2: sw0:1, sw1:1"),
            std::string_view::npos)
      << refused.status().toString();
}

TEST_F(Rails, ThePortsThatAreNamedAreRails) {
  const Environment devices({{"DEVICES", "sw2"}, {"LIMITS", "ports=2"}});
  const verbs::Library* const library =
      MUST(verbs::library(Config::fromEnvironment().value().ibvLibrary));
  const auto portsFor = [&](const InterfaceFilter& filter) {
    std::vector<int> ports;
    for (const auto& device : MUST(verbs::VerbsDevice::openAll(*library, filter)))
      ports.push_back(device->port());
    return ports;
  };
  EXPECT_EQ(portsFor({.exclude = false, .exact = false, .names = {"sw2:2", "sw2:1"}}),
            (std::vector<int>{1, 2}));
  EXPECT_EQ(portsFor({.exclude = false, .exact = false, .names = {"sw2:2"}}),
            (std::vector<int>{2}));
  EXPECT_EQ(portsFor({}), (std::vector<int>{1}));
}

// A process may lock the control block of a link, and not the memory of the words beside it; or not
// even that.
enum class Limited : uint8_t { kDialler, kAcceptor, kBoth };
struct Little {
  Limited sides;
  const char* lockedBytes;
};
class LittleLockable : public Rails, public testing::WithParamInterface<Little> {
 protected:
  LittleLockable() {
    config_.links = {"verbs", "tcp"};
    config_.strict = false;
  }
  const QuietLog quiet_;  // a link is refused
  // Of two contexts of which the one or the other has a device of so little. The dialler is strict,
  // or not.
  Result<Peer> connected(bool isStrict) {
    b_ = MUST(Context::create({config_, {}, ""}));
    config_.strict = isStrict;
    a_ = MUST(Context::create({config_, {}, ""}));
    if (GetParam().sides != Limited::kBoth) {
      // A context opens its device for its first peer, this one with all that there is.
      other_ = MUST(Context::create({config_, {}, ""}));
      const auto& first = GetParam().sides == Limited::kDialler ? b_ : a_;
      first_ = MUST(first->connect(other_->ticket(), kSoon));
      EXPECT_EQ(first_.route().link, "verbs");
    }
    const Environment little(
        HcaSettings{{"LIMITS", std::string("lockedBytes=") + GetParam().lockedBytes}});
    return a_->connect(b_->ticket(), kSoon);
  }

  Config config_ = configWith(1);
  std::unique_ptr<Context> a_, b_, other_;
  Peer first_;
};
INSTANTIATE_TEST_SUITE_P(
    Sides, LittleLockable,
    testing::Values(Little{Limited::kDialler, "100000"}, Little{Limited::kAcceptor, "100000"},
                    Little{Limited::kBoth, "100000"}, Little{Limited::kDialler, "8192"},
                    Little{Limited::kBoth, "8192"}),
    [](const auto& each) {
      const std::string sides = each.param.sides == Limited::kDialler    ? "Dialler"
                                : each.param.sides == Limited::kAcceptor ? "Acceptor"
                                                                         : "Both";
      return sides + each.param.lockedBytes;
    });

TEST_P(LittleLockable, TheNextLinkIsTakenAndTheRouteSaysWhy) {
  const Peer peer = MUST(connected(/*isStrict=*/false));
  EXPECT_EQ(linksOf(peer), Names{"tcp"});
  const std::string route = peer.route().toString();
  EXPECT_NE(route.find("ulimit -l"), std::string::npos) << route;
  const Peer back = MUST(b_->accept(kSoon));
  EXPECT_EQ(linksOf(back), Names{"tcp"});
  TestMemory far(*b_, kBytes, false, Access::kRemoteReadWrite, 2);
  TestMemory near(*a_, kBytes, false, Access::kRemoteReadWrite, 1);
  const RemoteRegion remote = far.importedBy(peer);
  const Block block{&near.region(), 0, &remote, 0, kBytes};
  EXPECT_OK(MUST(put(peer, std::span(&block, 1), {})).wait(kSoon));
}

TEST_P(LittleLockable, StrictSaysWhatIsTooLittle) {
  const auto refused = connected(/*isStrict=*/true);
  EXPECT_EQ(refused.status().code(), Code::kNotSupported) << refused.status().toString();
  EXPECT_NE(refused.status().message().find("ulimit -l"), std::string_view::npos)
      << refused.status().toString();
}

TEST_P(LittleLockable, WithoutAnotherLinkThereIsNone) {
  config_.links = {"verbs"};
  const auto refused = connected(/*isStrict=*/false);
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_NE(refused.status().message().find("ulimit -l"), std::string_view::npos)
      << refused.status().toString();
}

// A setting that asks for what is not there: the next link is taken where none is wanted for
// certain, with the reason in the route.
struct Wish {
  const char* name;
  void (*ask)(Config&);
  const char* answer;
};
class RailsAskedFor : public Rails, public testing::WithParamInterface<Wish> {
 protected:
  const QuietLog quiet_;  // a link is refused
  enum class Asks : uint8_t { kDialler, kAcceptor };
  Result<Peer> connected(bool isStrict, Asks side = Asks::kDialler) {
    Config config = configWith(0);
    config.links = links_;
    config.strict = false;
    other_ = MUST(Context::create({config, {}, ""}));
    config.strict = isStrict;
    if (!linksOfAsking_.empty()) config.links = linksOfAsking_;
    GetParam().ask(config);
    asking_ = MUST(Context::create({config, {}, ""}));
    return side == Asks::kDialler ? asking_->connect(other_->ticket(), kSoon)
                                  : other_->connect(asking_->ticket(), kSoon);
  }
  Names links_{"verbs", "tcp"};
  Names linksOfAsking_;  // where it has others
  std::unique_ptr<Context> asking_, other_;
};
INSTANTIATE_TEST_SUITE_P(
    Settings, RailsAskedFor,
    testing::Values(
        Wish{"Library", [](Config& config) { config.ibvLibrary = "/nowhere/libibverbs.so"; },
             "PEERLANE_IBV_SO asks for /nowhere/libibverbs.so: no libibverbs here"},
        Wish{"Device", [](Config& config) { config.ibDevices.names = {"mlx5_7"}; },
             "PEERLANE_IB_HCA asks for mlx5_7: no RDMA device that can be used; sw0: "},
        Wish{"Port", [](Config& config) { config.ibPort = 9; },
             "PEERLANE_IB_PORT asks for 9: no RDMA device that can be used; sw0: "},
        Wish{"PortBesideWhatIsLeftOut",
             [](Config& config) {
               config.ibDevices = {.exclude = true, .exact = false, .names = {"mlx5_7"}};
               config.ibPort = 9;
             },
             "PEERLANE_IB_PORT asks for 9: no RDMA device that can be used; sw0: "},
        Wish{"Address", [](Config& config) { config.ibGidIndex = 200; },
             "PEERLANE_IB_GID_INDEX is 200"},
        Wish{"Number", [](Config& config) { config.ibNics = 5; }, "PEERLANE_IB_NICS is 5"},
        Wish{"NumberOfNone",
             [](Config& config) {
               config.ibNics = 2;
               config.ibDevices = {.exclude = true, .exact = false, .names = {"sw"}};
             },
             "PEERLANE_IB_NICS asks for 2: no RDMA device that can be used; sw0: "},
        Wish{"LibraryBesideWhatIsLeftOut",
             [](Config& config) {
               config.ibDevices = {.exclude = true, .exact = false, .names = {"mlx5_7"}};
               config.ibvLibrary = "/nowhere/libibverbs.so";
             },
             "PEERLANE_IBV_SO asks for /nowhere/libibverbs.so: no libibverbs here"}),
    [](const auto& each) { return each.param.name; });

TEST_P(RailsAskedFor, TheRouteSaysThatItIsNotThere) {
  const Peer peer = MUST(connected(/*isStrict=*/false));
  EXPECT_EQ(linksOf(peer), Names{"tcp"});
  const std::string route = peer.route().toString();
  EXPECT_NE(route.find(GetParam().answer), std::string::npos) << route;
}

TEST_P(RailsAskedFor, StrictRefusesToDoWithout) {
  const auto refused = connected(/*isStrict=*/true);
  ASSERT_FALSE(refused.isOk());
  EXPECT_NE(refused.status().message().find(GetParam().answer), std::string_view::npos)
      << refused.status().toString();
}

TEST_P(RailsAskedFor, AStrictAcceptorRefusesToDoWithout) {
  const auto refused = connected(/*isStrict=*/true, Asks::kAcceptor);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_NE(refused.status().message().find(GetParam().answer), std::string_view::npos)
      << refused.status().toString();
}

TEST_P(RailsAskedFor, ProcessesOfOneHostDoNotMissIt) {
  links_ = {"shm", "verbs", "tcp"};
  const Peer peer = MUST(connected(/*isStrict=*/true));
  EXPECT_EQ(peer.route().link, "shm");
  EXPECT_NE(peer.route().toString().find(GetParam().answer), std::string::npos);
}

// What this side offers within the host is no link yet.
TEST_P(RailsAskedFor, ItIsMissedWhereThePeerHasNoOtherLinkWithinTheHost) {
  for (const Asks side : {Asks::kDialler, Asks::kAcceptor}) {
    links_ = {"tcp"};
    linksOfAsking_ = {"shm", "verbs", "tcp"};
    const auto refused = connected(/*isStrict=*/true, side);
    ASSERT_FALSE(refused.isOk());
    EXPECT_NE(refused.status().message().find(GetParam().answer), std::string_view::npos)
        << refused.status().toString();
  }
}

// Nobody asked for it: a device that is left out is none that is missed.
TEST_F(Rails, WhatASettingLeavesOutIsNotMissed) {
  Config config = configWith(0);
  config.links = {"verbs", "tcp"};
  config.ibDevices = {.exclude = true, .exact = false, .names = {"sw"}};
  const ContextPair pair(config);
  EXPECT_EQ(linksOf(pair.toB), Names{"tcp"});
}

class RailsReordered : public Rails, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Placing, RailsReordered, testing::Values("ibta", "relaxed", "adaptive"));

// Data over the second, words over the first, on devices that acknowledge what is not placed.
TEST_P(RailsReordered, AWordIsSeenAfterTheDataOfTheOtherRail) {
  const Environment devices(reordering(GetParam()));
  const MovedContexts moved;
  Config config = configWith(2);
  config.ibAdaptive = std::string(GetParam()) == "adaptive";
  join(config, config);
  expectWordsAfterData(40);
  EXPECT_EQ(bytesOver(*pair_->a, "verbs.2", "put"), 40 * kBytes);
}

// One of the two devices is cut off from the network.
class RailDies : public Rails, public testing::WithParamInterface<int> {
 protected:
  const QuietLog quiet_;
  RailDies() {
    Config config = configWith(2);
    config.strict = false;  // a link that fails is an error there
    config.ibTimeout = 14;  // 67 ms
    config.ibRetry = 2;
    join(config, config);
  }
  ~RailDies() override {
    if (isCut_) {
      EXPECT_EQ(HcaControl::get().set_port(device_->handle(), 1), 0);
    }
  }
  void cut() {
    isCut_ = true;
    ASSERT_EQ(HcaControl::get().set_port(device_->handle(), 0), 0);
  }
  std::string dead() const { return GetParam() == 1 ? "verbs" : "verbs.2"; }
  std::string alive() const { return GetParam() == 1 ? "verbs.2" : "verbs"; }

  // First, because its own settings end with it.
  const std::shared_ptr<const verbs::VerbsDevice> device_ =
      VerbsSide::open({{"DEVICES", GetParam() == 1 ? "sw0" : "sw1"}});
  const Environment devices_{kTwoDevices};
  const MovedContexts moved_;
  bool isCut_ = false;
};
INSTANTIATE_TEST_SUITE_P(Which, RailDies, testing::Values(1, 2));

TEST_P(RailDies, TheOtherGoesOn) {
  fillNear(1);
  PostOptions withWord;
  withWord.notify.signal = 5;
  const Signal signal = MUST(Signal::create(pair_->toA, 5));
  ASSERT_OK(putAll(withWord).wait(kSoon));
  ASSERT_OK(signal.wait(1, kSoon));
  cut();
  // With a word, so that both rails have something to do. It ends with the failure of its rail.
  const Status lost = putAll(withWord).wait(kSoon);
  EXPECT_EQ(lost.code(), Code::kPeerLost) << lost.toString();
  for (const Peer& peer : {pair_->toA, pair_->toB}) {
    const auto isGone = [&] { return linksOf(peer) == Names{alive()}; };
    ASSERT_OK(peer.core()->progress().wait(isGone, kSoon)) << peer.route().toString();
    ASSERT_OK(peer.core()->progress().call([] {}));
    EXPECT_EQ(peer.state(), "ready");
    EXPECT_EQ(peer.route().link, alive());
  }
  const MemoryRoute route = pair_->toB.routeOf(remote_, near_->region());
  EXPECT_EQ(route.link, alive());
  ASSERT_FALSE(route.refused.empty());
  EXPECT_TRUE(route.refused.front().starts_with(dead() + ": it failed: ")) << route.refused.front();
  const uint64_t carried = bytesOver(*pair_->a, alive(), "put");
  // The word of the lost put came, or did not.
  const uint64_t before = signal.value();
  for (uint64_t round = 2; round < 12; ++round) {
    fillNear(round);
    ASSERT_OK(putAll(withWord).wait(kSoon));
    ASSERT_OK(signal.wait(before + round - 1, kSoon));
    ASSERT_TRUE(hasArrived()) << "round " << round;
  }
  EXPECT_EQ(bytesOver(*pair_->a, alive(), "put"), carried + 10 * kBytes);
}

}  // namespace
}  // namespace peerlane
