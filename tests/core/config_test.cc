// SPDX-License-Identifier: Apache-2.0
//
// The table of environment variables: defaults, every accepted form, every refusal, foreign names,
// documentation.
#include "peerlane/core/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/config_table.h"
#include "peerlane/core/log.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

Config read(const Variables& variables) {
  auto config = Config::fromVariables(variables);
  EXPECT_TRUE(config.isOk()) << config.status().toString();
  return config.isOk() ? *config : Config{};
}

TEST(Config, Defaults) {
  Config config = read({});
  EXPECT_EQ(config.logLevel, LogLevel::kWarn);
  EXPECT_EQ(config.spin, 50us);
  EXPECT_FALSE(config.strict);
  EXPECT_EQ(config.socketDirectory, "");
  EXPECT_EQ(config.peerTimeout, 30s);
  EXPECT_EQ(config.heartbeatInterval(), 5s);
  EXPECT_EQ(config.connectTimeout, 10s);
  EXPECT_EQ(config.interfaceAddress, "");
  EXPECT_TRUE(config.interfaces.names.empty());
  EXPECT_EQ(config.ports.first, 0);
  EXPECT_EQ(config.ports.last, 0);
  EXPECT_TRUE(config.links.empty());
  EXPECT_TRUE(config.allowsLink("tcp"));
  EXPECT_EQ(config.shmEngine, ShmEngine::kAuto);
  EXPECT_EQ(config.stagingBytes, 16u << 20);
  EXPECT_EQ(config.ticket, "");
  EXPECT_EQ(config.tuneFile, "");
  EXPECT_EQ(config.eagerBytes, 4096u);
  EXPECT_EQ(config.hugePages, HugePages::kAuto);
  EXPECT_TRUE(config.warnings.empty());
}

TEST(Config, ReadsEveryVariable) {
  Config config = read({{"PEERLANE_LOG", "trace"},
                        {"PEERLANE_SPIN_US", "1000000"},
                        {"PEERLANE_STRICT", "1"},
                        {"PEERLANE_SOCKET_DIR", "/run/peerlane"},
                        {"PEERLANE_PEER_TIMEOUT", "500ms"},
                        {"PEERLANE_HEARTBEAT", "250ms"},
                        {"PEERLANE_CONNECT_TIMEOUT", "2"},
                        {"PEERLANE_IF_IP", "fe80::1%eth0"},
                        {"PEERLANE_SOCKET_IFNAME", "^=lo,docker0"},
                        {"PEERLANE_PORT_RANGE", "50000-50010"},
                        {"PEERLANE_LINKS", "self,tcp"},
                        {"PEERLANE_SHM_ENGINE", "cma"},
                        {"PEERLANE_IB_PORT", "2"},
                        {"PEERLANE_IB_REGISTER", "odp"},
                        {"PEERLANE_IB_CACHE", "1GiB"},
                        {"PEERLANE_IB_DOMAIN", "peer"},
                        {"PEERLANE_STAGING_BYTES", "64K"},
                        {"PEERLANE_TICKET", "p1.abc"},
                        {"PEERLANE_TUNE", "tune.toml"},
                        {"PEERLANE_EAGER_BYTES", "0"},
                        {"PEERLANE_HUGEPAGES", "off"}});
  EXPECT_EQ(config.logLevel, LogLevel::kTrace);
  EXPECT_EQ(config.spin, 1s);
  EXPECT_TRUE(config.strict);
  EXPECT_EQ(config.socketDirectory, "/run/peerlane");
  EXPECT_EQ(config.peerTimeout, 500ms);
  EXPECT_EQ(config.heartbeatInterval(), 250ms);
  EXPECT_EQ(config.connectTimeout, 2s);
  EXPECT_EQ(config.interfaceAddress, "fe80::1%eth0");
  EXPECT_TRUE(config.interfaces.exclude);
  EXPECT_TRUE(config.interfaces.exact);
  EXPECT_EQ(config.interfaces.names, (std::vector<std::string>{"lo", "docker0"}));
  EXPECT_EQ(config.ports.first, 50000);
  EXPECT_EQ(config.ports.last, 50010);
  EXPECT_EQ(config.links, (std::vector<std::string>{"self", "tcp"}));
  EXPECT_TRUE(config.allowsLink("tcp"));
  EXPECT_FALSE(config.allowsLink("shm"));
  EXPECT_EQ(config.shmEngine, ShmEngine::kCma);
  EXPECT_EQ(config.ibPort, 2);
  EXPECT_EQ(config.ibRegister, IbRegister::kOnDemand);
  EXPECT_EQ(config.ibCacheBytes, 1u << 30);
  EXPECT_EQ(config.ibDomain, IbDomain::kPeer);
  EXPECT_EQ(config.stagingBytes, 64u << 10);
  EXPECT_EQ(config.ticket, "p1.abc");
  EXPECT_EQ(config.tuneFile, "tune.toml");
  EXPECT_EQ(config.eagerBytes, 0u);
  EXPECT_EQ(config.hugePages, HugePages::kOff);
  EXPECT_EQ(config.warnings, std::vector<std::string>{"PEERLANE_SOCKET_IFNAME is ignored, because "
                                                      "PEERLANE_IF_IP is set"});
}

