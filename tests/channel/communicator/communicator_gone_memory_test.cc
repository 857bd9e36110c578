// SPDX-License-Identifier: Apache-2.0
//
// Messages whose memory the program loses while it is registered: it cuts the file behind it, or
// unmaps or protects it. Such a message fails alone, at the side that lost the memory as Revoked,
// and the messages behind it go on, also where it was in the middle of the staging ring.
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/communicator/communicator_pair.h"
#include "tests/channel/fake_wire_pair.h"
#include "tests/core/soon.h"
#include "tests/os/file_memory.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr size_t kGoneBytes = FileMemory::kBytes;
constexpr size_t kGoneEager = 2048;
constexpr size_t kGonePage = 4096;

MessageOptions by(Protocol protocol) {
  MessageOptions options;
  options.protocol = protocol;
  return options;
}

struct GoneWire {
  RouteCase route;
  bool isSealed = false;
};
constexpr GoneWire kGoneWires[] = {
    {kSelf}, {kMapped}, {kCma},
    {kRing}, {kTcp},    {{"sealed_tcp", "tcp", ShmEngine::kAuto, false, "socket"}, true}};

Config configOf(const GoneWire& wire) {
  Config config = configFor(wire.route);
  config.tcpEncrypt = wire.isSealed;
  return config;
}

// Two ranks, with memory that can be lost at one of them.
class CommunicatorGoneMemory : public testing::TestWithParam<GoneWire> {
 protected:
  CommunicatorGoneMemory() : pair_(configOf(GetParam())) {}
  ~CommunicatorGoneMemory() override {
    for (const auto& [context, region] : regions_) EXPECT_OK(context->unregister(region, kSoon));
  }
  std::unique_ptr<TestMemory> memory(Context& context, uint64_t seed) {
    return std::make_unique<TestMemory>(context, kGoneBytes, GetParam().route.shared,
                                        Access::kRemoteReadWrite, seed);
  }
  Region registered(Context& context, const FileMemory& file) {
    regions_.emplace_back(
        &context, MUST(context.registerRegion(file.data(), kGoneBytes, Access::kRemoteReadWrite)));
    return regions_.back().second;
  }
  Context& a() { return *pair_.contexts.a; }
  Context& b() { return *pair_.contexts.b; }
  Result<Transfer> send(const Region& from, Protocol protocol, size_t bytes = kGoneBytes) {
    return pair_.zero->send(1, from, kGoneBytes - bytes, bytes, by(protocol));
  }
  Result<Transfer> recv(const Region& to, size_t bytes = kGoneBytes) {
    return pair_.one->recv(0, to, kGoneBytes - bytes, bytes);
  }
  // A message fails whose sender has lost its memory. `ended`: how the receive ends. Returns the
  // receiver's memory.
  auto sendLost(Loss loss, Protocol protocol, size_t bytes, Code ended) {
    FileMemory file(std::byte{0x5a});
    const Region gone = registered(a(), file);
    auto to = memory(b(), 2);
    file.lose(loss);
    const auto received = recv(to->region(), bytes);
    EXPECT_EQ(endOf(send(gone, protocol, bytes)), Code::kRevoked);
    EXPECT_EQ(endOf(received), ended);
    return to;
  }
  // The lane still works, in both directions.
  void expectOneMore(Protocol protocol) {
    const auto from = memory(a(), 11);
    const auto to = memory(b(), 12);
    const size_t bytes = protocol == Protocol::kEager ? kGoneEager : kGoneBytes;
    const auto received = recv(to->region(), bytes);
    EXPECT_EQ(endOf(send(from->region(), protocol, bytes)), Code::kOk);
    EXPECT_EQ(endOf(received), Code::kOk);
    std::memcpy(to->shadow() + kGoneBytes - bytes, from->data() + kGoneBytes - bytes, bytes);
    EXPECT_TRUE(to->isAsExpected());
    const auto back = pair_.zero->recv(1, from->region(), 0, 8);
    EXPECT_EQ(endOf(pair_.one->send(0, to->region(), 0, 8)), Code::kOk);
    EXPECT_EQ(endOf(back), Code::kOk);
    std::memcpy(from->shadow(), to->data(), 8);
    EXPECT_TRUE(from->isAsExpected());
  }

