// SPDX-License-Identifier: Apache-2.0
//
// A link that one side gives up while the two are still connecting: what the other side said before
// it knew of that crosses, in each order, and is no error.
#include <atomic>
#include <thread>

#include "peerlane/core/wire.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/session/peer/peer_slab.h"
#include "tests/fake/added_transport.h"
#include "tests/faults/intruder.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

constexpr int kFirst = 1;  // before all links of the library

// A stranger that knows the secret dials, and offers tcp and a fake link.
class LinkEnd : public testing::Test {
 protected:
  void meet(const FakeLinkOptions& options) {
    added_ = std::make_unique<AddedTransport>(network_, options, kFirst);
    context_ = MUST(Context::create({withLinks({"tcp", options.name}), {"127.0.0.1:0"}, ""}));
    std::string address;
    for (const std::string& each : context_->addresses())
      if (!each.starts_with("unix")) address = each;
    it_ = std::make_unique<Intruder>(address);
    it_->enter(MUST(Secret::fromText(context_->secretText())));
    std::vector<std::byte> offer;
    ByteWriter(offer).u64(1000);  // a fake link's
    it_->becomePeer({{options.name, offer, 0}});
  }
  void saySlabOverFake() {
    control::ImportReply slab;
    slab.link = "fake";
    slab.bytes = slab::kBytes;
    slab.access = 3;
    slab.allocation = slab.generation = 1;
    it_->say(slab);
  }

  FakeNetwork network_{7};
  std::unique_ptr<AddedTransport> added_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Intruder> it_;
};

// The stranger gives it up, and announces its slab over it, before it reads that this side could
// not make it.
TEST_F(LinkEnd, OfOneThatThisSideCouldNotMakeCrossesItsAnswer) {
  FakeLinkOptions options;
  options.onComplete = [] { return Status(Code::kNotSupported, "this side is blind"); };
  meet(options);
  const Peer peer = MUST(context_->accept(kSoon));
  saySlabOverFake();
  it_->say(control::LinkEnded{"fake", "no use"});
  EXPECT_TRUE(it_->isQuiet());
  EXPECT_EQ(peer.state(), "ready");
  EXPECT_EQ(peer.core()->links().live().size(), 1u);
}

// Each side waits for the other's slab over each link; one that ends first is waited for no more.
TEST_F(LinkEnd, ComesBeforeTheSlabOverIt) {
  meet({});
  EXPECT_EQ(context_->accept(std::chrono::milliseconds(0)).status().code(), Code::kTimeout);
  it_->say(control::LinkEnded{"fake", "no use"});
  const Peer peer = MUST(context_->accept(kSoon));
  EXPECT_EQ(it_->hear<control::ImportReply>().link, "fake") << "this side's slab had been sent";
  saySlabOverFake();
  EXPECT_TRUE(it_->isQuiet());
  EXPECT_EQ(peer.state(), "ready");
  EXPECT_EQ(peer.route().link, "tcp");
  it_->say(control::LinkEnded{"fake", "once more"});
  EXPECT_TRUE(it_->isQuiet()) << "both may give it up at once";
  EXPECT_EQ(peer.state(), "ready");
}

// Whoever falls silent in the middle is sent away with the limit that it met.
TEST(LinkEndNever, EndsByTheSettingThatIsNamed) {
  Config config = withLinks({"tcp"});
  config.connectTimeout = std::chrono::milliseconds(50);
  const auto context = MUST(Context::create({config, {"127.0.0.1:0"}, ""}));
  Intruder it(context->addresses().back());
  it.enter(MUST(Secret::fromText(context->secretText())));
  EXPECT_TRUE(it.seesTheEnd());
  const auto turnedAway = [&] {
    return context->accept(std::chrono::milliseconds(0))
               .status()
               .message()
               .find("(PEERLANE_CONNECT_TIMEOUT) for it to say which links it has") !=
           std::string_view::npos;
  };
  EXPECT_TRUE(soon(turnedAway));
}

// The last thing that the acceptor waited for comes when a link of its own has failed, and before
// it has given that up: it is ready afterwards, over the other one.
TEST(LinkEndAtReady, IsWaitedFor) {
  FakeNetwork network(7);
  std::atomic<int> made{0};
  std::atomic<std::thread::id> acceptor{};  // its progress thread, which sees the failure
  Peer fromInitiator;
  FakeLinkOptions options;
  options.onComplete = [&] {
    if (made.fetch_add(1) == 1) {
      acceptor.store(std::this_thread::get_id());
      // The initiator says all that it has to say, its slabs too, in one go: it lies here then.
      EXPECT_OK(fromInitiator.core()->progress().call([] {}));
    }
    return Status::ok();
  };
  options.health = [&] {
    return acceptor.load() == std::this_thread::get_id()
               ? Status(Code::kPeerLost, "the cable was pulled")
               : Status::ok();
  };
  const AddedTransport added(network, options, kFirst);
  const auto initiator = makeContext(withLinks({"self", options.name}));
  const auto other = makeContext(withLinks({"self"}));
  fromInitiator = MUST(initiator->connect(other->ticket(), kSoon));
  const auto accepting = makeContext(withLinks({"self", options.name}));
  std::atomic<size_t> liveAtReady{0};
  accepting->onPeer([&](const Peer& peer) { liveAtReady = peer.core()->links().live().size(); });
  const Peer peer = MUST(initiator->connect(accepting->ticket(), kSoon));
  EXPECT_TRUE(soon([&] { return liveAtReady.load() != 0; }));
  EXPECT_EQ(liveAtReady.load(), 1u);
  EXPECT_TRUE(soon([&] { return peer.core()->links().live().size() == 1; }));
  EXPECT_EQ(peer.state(), "ready");
  EXPECT_EQ(peer.route().link, "self");
}

}  // namespace
}  // namespace peerlane
