// SPDX-License-Identifier: Apache-2.0
//
// A refusal that has a setting as its cure names it: each that can be had on any host, with a NIC
// in software. GPUs, limits of the system and peers that fall silent have it in tests of their own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/socket.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/core/quiet_log.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using Variables = std::map<std::string, std::string>;

Config configFrom(Variables variables) {
  if (const char* library = std::getenv("PEERLANE_IBV_SO"))
    variables.insert({"PEERLANE_IBV_SO", library});
  return MUST(Config::fromVariables(variables));
}

// Of a context, or of connecting two: as many as it takes to reach a limit.
struct Wanted {
  Variables dialler;
  Variables listener;
  std::vector<std::string> listen;
  int peers = 1;
};
Status refusalOf(const Wanted& wanted) {
  auto dialler = Context::create({configFrom(wanted.dialler), wanted.listen, ""});
  if (!dialler.isOk()) return dialler.status();
  std::vector<std::unique_ptr<Context>> listeners;
  std::vector<Peer> peers;
  for (int i = 0; i < wanted.peers; ++i) {
    listeners.push_back(MUST(Context::create({configFrom(wanted.listener), {}, ""})));
    auto peer = (*dialler)->connect(listeners.back()->ticket(), kSoon);
    if (!peer.isOk()) return peer.status();
    peers.push_back(std::move(*peer));
  }
  return Status::ok();
}

Status withHcaLimits(const std::string& limits, const Variables& variables) {
  ::setenv("SOFTWARE_HCA_LIMITS", limits.c_str(), 1);
  Status refused = refusalOf({variables, variables, {}, 100});
  ::unsetenv("SOFTWARE_HCA_LIMITS");
  return refused;
}

const Variables kAny;
const Variables kOverVerbs{{"PEERLANE_LINKS", "verbs"}};

Variables overVerbs(const std::string& name, const std::string& value) {
  Variables variables = kOverVerbs;
  variables[name] = value;
  return variables;
}

Status ofATakenPort() {
  const Fd taken = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  const std::string port = std::to_string(MUST(localAddress(taken.get())).port());
  return refusalOf({{{"PEERLANE_PORT_RANGE", port}}, kAny, {"127.0.0.1:0"}});
}

Status ofMemoryThatCannotBeMapped() {
  const Config config = configFrom({{"PEERLANE_LINKS", "shm"}, {"PEERLANE_SHM_ENGINE", "mapped"}});
  const auto a = makeContext(config), b = makeContext(config);
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  std::vector<std::byte> bytes(4096);
  const Region region =
      MUST(b->registerRegion(bytes.data(), bytes.size(), Access::kRemoteReadWrite));
  Status refused = MUST(toB.importRegion(region.share())).prepare(kSoon);
  EXPECT_OK(b->unregister(region, kSoon));
  return refused;
}

// Its progress thread stands, so it takes no connection from the queue of its socket.
Status ofASilentListener() {
  const auto silent = makeContext({}, {"127.0.0.1:0"});
  const auto a = makeContext(configFrom({{"PEERLANE_LINKS", "tcp"},
                                         {"PEERLANE_CONNECT_TIMEOUT", "100ms"},
                                         {"PEERLANE_PEER_TIMEOUT", "20s"}}));
  const auto b = makeContext(configFrom({{"PEERLANE_LINKS", "tcp"}}));
  const Peer toSilent = MUST(silent->connect(b->ticket(), kSoon));
  const Peer fromSilent = MUST(b->accept(kSoon));
  const StandingCallback stands(toSilent.core()->progress());
  return a->connect(silent->ticket()).status();
}

Status ofASilentPeer() {
  const auto a =
      makeContext(configFrom({{"PEERLANE_PEER_TIMEOUT", "1s"}, {"PEERLANE_HEARTBEAT", "10ms"}}));
  const auto b = makeContext();
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  const Peer toA = MUST(b->accept(kSoon));
  const StandingCallback stands(toA.core()->progress());
  EXPECT_TRUE(soon([&] { return toB.state() == "silent"; }));
  return toB.status();
}

struct Row {
  const char* name;
  std::vector<const char*> cures;
  std::function<Status()> refusal;
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.name;
}

