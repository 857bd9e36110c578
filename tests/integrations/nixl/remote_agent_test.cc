// SPDX-License-Identifier: Apache-2.0
//
// How long an agent is connected to.
#include "integrations/nixl/remote_agent.h"

#include <gtest/gtest.h>

#include <vector>

#include "peerlane/os/socket.h"
#include "peerlane/session/wire/ticket.h"
#include "tests/core/expect_ok.h"

namespace peerlane::nixl {
namespace {

using namespace std::chrono_literals;

// Somebody who listens and has no room: whoever connects tries again until its time is over.
class Full {
 public:
  explicit Full(const std::string& address) {
    const SocketAddress at = MUST(SocketAddress::parse(address));
    listener_ = MUST(listenOn(at, 0));
    for (auto one = connectStart(at); one.isOk(); one = connectStart(at))
      waiting_.push_back(std::move(*one));
  }

 private:
  Fd listener_;
  std::vector<Fd> waiting_;
};

TEST(RemoteAgent, IsConnectedToWithinTheShorterOfBothLimits) {
  const std::string address = "unix:@peerlane-full-" + ContextId::random().toText();
  const Full full(address);
  for (const auto& [ofBackEnd, ofProcess] : {std::pair(60s, 100ms), std::pair(1s, 60000ms)}) {
    Config config;
    config.connectTimeout = ofProcess;
    const auto here = MUST(Context::create({config, {}, ""}));
    Ticket ticket = MUST(Ticket::decode(here->ticket()));
    ticket.context = ContextId::random();
    ticket.addresses = {address};
    RemoteAgent agent(
        "other", ConnectionInfo{MUST(ticket.encode())}, [&] { return Result(here.get()); },
        ofBackEnd);
    const auto begin = std::chrono::steady_clock::now();
    const auto refused = agent.mail();
    EXPECT_EQ(refused.status().code(), Code::kTimeout) << refused.status().toString();
    // clock: half of the minute that the longer limit is
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  }
}

}  // namespace
}  // namespace peerlane::nixl
