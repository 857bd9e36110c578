// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/network_interfaces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peerlane {
namespace {

NetworkInterface makeInterface(const std::string& name, const std::vector<std::string>& ips,
                               bool up = true) {
  NetworkInterface one;
  one.name = name;
  one.up = up;
  one.loopback = name == "lo";
  for (const auto& ip : ips) one.addresses.push_back(SocketAddress::fromIp(ip, 0).value());
  return one;
}

std::vector<NetworkInterface> sampleHost() {
  return {makeInterface("lo", {"127.0.0.1", "::1"}),
          makeInterface("eth0", {"10.0.0.1", "2001:db8::1", "fe80::1"}),
          makeInterface("eth01", {"10.0.1.1"}), makeInterface("docker0", {"172.17.0.1"}),
          makeInterface("ib0", {"10.9.0.1"}, false)};
}

std::vector<std::string> choose(std::string_view ip, std::string_view spec) {
  auto chosen = selectAddresses(sampleHost(), ip, spec);
  std::vector<std::string> texts;
  if (!chosen.isOk()) return {std::string(chosen.status().message())};
  for (const auto& address : *chosen) texts.push_back(address.ip());
  return texts;
}

using Texts = std::vector<std::string>;

TEST(SelectAddresses, EverythingThatIsUpWithLoopbackLast) {
  EXPECT_EQ(choose("", ""), (Texts{"10.0.0.1", "10.0.1.1", "172.17.0.1", "2001:db8::1", "fe80::1",
                                   "127.0.0.1", "::1"}));
}

TEST(SelectAddresses, NameRules) {
  EXPECT_EQ(choose("", "eth"), (Texts{"10.0.0.1", "10.0.1.1", "2001:db8::1", "fe80::1"}));
  EXPECT_EQ(choose("", "=eth0"), (Texts{"10.0.0.1", "2001:db8::1", "fe80::1"}));
  EXPECT_EQ(choose("", "^docker,lo,eth01"), (Texts{"10.0.0.1", "2001:db8::1", "fe80::1"}));
  EXPECT_EQ(choose("", "^=eth0,lo"), (Texts{"10.0.1.1", "172.17.0.1"}));
  EXPECT_EQ(choose("", "lo,docker"), (Texts{"172.17.0.1", "127.0.0.1", "::1"}));
}

TEST(SelectAddresses, OneAddress) {
  EXPECT_EQ(choose("10.0.1.1", ""), (Texts{"10.0.1.1"}));
  EXPECT_EQ(choose("::1", "lo"), (Texts{"::1"}));
}

TEST(SelectAddresses, ErrorsListWhatThereIs) {
  for (auto [ip, spec] : std::vector<std::pair<std::string, std::string>>{
           {"", "wlan"}, {"10.1.1.1", ""}, {"10.0.0.1", "docker"}, {"", "ib"}}) {
    auto none = selectAddresses(sampleHost(), ip, spec);
    ASSERT_EQ(none.status().code(), Code::kInvalidArgument) << ip << spec;
    std::string text(none.status().message());
    EXPECT_NE(text.find("docker0 172.17.0.1"), std::string::npos) << text;
    EXPECT_NE(text.find("ib0 (down) 10.9.0.1"), std::string::npos) << text;
    EXPECT_NE(text.find(spec), std::string::npos) << text;
  }
}

TEST(SelectAddresses, MisspeltRulesAreRefused) {
  for (const char* spec : {"^", "=", "eth0,,ib", "eth0,", ",eth0", "eth0,^lo", "^^lo", "eth 0"}) {
    EXPECT_EQ(selectAddresses(sampleHost(), "", spec).status().code(), Code::kInvalidArgument)
        << spec;
  }
  EXPECT_EQ(selectAddresses(sampleHost(), "10.0.0", "").status().code(), Code::kInvalidArgument);
}

TEST(SplitInterface, TakesOffTheNameAndLeavesAddressesAlone) {
  struct Case {
    const char* text;
    const char* interface;
    const char* address;
  };
  for (const Case& one :
       {Case{"eth0:10.0.0.1:4000", "eth0", "10.0.0.1:4000"},
        Case{"eth0:[fd00::1]:4000", "eth0", "[fd00::1]:4000"},
        Case{"ib0:host:80", "ib0", "host:80"}, Case{"10.0.0.1:4000", "", "10.0.0.1:4000"},
        Case{"host:80", "", "host:80"}, Case{"[fe80::1%eth0]:9", "", "[fe80::1%eth0]:9"},
        Case{"unix:@a:b", "", "unix:@a:b"}, Case{"::1:80", "", "::1:80"},
        Case{"2001:db8::7:1", "", "2001:db8::7:1"}, Case{"a::80", "", "a::80"},
        Case{":10.0.0.1:80", "", ":10.0.0.1:80"}, Case{"eth0:[fd00::1]", "", "eth0:[fd00::1]"},
        Case{"auto", "", "auto"}, Case{"", "", ""}}) {
    const AddressOnInterface split = splitInterface(one.text);
    EXPECT_EQ(split.interface, one.interface) << one.text;
    EXPECT_EQ(split.address, one.address) << one.text;
  }
}

TEST(CheckInterface, NamesWhatThereIs) {
  const auto host = sampleHost();
  const SocketAddress bridge = SocketAddress::fromIp("172.17.0.1", 80).value();
  EXPECT_TRUE(checkInterface(host, "docker0", nullptr).isOk());
  EXPECT_TRUE(checkInterface(host, "docker0", &bridge).isOk());
  for (const char* name : {"docker", "eth0"}) {
    const Status refused = checkInterface(host, name, &bridge);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find(name), std::string_view::npos);
    EXPECT_NE(refused.message().find("docker0 172.17.0.1"), std::string_view::npos)
        << refused.toString();
  }
}

TEST(ListInterfaces, ThisHostHasALoopback) {
  auto interfaces = listInterfaces();
  ASSERT_TRUE(interfaces.isOk());
  size_t loopbacks = 0;
  for (const auto& one : *interfaces) {
    if (!one.loopback) continue;
    ++loopbacks;
    EXPECT_TRUE(one.up);
    ASSERT_FALSE(one.addresses.empty());
    EXPECT_TRUE(one.addresses.front().isLoopback());
    auto chosen = selectAddresses(one.addresses.front().ip(), "=" + one.name);
    ASSERT_TRUE(chosen.isOk());
    EXPECT_EQ(chosen->size(), 1u);
  }
  EXPECT_EQ(loopbacks, 1u);
}

}  // namespace
}  // namespace peerlane