TEST(Config, OtherAcceptedSpellings) {
  EXPECT_EQ(read({{"PEERLANE_PORT_RANGE", "50000"}}).ports.last, 50000);
  EXPECT_EQ(read({{"PEERLANE_PORT_RANGE", "0"}}).ports.last, 0);
  EXPECT_EQ(read({{"PEERLANE_IF_IP", "10.0.0.7"}}).interfaceAddress, "10.0.0.7");
  EXPECT_EQ(read({{"PEERLANE_LOG", "error"}}).logLevel, LogLevel::kError);
  EXPECT_EQ(read({{"PEERLANE_SHM_ENGINE", "ring"}}).shmEngine, ShmEngine::kRing);
  EXPECT_EQ(read({{"PEERLANE_HUGEPAGES", "on"}}).hugePages, HugePages::kOn);
  EXPECT_EQ(read({{"PEERLANE_SPIN_US", ""}}).spin, 50us) << "empty counts as not set";
}

TEST(Config, RefusalsNameVariableValueAndWhatIsAccepted) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"PEERLANE_LOG", {"WARN", "verbose", "1"}},
      {"PEERLANE_SPIN_US", {"1000001", "-1", "50us"}},
      {"PEERLANE_STRICT", {"yes", "2", "01"}},
      {"PEERLANE_SOCKET_DIR",
       {"relative/dir", "/a/folder/whose/path/has/one/byte/more/than/it/may/have/heres"}},
      {"PEERLANE_PEER_TIMEOUT", {"0", "9ms", "25h", "forever", "1.5s"}},
      {"PEERLANE_HEARTBEAT", {"0", "999us", "16s"}},
      {"PEERLANE_CONNECT_TIMEOUT", {"0s", "10x"}},
      {"PEERLANE_IF_IP", {"localhost", "10.0.0", "10.0.0.1%eth0", "::g"}},
      {"PEERLANE_SOCKET_IFNAME", {"eth0,", "^", "=", "eth0,^lo", "a b"}},
      {"PEERLANE_PORT_RANGE", {"10-5", "0-10", "1-65536", "-", "1-", "-5", "1-2-3"}},
      {"PEERLANE_LINKS", {"shm,", "SHM", "shm tcp"}},
      {"PEERLANE_SHM_ENGINE", {"copy"}},
      {"PEERLANE_IB_PORT", {"0", "256", "mlx5_0:1"}},
      {"PEERLANE_IB_REGISTER", {"ODP", "dmabuf"}},
      {"PEERLANE_IB_CACHE", {"2TiB", "-1", "some"}},
      {"PEERLANE_IB_DOMAIN", {"PEER", "1"}},
      {"PEERLANE_STAGING_BYTES", {"1K", "5G", "16MB"}},
      {"PEERLANE_EAGER_BYTES", {"4097", "8K", "-1"}},
      {"PEERLANE_HUGEPAGES", {"1", "true"}},
  };
  for (const auto& [name, values] : cases) {
    for (const char* value : values) {
      auto config = Config::fromVariables({{name, value}});
      ASSERT_FALSE(config.isOk()) << name << '=' << value;
      EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
      const std::string message(config.status().message());
      EXPECT_EQ(message.rfind(std::string(name) + " is ", 0), 0u) << message;
      EXPECT_NE(message.find("; accepted: "), std::string::npos) << message;
      if (std::string_view(name) != "PEERLANE_HEARTBEAT") {
        EXPECT_NE(message.find('"' + std::string(value) + '"'), std::string::npos) << message;
      }
    }
  }
  EXPECT_EQ(Config::fromVariables({{"PEERLANE_SHM_ENGINE", "copy"}}).status().message(),
            "PEERLANE_SHM_ENGINE is \"copy\"; accepted: auto, mapped, cma, ring");
}

