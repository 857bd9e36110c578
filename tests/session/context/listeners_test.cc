// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/listeners.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "peerlane/os/network_interfaces.h"
#include "peerlane/os/socket.h"
#include "tests/os/scratch_folder.h"
#include "tests/session/peer/session_pair.h"

namespace {
std::atomic<bool> areInterfacesHidden{false};
}

// The library's call comes here, too.
extern "C" int getifaddrs(ifaddrs** list) noexcept {
  if (areInterfacesHidden) return errno = EPERM, -1;
  static const auto real =
      reinterpret_cast<decltype(&getifaddrs)>(::dlsym(RTLD_NEXT, "getifaddrs"));
  return real(list);
}

namespace peerlane {
namespace {

std::vector<std::string> ipAddresses(const Context& context) {
  std::vector<std::string> found;
  for (const std::string& address : context.addresses())
    if (address.find("unix:") == std::string::npos) found.push_back(address);
  return found;
}

TEST(Listeners, UnixAloneUnlessMoreIsWanted) {
  auto context = makeContext();
  EXPECT_TRUE(ipAddresses(*context).empty());
  EXPECT_EQ(context->addresses().size(), 1u);
}

TEST(Listeners, ANamedAddressGetsItsPort) {
  auto context = makeContext({}, {"127.0.0.1:0", "[::1]:0"});
  const auto addresses = ipAddresses(*context);
  ASSERT_EQ(addresses.size(), 2u);
  for (const std::string& text : addresses) {
    const SocketAddress address = MUST(SocketAddress::parse(text));
    EXPECT_NE(address.port(), 0);
    EXPECT_TRUE(address.isLoopback());
    EXPECT_TRUE(connectStart(address).isOk());
  }
}

TEST(Listeners, AnInterfaceMustHaveTheAddress) {
  auto context = makeContext({}, {"lo:127.0.0.1:0"});
  const auto addresses = ipAddresses(*context);
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_EQ(addresses[0].find("127.0.0.1:"), 0u) << addresses[0];
  for (const char* wrong : {"no-such-interface:127.0.0.1:0", "lo:192.0.2.1:0"}) {
    const auto refused = Context::create({Config{}, {wrong}, ""});
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument) << wrong;
    EXPECT_NE(refused.status().message().find(wrong), std::string_view::npos);
    EXPECT_NE(refused.status().message().find("lo 127.0.0.1"), std::string_view::npos)
        << "the sentence says what there is: " << refused.status().toString();
  }
}

TEST(Listeners, AnyPortIsTakenFromTheRange) {
  // A range of one port that somebody else has just now, and of two of which one is left.
  const Fd taken = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  const uint16_t port = MUST(localAddress(taken.get())).port();
  Config config;
  config.ports = {port, port};
  const auto refused = Context::create({config, {"127.0.0.1:0"}, ""});
  ASSERT_FALSE(refused.isOk());
  EXPECT_NE(refused.status().message().find(std::to_string(port)), std::string_view::npos)
      << refused.status().toString();
  EXPECT_NE(refused.status().message().find("PEERLANE_PORT_RANGE"), std::string_view::npos)
      << refused.status().toString();
  if (port == 65535) return;
  config.ports = {port, 65535};
  const auto addresses = ipAddresses(*makeContext(config, {"127.0.0.1:0"}));
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_GT(MUST(SocketAddress::parse(addresses[0])).port(), port);
}

TEST(Listeners, AutoTakesTheChosenInterfaces) {
  Config config;
  config.interfaces.exact = true;
  config.interfaces.names = {"lo"};
  for (const std::string& text : ipAddresses(*makeContext(config, {"auto"})))
    EXPECT_TRUE(MUST(SocketAddress::parse(text)).isLoopback()) << text;
  EXPECT_FALSE(ipAddresses(*makeContext(config, {"auto"})).empty());
  config.interfaces.names = {"no-such-interface"};
  const auto refused = Context::create({config, {"auto"}, ""});
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("PEERLANE_SOCKET_IFNAME"), std::string_view::npos);
  EXPECT_NE(refused.status().message().find(" is \"=no-such-interface\","), std::string_view::npos)
      << refused.status().toString();
  EXPECT_NE(refused.status().message().find("; accepted: prefixes of names, or after = whole "),
            std::string_view::npos)
      << refused.status().toString();
  EXPECT_NE(refused.status().message().find("lo 127.0.0.1"), std::string_view::npos)
      << "the sentence says what there is: " << refused.status().toString();
  config.interfaceAddress = "127.0.0.1";
  const auto named = ipAddresses(*makeContext(config, {"auto"}));
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(MUST(SocketAddress::parse(named[0])).ip(), "127.0.0.1") << "the address wins";
}

TEST(Listeners, AnAddressOfAnotherHostIsRefusedWithThoseOfThisOne) {
  Config config;
  config.interfaceAddress = "203.0.113.9";
  for (const auto& [listen, value] :
       {std::pair("auto", "Config::interfaceAddress), is \"203.0.113.9"),
        std::pair("203.0.113.9:0", "listen on 203.0.113.9:0: ")}) {
    const auto refused = Context::create({config, {listen}, ""});
    EXPECT_NE(refused.status().message().find(value), std::string_view::npos)
        << refused.status().toString();
    EXPECT_NE(refused.status().message().find("lo 127.0.0.1"), std::string_view::npos)
        << refused.status().toString();
  }
}