  CommunicatorPair pair_;

 private:
  std::vector<std::pair<Context*, Region>> regions_;
};

std::string goneWireName(const testing::TestParamInfo<GoneWire>& info) {
  return info.param.route.name;
}
INSTANTIATE_TEST_SUITE_P(Wires, CommunicatorGoneMemory, testing::ValuesIn(kGoneWires),
                         goneWireName);

constexpr Loss kLosses[] = {Loss::kCut, Loss::kUnmapped, Loss::kProtected};

// Gone before it leaves: the receiver gets no zeros for it.
TEST_P(CommunicatorGoneMemory, OfTheSenderFailsItsEagerMessageAlone) {
  for (const Loss loss : kLosses) {
    SCOPED_TRACE(static_cast<int>(loss));
    const auto to = sendLost(loss, Protocol::kEager, kGoneEager, Code::kCancelled);
    EXPECT_TRUE(to->isAsExpected());
    expectOneMore(Protocol::kEager);
  }
}

TEST_P(CommunicatorGoneMemory, OfTheSenderFailsItsPutAlone) {
  for (const Loss loss : kLosses) {
    SCOPED_TRACE(static_cast<int>(loss));
    const auto to = sendLost(loss, Protocol::kPut, kGoneBytes, Code::kRevoked);
    std::memcpy(to->shadow(), to->data(), kGoneBytes);  // undefined after a failure
    EXPECT_TRUE(to->isAsExpected());
    expectOneMore(Protocol::kPut);
  }
}

// In the middle of the staging ring: its chunks go on, so that later messages find theirs.
TEST_P(CommunicatorGoneMemory, OfTheSenderFailsItsStagedMessageAlone) {
  for (const Loss loss : kLosses) {
    SCOPED_TRACE(static_cast<int>(loss));
    FileMemory file(std::byte{0x5a});
    const Region gone = registered(a(), file);
    const auto from = memory(a(), 1);
    const auto to = memory(b(), 2);
    const auto after = memory(b(), 3);
    file.lose(loss);
    // The next one waits behind it for its turn in the ring.
    const auto received = recv(to->region());
    const auto next = recv(after->region());
    const auto sent = send(gone, Protocol::kRing);
    const auto sentNext = send(from->region(), Protocol::kRing);
    EXPECT_EQ(endOf(sent), Code::kRevoked);
    EXPECT_EQ(endOf(received), Code::kRevoked);
    EXPECT_EQ(endOf(sentNext), Code::kOk);
    EXPECT_EQ(endOf(next), Code::kOk);
    std::memcpy(to->shadow(), to->data(), kGoneBytes);  // undefined after a failure
    EXPECT_TRUE(to->isAsExpected());
    std::memcpy(after->shadow(), from->data(), kGoneBytes);
    EXPECT_TRUE(after->isAsExpected());
    expectOneMore(Protocol::kRing);
  }
}

// The sender is told, or its message has gone before.
TEST_P(CommunicatorGoneMemory, OfTheReceiverFailsItsMessageAlone) {
  for (const Loss loss : kLosses) {
    for (const Protocol protocol :
         {Protocol::kEager, Protocol::kRing, Protocol::kGet, Protocol::kPut}) {
      // Nobody puts to memory that must be mapped and cannot be.
      if (protocol == Protocol::kPut && GetParam().route.shared) continue;
      SCOPED_TRACE(std::to_string(static_cast<int>(loss)) + " " +
                   std::to_string(static_cast<int>(protocol)));
      const size_t bytes = protocol == Protocol::kEager ? kGoneEager : kGoneBytes;
      FileMemory file(std::byte{0x5a});
      const Region gone = registered(b(), file);
      const auto from = memory(a(), 1);
      const auto received = recv(gone, bytes);
      file.lose(loss);
      const auto sent = send(from->region(), protocol, bytes);
      EXPECT_EQ(endOf(received), Code::kRevoked);
      EXPECT_EQ(endOf(sent), protocol == Protocol::kRing ? Code::kOk : Code::kRevoked);
      expectOneMore(protocol);
    }
  }
}