TEST(Config, HeartbeatIsAtMostHalfTheTimeout) {
  EXPECT_TRUE(Config::fromVariables({{"PEERLANE_HEARTBEAT", "15s"}}).isOk());
  auto config =
      Config::fromVariables({{"PEERLANE_HEARTBEAT", "2s"}, {"PEERLANE_PEER_TIMEOUT", "3s"}});
  EXPECT_EQ(config.status().message(),
            "PEERLANE_HEARTBEAT is 2s; accepted: 1ms to 1500ms, half of PEERLANE_PEER_TIMEOUT");
}

TEST(Config, ForeignNamesStandInInTheirOrder) {
  Variables variables{{"HCCL_IF_IP", "10.0.0.3"}};
  EXPECT_EQ(read(variables).interfaceAddress, "10.0.0.3");
  variables["IF_IP_DEFAULT"] = "10.0.0.2";
  EXPECT_EQ(read(variables).interfaceAddress, "10.0.0.2");
  variables["P2P_IF_IP"] = "10.0.0.1";
  EXPECT_EQ(read(variables).interfaceAddress, "10.0.0.1");
  variables["PEERLANE_IF_IP"] = "10.0.0.9";
  EXPECT_EQ(read(variables).interfaceAddress, "10.0.0.9");
  variables["PEERLANE_IF_IP"] = "";
  EXPECT_EQ(read(variables).interfaceAddress, "10.0.0.1");

  Variables names{{"HCCL_SOCKET_IFNAME", "=enp3s0f0"}};
  EXPECT_TRUE(read(names).interfaces.exact);
  names["P2P_SOCKET_IFNAME"] = "ib";
  EXPECT_FALSE(read(names).interfaces.exact);
  EXPECT_EQ(read({{"P2P_PORT_RANGE", "56800-56900"}}).ports.last, 56900);

  auto bad = Config::fromVariables({{"P2P_PORT_RANGE", "x"}});
  EXPECT_EQ(bad.status().message(),
            "P2P_PORT_RANGE is \"x\"; accepted: first-last or one port, each from 1 to 65535; 0 "
            "for any free port");
}

// The order that p2p-transfer keeps: P2P_IF_IP, P2P_SOCKET_IFNAME, HCCL_IF_IP, HCCL_SOCKET_IFNAME.
TEST(Config, AnAddressOfAnotherFamilyDoesNotOverruleNamedInterfaces) {
  Config config = read({{"P2P_SOCKET_IFNAME", "ib"}, {"HCCL_IF_IP", "10.0.0.3"}});
  EXPECT_EQ(config.interfaceAddress, "");
  EXPECT_EQ(config.interfaces.names, std::vector<std::string>{"ib"});
  EXPECT_EQ(config.warnings,
            std::vector<std::string>{"HCCL_IF_IP is ignored, because P2P_SOCKET_IFNAME is set"});
  EXPECT_EQ(read({{"PEERLANE_SOCKET_IFNAME", "ib"}, {"P2P_IF_IP", "10.0.0.3"}}).interfaceAddress,
            "");
  config = read({{"P2P_SOCKET_IFNAME", "ib"}, {"P2P_IF_IP", "10.0.0.3"}});
  EXPECT_EQ(config.interfaceAddress, "10.0.0.3");
  EXPECT_EQ(config.warnings,
            std::vector<std::string>{"P2P_SOCKET_IFNAME is ignored, because P2P_IF_IP is set"});
  EXPECT_EQ(read({{"HCCL_SOCKET_IFNAME", "ib"}, {"P2P_IF_IP", "10.0.0.3"}}).interfaceAddress,
            "10.0.0.3");
}

TEST(Config, UnknownNamesAreReportedWithTheNearest) {
  Config config = read(
      {{"PEERLANE_SPIN", "1"}, {"PEERLANE_COLOUR", "x"}, {"OTHER_NAME", "1"}, {"PEERLANE", "1"}});
  ASSERT_EQ(config.warnings.size(), 2u);
  EXPECT_EQ(config.warnings[0], "environment variable \"PEERLANE_COLOUR\" is not known");
  EXPECT_EQ(config.warnings[1],
            "environment variable \"PEERLANE_SPIN\" is not known; did you mean PEERLANE_SPIN_US?");
  EXPECT_EQ(read({{"PEERLANE_PEER_TIMOUT", "1"}}).warnings.at(0),
            "environment variable \"PEERLANE_PEER_TIMOUT\" is not known; did you mean "
            "PEERLANE_PEER_TIMEOUT?");
  EXPECT_EQ(read({{"PEERLANE_", "1"}}).warnings.size(), 1u);
}