// Then it is not the address that is wrong.
TEST(Listeners, ThatTheInterfacesCannotBeListedIsAnErrorOfItsOwn) {
  Config config;
  config.interfaceAddress = "127.0.0.1";
  areInterfacesHidden = true;
  const auto refused = Context::create({config, {"auto"}, ""});
  areInterfacesHidden = false;
  EXPECT_EQ(refused.status().code(), Code::kSystem);
  EXPECT_NE(refused.status().message().find("list the network interfaces of this host"),
            std::string_view::npos)
      << refused.status().toString();
  EXPECT_EQ(refused.status().message().find("PEERLANE_IF_IP"), std::string_view::npos)
      << refused.status().toString();
}

TEST(Listeners, AWildcardNamesTheAddressesBehindIt) {
  auto context = makeContext({}, {"0.0.0.0:0"});
  const auto addresses = ipAddresses(*context);
  ASSERT_FALSE(addresses.empty());
  for (const std::string& text : addresses) {
    const SocketAddress address = MUST(SocketAddress::parse(text));
    EXPECT_FALSE(address.isWildcard()) << text;
    EXPECT_EQ(address.family(), SocketAddress::Family::kIpv4) << text;
  }
  auto other = makeContext();
  EXPECT_OK(other->connect(addresses.back(), context->secretText(), kSoon).status());
}

TEST(Listeners, AFolderHoldsTheSocketAsLongAsTheContextLives) {
  const ScratchFolder folder;
  Config config;
  config.socketDirectory = folder.path();
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      count += entry.is_socket() ? 1 : 0;
    return count;
  };
  {
    auto a = makeContext(config);
    auto b = makeContext(config);
    EXPECT_EQ(files(), 4u) << "a listener and an inspection socket each";
    EXPECT_OK(a->connect(b->ticket(), kSoon).status());
  }
  EXPECT_EQ(files(), 0u);
  // As long as PEERLANE_SOCKET_DIR may be, and one byte more: the table refuses the second.
  const std::string longest = folder.file(std::string(60 - folder.file("").size(), 'x'));
  std::filesystem::create_directory(longest);
  config = MUST(Config::fromVariables({{"PEERLANE_SOCKET_DIR", longest}}));
  EXPECT_OK(Context::create({config, {}, ""}).status());
  EXPECT_NE(Config::fromVariables({{"PEERLANE_SOCKET_DIR", longest + "x"}})
                .status()
                .message()
                .find("PEERLANE_SOCKET_DIR"),
            std::string_view::npos);
}

int codeOfChild(const std::function<int()>& act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act());
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

size_t socketsIn(const std::string& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    count += entry.is_socket() ? 1 : 0;
  return count;
}

TEST(Listeners, WhatCannotServeDoesNotBegin) {
  const ScratchFolder folder;
  Config config;
  config.socketDirectory = folder.file("missing");
  const auto refused = Context::create({config, {}, ""});
  ASSERT_FALSE(refused.isOk());
  EXPECT_NE(
      refused.status().message().find("PEERLANE_SOCKET_DIR is " + config.socketDirectory +
                                      "; need a folder in which this process may make sockets"),
      std::string_view::npos)
      << refused.status().toString();
  // One of several addresses that were named is taken: nothing is left of the others.
  const Fd taken = MUST(listenOn(MUST(SocketAddress::parse("127.0.0.1:0"))));
  config.socketDirectory = folder.path();
  EXPECT_FALSE(Context::create({config, {MUST(localAddress(taken.get())).toString()}, ""}).isOk());
  EXPECT_EQ(socketsIn(folder.path()), 0u);
}

// Also of one whose progress thread never comes back from a callback of the program.
TEST(Listeners, FilesGoWithAProcessThatKeptItsContexts) {
  for (const bool isStanding : {false, true}) {
    const ScratchFolder folder;
    Config config;
    config.socketDirectory = folder.path();
    EXPECT_EQ(codeOfChild([&] {
                auto made = Context::create({config, {}, ""});
                if (!made.isOk() || socketsIn(folder.path()) != 2) return 1;
                static auto* const kept = made->release();  // a global one that nobody deletes
                if (isStanding) {
                  kept->onPeer([](const Peer&) {
                    for (;;) ::pause();
                  });
                  static auto* const other = Context::create({Config(), {}, ""})->release();
                  if (!other->connect(kept->ticket(), kSoon).isOk()) return 2;
                }
                std::exit(0);
              }),
              0);
    EXPECT_EQ(socketsIn(folder.path()), 0u) << isStanding;
  }
}

TEST(Listeners, AHandlerOfASignalMayRemoveTheFilesOfItsProcess) {
  const ScratchFolder folder;
  Config config;
  config.socketDirectory = folder.path();
  auto a = makeContext(config);
  auto b = makeContext(config);
  b.reset();
  auto c = makeContext(config);  // takes the places of the second one's files
  ASSERT_EQ(socketsIn(folder.path()), 4u);
  EXPECT_EQ(codeOfChild([] {
              Context::removeSocketFiles();  // the parent still serves
              return 0;
            }),
            0);
  EXPECT_EQ(socketsIn(folder.path()), 4u);
  // One that is gone already is no reason to change errno.
  std::filesystem::remove(*std::filesystem::directory_iterator(folder.path()));
  errno = EAGAIN;
  Context::removeSocketFiles();
  EXPECT_EQ(errno, EAGAIN) << "what the signal interrupted may ask for it";
  EXPECT_EQ(socketsIn(folder.path()), 0u);
}

}  // namespace
}  // namespace peerlane