// The ring is full of chunks that are good.
TEST_P(CommunicatorGoneMemory, OfTheLastChunkAloneIsNoDifference) {
  FileMemory source(std::byte{0x5a});
  FileMemory target(std::byte{0x11});
  const Region from = registered(a(), source);
  const Region to = registered(b(), target);
  const auto good = memory(b(), 2);
  auto received = recv(good->region());
  source.cutTo(kGoneBytes - kGonePage);
  EXPECT_EQ(endOf(send(from, Protocol::kRing)), Code::kRevoked);
  EXPECT_EQ(endOf(received), Code::kRevoked);
  std::memcpy(good->shadow(), good->data(), kGoneBytes);  // undefined after a failure
  EXPECT_TRUE(good->isAsExpected());
  expectOneMore(Protocol::kRing);

  const auto whole = memory(a(), 1);
  received = recv(to);
  target.cutTo(kGoneBytes - kGonePage);
  EXPECT_EQ(endOf(send(whole->region(), Protocol::kRing)), Code::kOk);
  EXPECT_EQ(endOf(received), Code::kRevoked);
  expectOneMore(Protocol::kRing);
}

// The receiver still answers what the sender waits for.
TEST_P(CommunicatorGoneMemory, OfBothSidesFailsTheMessageAlone) {
  for (const size_t left : {size_t{0}, kGoneBytes / 2, kGoneBytes - kGonePage}) {
    SCOPED_TRACE(left);
    FileMemory source(std::byte{0x5a});
    FileMemory target(std::byte{0x11});
    const Region from = registered(a(), source);
    const Region to = registered(b(), target);
    source.cutTo(kGoneBytes - kGonePage);
    target.cutTo(left);
    const auto received = recv(to);
    EXPECT_EQ(endOf(send(from, Protocol::kRing)), Code::kRevoked);
    EXPECT_EQ(endOf(received), Code::kRevoked);
    expectOneMore(Protocol::kRing);
  }
}

// The receiver takes chunks, and hears of nothing, because its progress thread stands. The sender
// waits for its word. Where memory is mapped, the receiver's lane needs only a thread that runs it;
// by cma its words go by frames, and each credit is confirmed: somebody must take its turns.
class CommunicatorUntold : public testing::TestWithParam<RouteCase> {
 protected:
  CommunicatorUntold()
      : pair_(GetParam()),
        gone_(MUST(a().registerRegion(file_.data(), kGoneBytes, Access::kRemoteReadWrite))),
        from_(a(), kGoneBytes, GetParam().shared, Access::kRemoteReadWrite, 1),
        to_(b(), kGoneBytes, GetParam().shared, Access::kRemoteReadWrite, 2),
        after_(b(), kGoneBytes, GetParam().shared, Access::kRemoteReadWrite, 3) {
    exchangeOnce();  // the ring is imported
    file_.cutTo(kGoneBytes - kGonePage);
    stands_ = std::make_unique<StandingCallback>(pair_.contexts.toA.core()->progress());
  }
  // The sender waits for its last chunk, which comes behind one whole turn of the ring.
  void loseIn(const Region& to) {
    received_ = MUST(pair_.one->recv(0, to, 0, kGoneBytes));
    next_ = MUST(pair_.one->recv(0, after_.region(), 0, kGoneBytes));
    sent_ = MUST(pair_.zero->send(1, gone_, 0, kGoneBytes, by(Protocol::kRing)));
    sentNext_ = MUST(pair_.zero->send(1, from_.region(), 0, kGoneBytes, by(Protocol::kRing)));
    EXPECT_TRUE(soon([&] {
      (void)received_.wait(0ns);  // runs the receiver's lane
      return sent_.wait(0ns).code() == Code::kRevoked;
    })) << sent_.status().toString();
    (void)received_.wait(0ns);
    EXPECT_FALSE(received_.done());
    EXPECT_FALSE(sentNext_.done());
    EXPECT_NE(a().dump().find("waits for the receiver to hear"), std::string::npos) << a().dump();
  }
  // The thread that closes takes turns while it spins, and then sleeps until others' turns have
  // ended its lane: by cma those are this thread's, because the progress thread takes none.
  void closeReceiver() {
    const auto closed = std::async(std::launch::async, [&] { pair_.one.reset(); });
    Progress& progress = pair_.contexts.toA.core()->progress();
    const bool needsTurns = std::string_view(GetParam().engine) != "mapped";
    EXPECT_TRUE(soon([&] {
      if (needsTurns) progress.turn();
      return closed.wait_for(0ns) == std::future_status::ready;
    }));
  }
  ~CommunicatorUntold() override {
    stands_.reset();
    pair_.zero.reset();
    pair_.one.reset();
    EXPECT_OK(a().unregister(gone_, kSoon));
    for (TestMemory* const memory : {&to_, &after_})  // undefined after a failure
      std::memcpy(memory->shadow(), memory->data(), kGoneBytes);
  }
  Context& a() { return *pair_.contexts.a; }
  Context& b() { return *pair_.contexts.b; }
  void exchangeOnce() {
    const auto received = pair_.one->recv(0, to_.region(), 0, kGoneBytes);
    EXPECT_EQ(endOf(pair_.zero->send(1, from_.region(), 0, kGoneBytes, by(Protocol::kRing))),
              Code::kOk);
    EXPECT_EQ(endOf(received), Code::kOk);
  }

