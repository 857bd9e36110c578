// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/socket_address.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

namespace peerlane {
namespace {

using Family = SocketAddress::Family;

TEST(SocketAddress, TextFormsAreReadAndWrittenAlike) {
  struct Case {
    const char* text;
    Family family;
    uint16_t port;
  };
  for (const Case& one :
       {Case{"1.2.3.4:80", Family::kIpv4, 80}, Case{"0.0.0.0:0", Family::kIpv4, 0},
        Case{"255.255.255.255:65535", Family::kIpv4, 65535}, Case{"[::1]:80", Family::kIpv6, 80},
        Case{"[2001:db8::7]:1", Family::kIpv6, 1}, Case{"[fe80::1%lo]:9", Family::kIpv6, 9},
        Case{"unix:/run/a b", Family::kUnixPath, 0}, Case{"unix:relative", Family::kUnixPath, 0},
        Case{"unix:@peerlane", Family::kUnixAbstract, 0}}) {
    auto address = SocketAddress::parse(one.text);
    ASSERT_TRUE(address.isOk()) << address.status().toString();
    EXPECT_EQ(address->toString(), one.text);
    EXPECT_EQ(address->family(), one.family) << one.text;
    EXPECT_EQ(address->port(), one.port) << one.text;
    EXPECT_EQ(address->isUnix(), std::string(one.text).starts_with("unix:")) << one.text;
    auto again = SocketAddress::fromRaw(address->raw(), address->rawBytes());
    ASSERT_TRUE(again.isOk());
    EXPECT_EQ(*again, *address);
  }
}

TEST(SocketAddress, BadTextIsRefusedWithTheForms) {
  std::string longPath = "unix:/" + std::string(107, 'x');
  std::string longName = "unix:@" + std::string(108, 'x');
  for (const std::string& text :
       {std::string(), std::string("1.2.3.4"), std::string("1.2.3.4:"),
        std::string("1.2.3.4:65536"), std::string("1.2.3.4:-1"), std::string("1.2.3.4:8x"),
        std::string("1.2.3:80"), std::string("::1:80"), std::string("[::1]"),
        std::string("[::1]80"), std::string("[1.2.3.4]:80"), std::string("host:80"),
        std::string("[fe80::1%nosuch0]:9"), std::string("unix:"), std::string("unix:@"),
        std::string("unix:/a\0b", 9), longPath, longName}) {
    auto address = SocketAddress::parse(text);
    ASSERT_EQ(address.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find("unix:@name"), std::string_view::npos) << text;
  }
  const auto why = [](const char* text) {
    return std::string(SocketAddress::parse(text).status().message());
  };
  EXPECT_NE(why("[::1]").find("there is no port"), std::string::npos) << why("[::1]");
  EXPECT_NE(why(":80").find("no host"), std::string::npos) << why(":80");
  EXPECT_NE(why("fe80::1%lo").find("needs brackets"), std::string::npos) << why("fe80::1%lo");
  EXPECT_NE(why("::1").find("needs brackets"), std::string::npos) << why("::1");
  EXPECT_NE(why("1.2.3.4:8x").find("the host \"1.2.3.4\" and the port \"8x\""), std::string::npos)
      << why("1.2.3.4:8x");
  EXPECT_NE(why("tcp://1.2.3.4:80").find("leave out \"tcp://\""), std::string::npos)
      << why("tcp://1.2.3.4:80");
  EXPECT_NE(why("AUTO").find("the word auto"), std::string::npos) << why("AUTO");
  EXPECT_TRUE(SocketAddress::parse(longPath.substr(0, longPath.size() - 1)).isOk());
  EXPECT_TRUE(SocketAddress::parse(longName.substr(0, longName.size() - 1)).isOk());
}

TEST(SocketAddress, EqualityIsThatOfTheParts) {
  auto parse = [](const char* text) { return SocketAddress::parse(text).value(); };
  EXPECT_EQ(parse("1.2.3.4:80"), parse("1.2.3.4:80"));
  EXPECT_FALSE(parse("1.2.3.4:80") == parse("1.2.3.4:81"));
  EXPECT_FALSE(parse("1.2.3.4:80") == parse("1.2.3.5:80"));
  EXPECT_FALSE(parse("[fe80::1%lo]:1") == parse("[fe80::1]:1"));
  EXPECT_FALSE(parse("unix:/a") == parse("unix:@/a"));
  EXPECT_FALSE(parse("unix:@a") == parse("unix:@ab"));
  EXPECT_EQ(parse("1.2.3.4:80").withPort(81), parse("1.2.3.4:81"));
}

TEST(SocketAddress, Kinds) {
  auto fromIp = [](const char* ip) { return SocketAddress::fromIp(ip, 1).value(); };
  EXPECT_TRUE(fromIp("127.1.2.3").isLoopback());
  EXPECT_TRUE(fromIp("::1").isLoopback());
  EXPECT_FALSE(fromIp("128.0.0.1").isLoopback());
  EXPECT_TRUE(fromIp("169.254.1.1").isLinkLocal());
  EXPECT_TRUE(fromIp("fe80::1").isLinkLocal());
  EXPECT_FALSE(fromIp("10.0.0.1").isLinkLocal());
  EXPECT_TRUE(fromIp("0.0.0.0").isWildcard());
  EXPECT_TRUE(fromIp("::").isWildcard());
  EXPECT_FALSE(fromIp("::1").isWildcard());
  EXPECT_EQ(fromIp("fe80::1%lo").ip(), "fe80::1%lo");
  EXPECT_EQ(fromIp(("fe80::1%" + std::to_string(::if_nametoindex("lo"))).c_str()).ip(),
            "fe80::1%lo");
}

TEST(SocketAddress, RawAddressesAreChecked) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  auto* raw = reinterpret_cast<sockaddr*>(&v4);
  EXPECT_FALSE(SocketAddress::fromRaw(raw, sizeof v4 - 1).isOk());
  EXPECT_FALSE(SocketAddress::fromRaw(raw, 1).isOk());
  EXPECT_FALSE(SocketAddress::fromRaw(raw, 129).isOk());
  v4.sin_family = AF_NETLINK;
  EXPECT_EQ(SocketAddress::fromRaw(raw, sizeof v4).status().code(), Code::kNotSupported);
  v4.sin_family = AF_UNIX;
  auto unnamed = SocketAddress::fromRaw(raw, sizeof(sa_family_t));
  ASSERT_TRUE(unnamed.isOk());
  EXPECT_EQ(unnamed->family(), Family::kNone);
}

TEST(SocketAddress, NamesAreResolvedOnlyOnRequest) {
  auto found = SocketAddress::resolve("localhost:81");
  ASSERT_TRUE(found.isOk()) << found.status().toString();
  ASSERT_FALSE(found->empty());
  for (const auto& address : *found) {
    EXPECT_TRUE(address.isLoopback());
    EXPECT_EQ(address.port(), 81);
    EXPECT_EQ(std::count(found->begin(), found->end(), address), 1);
  }
  EXPECT_EQ(SocketAddress::resolve("1.2.3.4:5")->front().toString(), "1.2.3.4:5");
  EXPECT_EQ(SocketAddress::resolve("localhost").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SocketAddress::resolve("localhost:x").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SocketAddress::resolve("no-such-host.invalid:1").status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace peerlane