TEST(InterfaceFilter, PrefixExactAndExclusion) {
  auto filter = [](const char* text) {
    return read({{"PEERLANE_SOCKET_IFNAME", text}}).interfaces;
  };
  EXPECT_TRUE(InterfaceFilter{}.allows("anything"));
  EXPECT_TRUE(filter("eth,ib").allows("ib0"));
  EXPECT_FALSE(filter("eth,ib").allows("lo"));
  EXPECT_TRUE(filter("=eth0").allows("eth0"));
  EXPECT_FALSE(filter("=eth0").allows("eth01"));
  EXPECT_FALSE(filter("^docker,lo").allows("docker0"));
  EXPECT_TRUE(filter("^docker,lo").allows("eth0"));
  EXPECT_FALSE(filter("^=lo").allows("lo"));
  EXPECT_TRUE(filter("^=lo").allows("lo1"));
}

TEST(ConfigMarkdown, HasOneCompleteRowPerVariable) {
  const std::string text = configMarkdown();
  std::size_t rows = 0;
  std::size_t from = 0;
  for (std::size_t end; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    const std::string line = text.substr(from, end - from);
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 6) << line;
    EXPECT_EQ(line.find("|  |"), std::string::npos) << line;
    ++rows;
  }
  EXPECT_EQ(from, text.size()) << "the last line ends with a line break";
  EXPECT_EQ(rows, internal::configTable().size() + 2);
  EXPECT_NE(text.find("| `PEERLANE_STAGING_BYTES` | size | 16MiB | 64KiB to 4GiB (powers of 1024: "
                      "512K, 16MiB, 1G) |"),
            std::string::npos);
  EXPECT_NE(text.find("When it is not set: `P2P_IF_IP`, then `IF_IP_DEFAULT`, then `HCCL_IF_IP`."),
            std::string::npos);
}

// The documented defaults are the real ones: reading them gives a Config that is as without them.
TEST(ConfigTable, DefaultsAreTrue) {
  Variables defaults;
  for (const auto& row : internal::configTable()) {
    if (std::string_view(row.name) != "PEERLANE_HEARTBEAT") defaults[row.name] = row.byDefault;
  }
  Config written = read(defaults);
  Config bare = read({});
  EXPECT_EQ(written.logLevel, bare.logLevel);
  EXPECT_EQ(written.spin, bare.spin);
  EXPECT_EQ(written.strict, bare.strict);
  EXPECT_EQ(written.peerTimeout, bare.peerTimeout);
  EXPECT_EQ(written.connectTimeout, bare.connectTimeout);
  EXPECT_EQ(written.ports.first, bare.ports.first);
  for (const std::string& link : written.links) EXPECT_TRUE(bare.allowsLink(link));
  EXPECT_EQ(written.shmEngine, bare.shmEngine);
  EXPECT_EQ(written.ibPort, bare.ibPort);
  EXPECT_EQ(written.ibRegister, bare.ibRegister);
  EXPECT_EQ(written.ibCacheBytes, bare.ibCacheBytes);
  EXPECT_EQ(written.ibDomain, bare.ibDomain);
  EXPECT_EQ(written.stagingBytes, bare.stagingBytes);
  EXPECT_EQ(written.eagerBytes, bare.eagerBytes);
  EXPECT_EQ(written.hugePages, bare.hugePages);
}

TEST(Config, EnvironmentSetsTheLevelAndWarns) {
  std::vector<std::string> lines;
  setLogSink([&](LogLevel level, std::string_view, std::string_view text) {
    lines.push_back(std::string(logLevelName(level)) + ' ' + std::string(text));
  });
  ::setenv("PEERLANE_LOG", "info", 1);
  ::setenv("PEERLANE_STRIKT", "1", 1);
  auto config = Config::fromEnvironment();
  EXPECT_TRUE(config.isOk());
  const auto again = Config::fromEnvironment();
  EXPECT_TRUE(again.isOk() && again->warnings == config->warnings) << "said once, and still there";
  EXPECT_TRUE(logEnabled(LogLevel::kInfo));
  EXPECT_FALSE(logEnabled(LogLevel::kDebug));
  EXPECT_EQ(lines, std::vector<std::string>{"warn environment variable \"PEERLANE_STRIKT\" is not "
                                            "known; did you mean PEERLANE_STRICT?"});
  ::setenv("PEERLANE_LOG", "loud", 1);
  EXPECT_EQ(Config::fromEnvironment().status().message(),
            "PEERLANE_LOG is \"loud\"; accepted: error, warn, info, debug, trace");
  EXPECT_TRUE(logEnabled(LogLevel::kInfo)) << "a refused value changes nothing";
  ::unsetenv("PEERLANE_LOG");
  ::unsetenv("PEERLANE_STRIKT");
  setLogLevel(LogLevel::kWarn);
  setLogSink({});
}

}  // namespace
}  // namespace peerlane