  CommunicatorPair pair_;
  FileMemory file_{std::byte{0x5a}};
  Region gone_;
  TestMemory from_;
  TestMemory to_;
  TestMemory after_;
  std::unique_ptr<StandingCallback> stands_;
  Transfer received_;
  Transfer next_;
  Transfer sent_;
  Transfer sentNext_;
};

INSTANTIATE_TEST_SUITE_P(Routes, CommunicatorUntold, testing::Values(kSelf, kMapped, kCma),
                         routeName);

TEST_P(CommunicatorUntold, GoesOnWhenItIsHeard) {
  loseIn(to_.region());
  stands_->goOn();
  EXPECT_EQ(received_.wait(kSoon).code(), Code::kRevoked);
  EXPECT_OK(sentNext_.wait(kSoon));
  EXPECT_OK(next_.wait(kSoon));
  EXPECT_EQ(firstDifference(after_.data(), from_.data(), kGoneBytes), kGoneBytes);
}

// Too late on both sides, and no reason to end the lane.
TEST_P(CommunicatorUntold, CanBeCancelled) {
  loseIn(to_.region());
  sent_.cancel();
  received_.cancel();
  EXPECT_EQ(sent_.status().code(), Code::kRevoked);
  stands_->goOn();
  EXPECT_EQ(received_.wait(kSoon).code(), Code::kRevoked);
  EXPECT_OK(sentNext_.wait(kSoon));
  EXPECT_OK(next_.wait(kSoon));
  exchangeOnce();
}

// The next one has its place behind it.
TEST_P(CommunicatorUntold, DoesNotKeepTheNextFromItsTurnWhenThatIsCancelled) {
  loseIn(to_.region());
  sentNext_.cancel();
  next_.cancel();
  stands_->goOn();
  EXPECT_EQ(received_.wait(kSoon).code(), Code::kRevoked);
  const Code atSender = sentNext_.wait(kSoon).code();
  EXPECT_TRUE(atSender == Code::kOk || atSender == Code::kCancelled);
  EXPECT_EQ(next_.wait(kSoon).code(), atSender);
  exchangeOnce();
}

TEST_P(CommunicatorUntold, EndsWithTheSendersCommunicator) {
  loseIn(to_.region());
  pair_.zero.reset();
  EXPECT_EQ(sent_.status().code(), Code::kRevoked);
  EXPECT_EQ(sentNext_.wait(kSoon).code(), Code::kClosed);
  stands_->goOn();
  // By the note, or by the goodbye behind it.
  const Code end = received_.wait(kSoon).code();
  EXPECT_TRUE(end == Code::kRevoked || end == Code::kClosed);
  EXPECT_EQ(next_.wait(kSoon).code(), Code::kClosed);
}

TEST_P(CommunicatorUntold, EndsWithTheReceiversCommunicator) {
  loseIn(to_.region());
  closeReceiver();
  EXPECT_EQ(received_.wait(kSoon).code(), Code::kClosed);
  EXPECT_EQ(next_.wait(kSoon).code(), Code::kClosed);
  stands_->goOn();
  EXPECT_EQ(sent_.status().code(), Code::kRevoked);
  EXPECT_EQ(sentNext_.wait(kSoon).code(), Code::kClosed);
}

