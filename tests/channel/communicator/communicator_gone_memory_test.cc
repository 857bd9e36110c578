// SPDX-License-Identifier: Apache-2.0
//
// Messages whose memory the program loses while it is registered: it cuts the file behind it, or
// unmaps or protects it. Such a message fails alone, at the side that lost the memory as Revoked,
// and the messages behind it go on.
#include <memory>
#include <string>

#include "tests/channel/communicator/communicator_pair.h"
#include "tests/channel/transfer/file_memory.h"

namespace peerlane {
namespace {

constexpr size_t kGoneBytes = FileMemory::kBytes;
constexpr size_t kGoneEager = 2048;

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
    FileMemory file(std::byte{0x5a});
    const Region gone = registered(a(), file);
    const auto to = memory(b(), 2);
    file.lose(loss);
    const auto received = recv(to->region(), kGoneEager);
    EXPECT_EQ(endOf(send(gone, Protocol::kEager, kGoneEager)), Code::kRevoked);
    EXPECT_EQ(endOf(received), Code::kCancelled);
    EXPECT_TRUE(to->isAsExpected());
    expectOneMore(Protocol::kEager);
  }
}

TEST_P(CommunicatorGoneMemory, OfTheSenderFailsItsPutAlone) {
  for (const Loss loss : kLosses) {
    SCOPED_TRACE(static_cast<int>(loss));
    FileMemory file(std::byte{0x5a});
    const Region gone = registered(a(), file);
    const auto to = memory(b(), 2);
    file.lose(loss);
    const auto received = recv(to->region());
    EXPECT_EQ(endOf(send(gone, Protocol::kPut)), Code::kRevoked);
    EXPECT_EQ(endOf(received), Code::kRevoked);
    std::memcpy(to->shadow(), to->data(), kGoneBytes);  // undefined after a failure
    EXPECT_TRUE(to->isAsExpected());
    expectOneMore(Protocol::kPut);
  }
}

// The sender is told.
TEST_P(CommunicatorGoneMemory, OfTheReceiverFailsItsMessageAlone) {
  for (const Loss loss : kLosses) {
    for (const Protocol protocol : {Protocol::kEager, Protocol::kGet}) {
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
      EXPECT_EQ(endOf(sent), Code::kRevoked);
      expectOneMore(protocol);
    }
  }
}

}  // namespace
}  // namespace peerlane