const Row kRows[] = {
    {"HugePages",
     {"PEERLANE_HUGEPAGES"},
     [] {
       const auto context = makeContext(configFrom({{"PEERLANE_HUGEPAGES", "on"}}));
       return context->allocate(size_t{1} << 42).status();
     }},
    {"TheAddressOfAnotherHost",
     {"PEERLANE_IF_IP"},
     [] {
       return refusalOf({{{"PEERLANE_IF_IP", "203.0.113.9"}}, kAny, {"auto"}});
     }},
    {"NoInterfaceIsLeft",
     {"PEERLANE_SOCKET_IFNAME"},
     [] {
       return refusalOf({{{"PEERLANE_SOCKET_IFNAME", "=none"}}, kAny, {"auto"}});
     }},
    {"APortIsTaken", {"PEERLANE_PORT_RANGE"}, ofATakenPort},
    {"AFolderIsNotThere",
     {"PEERLANE_SOCKET_DIR"},
     [] {
       return refusalOf({{{"PEERLANE_SOCKET_DIR", "/nowhere"}}, kAny, {}});
     }},
    {"NoLinkIsCommon",
     {"PEERLANE_LINKS"},
     [] {
       return refusalOf({{{"PEERLANE_LINKS", "shm"}}, {{"PEERLANE_LINKS", "tcp"}}, {}});
     }},
    {"OneSideEncrypts",
     {"PEERLANE_TCP_ENCRYPT"},
     [] {
       return refusalOf({{{"PEERLANE_LINKS", "tcp"}, {"PEERLANE_TCP_ENCRYPT", "1"}},
                         {{"PEERLANE_LINKS", "tcp"}},
                         {}});
     }},
    {"MemoryCannotBeMapped", {"PEERLANE_SHM_ENGINE"}, ofMemoryThatCannotBeMapped},
    {"AListenerIsSilent", {"PEERLANE_CONNECT_TIMEOUT"}, ofASilentListener},
    {"APeerIsSilent", {"PEERLANE_PEER_TIMEOUT"}, ofASilentPeer},
    {"ATuneFileIsNotThere",
     {"PEERLANE_TUNE"},
     [] {
       return refusalOf({{{"PEERLANE_TUNE", "/nowhere"}}, kAny, {}});
     }},
    {"NoLibraryOfVerbs",
     {"PEERLANE_IBV_SO"},
     [] {
       const Variables variables = overVerbs("PEERLANE_IBV_SO", "/nowhere/libibverbs.so");
       return refusalOf({variables, variables, {}});
     }},
    {"NoSuchNic",
     {"PEERLANE_IB_HCA"},
     [] {
       return refusalOf({overVerbs("PEERLANE_IB_HCA", "mlx5_9"), kOverVerbs, {}});
     }},
    {"NoSuchPort",
     {"PEERLANE_IB_PORT"},
     [] {
       return refusalOf({overVerbs("PEERLANE_IB_PORT", "9"), kOverVerbs, {}});
     }},
    {"TooFewNics",
     {"PEERLANE_IB_NICS"},
     [] {
       return refusalOf({overVerbs("PEERLANE_IB_NICS", "8"), kOverVerbs, {}});
     }},
    {"NoSuchGid",
     {"PEERLANE_IB_GID_INDEX"},
     [] {
       return refusalOf({overVerbs("PEERLANE_IB_GID_INDEX", "99"), kOverVerbs, {}});
     }},
    {"NoSuchPartition",
     {"PEERLANE_IB_PKEY"},
     [] {
       return refusalOf({overVerbs("PEERLANE_IB_PKEY", "5"), kOverVerbs, {}});
     }},
    {"ReceivesOfANicArePromised",
     {"PEERLANE_IB_DOMAIN"},
     [] { return withHcaLimits("maxWork=64", kOverVerbs); }},
    {"CompletionsOfANicArePromised",
     {"PEERLANE_IB_DOMAIN", "PEERLANE_IB_PAIRS"},
     [] { return withHcaLimits("maxCompletions=4096", kOverVerbs); }},
    {"QueuePairsOfANicAreTaken",
     {"PEERLANE_IB_PAIRS"},
     [] { return withHcaLimits("maxQueuePairs=2", kOverVerbs); }},
};

class NamedSettings : public testing::TestWithParam<Row> {
 protected:
  const QuietLog quiet_;
};
INSTANTIATE_TEST_SUITE_P(Refusals, NamedSettings, testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(NamedSettings, AreTheCureOfARefusal) {
  const Status refused = GetParam().refusal();
  ASSERT_FALSE(refused.isOk());
  for (const char* cure : GetParam().cures)
    EXPECT_NE(refused.message().find(cure), std::string_view::npos) << refused.toString();
}

}  // namespace
}  // namespace peerlane