TEST_P(CommunicatorUntold, EndsWithTheConnection) {
  loseIn(to_.region());
  pair_.contexts.toB.close();
  EXPECT_EQ(sent_.status().code(), Code::kRevoked);
  EXPECT_NE(sentNext_.wait(kSoon).code(), Code::kTimeout);
  stands_->goOn();
  const Code end = received_.wait(kSoon).code();
  EXPECT_TRUE(end == Code::kRevoked || end == Code::kClosed || end == Code::kPeerLost)
      << received_.status().toString();
  const Code next = next_.wait(kSoon).code();
  EXPECT_TRUE(next == Code::kClosed || next == Code::kPeerLost) << next_.status().toString();
}

// What the receiver has found out by itself is why its message failed, whatever comes then.
TEST_P(CommunicatorUntold, DoesNotHideThatTheReceiverLostItsMemory) {
  FileMemory target(std::byte{0x11});
  const Region to = MUST(b().registerRegion(target.data(), kGoneBytes, Access::kRemoteReadWrite));
  target.cutTo(0);
  loseIn(to);
  closeReceiver();
  EXPECT_EQ(received_.wait(kSoon).code(), Code::kRevoked);
  EXPECT_EQ(next_.wait(kSoon).code(), Code::kClosed);
  stands_->goOn();
  EXPECT_OK(b().unregister(to, kSoon));
}

// A receiver that would never answer is not waited for: the lane ends, as it did before there was
// the note, and the connection goes on.
TEST(CommunicatorOfAnEarlierVersion, LosesItsLaneWithStagedMemory) {
  for (const uint64_t features : {feature::kAll, feature::kAll & ~feature::kHeard}) {
    SCOPED_TRACE(features);
    const bool goesOn = features == feature::kAll;
    FakeLinkOptions mapped;
    mapped.mapped = true;
    FakeWirePair pair(mapped, mapped, features);
    const CommunicatorOptions options;
    const auto zero =
        std::make_shared<CommunicatorCore>(std::vector<Peer>{Peer(), pair.toB}, 0, options);
    const auto one =
        std::make_shared<CommunicatorCore>(std::vector<Peer>{pair.toA, Peer()}, 1, options);
    auto other = std::async(std::launch::async, [&] { return one->bootstrap(kSoon); });
    ASSERT_OK(zero->bootstrap(kSoon));
    ASSERT_OK(other.get());
    FileMemory file(std::byte{0x5a});
    MemoryDescription description;
    description.kind = MemoryKind::kPrivate;
    description.mayBeCut = true;
    const Region gone(MUST(pair.toB.core()->regions().add(file.data(), kGoneBytes, Access::kLocal,
                                                          std::move(description), nullptr)),
                      {});
    file.lose(Loss::kCut);
    std::vector<std::byte> buffer(kGoneBytes);
    CommunicatorCore::Wanted in;
    in.address = buffer.data();
    in.bytes = kGoneBytes;
    CommunicatorCore::Wanted out;
    out.rank = 1;
    out.isSend = true;
    out.region = &gone;
    out.bytes = kGoneBytes;
    const auto received = one->post({&in, 1}, {});
    const auto sent = zero->post({&out, 1}, by(Protocol::kRing));
    EXPECT_EQ(endOf(sent), Code::kRevoked);
    EXPECT_EQ(endOf(received), goesOn ? Code::kRevoked : Code::kClosed);
    std::vector<std::byte> some(8);
    in.bytes = 8;
    out.region = nullptr;
    out.address = some.data();
    out.bytes = 8;
    const auto next = one->post({&in, 1}, {});
    EXPECT_EQ(endOf(zero->post({&out, 1}, {})), goesOn ? Code::kOk : Code::kRevoked);
    EXPECT_EQ(endOf(next), goesOn ? Code::kOk : Code::kClosed);
    EXPECT_OK(pair.toB.status());
    zero->close();
    one->close();
  }
}

}  // namespace
}  // namespace peerlane
