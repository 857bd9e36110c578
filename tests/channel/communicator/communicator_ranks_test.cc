// SPDX-License-Identifier: Apache-2.0
//
// How ranks find each other, and more than two of them: the bootstrap, groups, and a rank in
// another process that is killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/communicator/communicator_pair.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

// `count` contexts that have met over one address, as threads of this process.
struct World {
  explicit World(uint32_t count, const Config& config = {}) : contexts(count), ranks(count) {
    contexts[0] = MUST(Context::create({config, {"127.0.0.1:0"}, ""}));
    std::string address;
    for (const std::string& each : contexts[0]->addresses())
      if (each.find("127.0.0.1") != std::string::npos) address = each;
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        if (rank > 0) contexts[rank] = MUST(Context::create({config, {"127.0.0.1:0"}, ""}));
        CommunicatorOptions options;
        options.timeout = kSoon;
        ranks[rank] = MUST(Communicator::create(
            *contexts[rank], Bootstrap{rank, count, address, contexts[0]->secretText()}, options));
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

TEST(CommunicatorRanks, MeetByOneAddress) {
  constexpr uint32_t kRanks = 4;
  World world(kRanks);
  // Everybody with everybody, one group per rank: an exchange of all with all.
  std::vector<std::vector<uint32_t>> out(kRanks, std::vector<uint32_t>(kRanks));
  std::vector<std::vector<uint32_t>> in(kRanks, std::vector<uint32_t>(kRanks));
  std::vector<Transfer> transfers;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(world.ranks[rank]->rank(), rank);
    ASSERT_EQ(world.ranks[rank]->size(), kRanks);
    auto group = world.ranks[rank]->group();
    for (Rank other = 0; other < kRanks; ++other) {
      if (other == rank) continue;
      EXPECT_EQ(world.ranks[rank]->peer(other).contextId(), world.contexts[other]->id());
      out[rank][other] = 100 * rank + other;
      group.send(other, std::as_bytes(std::span(&out[rank][other], 1)));
      group.recv(other, std::as_writable_bytes(std::span(&in[rank][other], 1)));
    }
    transfers.push_back(MUST(group.post()));
  }
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.wait(kSoon));
  for (Rank rank = 0; rank < kRanks; ++rank)
    for (Rank other = 0; other < kRanks; ++other)
      EXPECT_EQ(in[rank][other], other == rank ? 0 : 100 * other + rank);
}

// The first message of a channel of the library's own; later ones are dropped.
std::vector<std::byte> heardOn(const Peer& peer, uint32_t channel) {
  struct Heard {
    std::atomic<bool> is{false};
    std::vector<std::byte> content;
  };
  const auto heard = std::make_shared<Heard>();
  peer.core()->messages().onMessage(channel, [heard](std::vector<std::byte> content) {
    if (heard->is.load()) return;
    heard->content = std::move(content);
    heard->is.store(true);
  });
  EXPECT_TRUE(soon([&] { return heard->is.load(); }));
  EXPECT_TRUE(heard->is.load());
  return heard->content;
}

// docs/wire.md, "Message lanes": what a rank says to one that it has just connected to.
TEST(CommunicatorRanks, GoldenHello) {
  constexpr uint32_t kNotes = 0xfffffffe;
  constexpr uint32_t kFirstCommunicator = 0x80000000;
  const auto fromHex = [](const std::string& hex) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < hex.size(); i += 2)
      bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return bytes;
  };
  auto zero = MUST(Context::create({Config(), {"127.0.0.1:0"}, ""}));
  const std::string address = zero->addresses().back();
  auto one = MUST(Context::create({Config(), {}, ""}));

  // Written: rank 1 speaks to a rank 0 that never answers.
  std::thread rank([&] {
    CommunicatorOptions options;
    options.timeout = 2s;
    const auto never =
        Communicator::create(*one, Bootstrap{1, 2, address, zero->secretText()}, options);
    EXPECT_EQ(never.status().code(), Code::kTimeout) << never.status().toString();
  });
  const Peer toOne = MUST(zero->accept(kSoon));
  const auto said = heardOn(toOne, kNotes);
  const std::string ticket = one->ticket();
  ASSERT_LT(ticket.size(), 256u) << "one piece, and its length in one byte";
  std::vector<std::byte> golden = fromHex("0101000100000002000000");
  golden.push_back(static_cast<std::byte>(ticket.size()));
  golden.resize(golden.size() + 3);
  const auto text = std::as_bytes(std::span(ticket));
  golden.insert(golden.end(), text.begin(), text.end());
  EXPECT_EQ(said, golden);
  rank.join();
  toOne.close();

  // Read: rank 0 takes the same bytes (here in two pieces) for rank 1, and goes on with its hello.
  const Peer toZero = MUST(one->connect(zero->ticket(), kSoon));
  ASSERT_OK(toZero.core()->messages().send(kNotes, fromHex("0100000100000002000000"
                                                           "02000000"
                                                           "706c")));
  ASSERT_OK(toZero.core()->messages().send(kNotes, fromHex("0101000100000002000000"
                                                           "01000000"
                                                           "31")));
  // It has nobody to connect to.
  ASSERT_OK(toZero.core()->messages().send(kNotes, fromHex("0401000100000002000000"
                                                           "00000000")));
  std::thread other([&] {
    CommunicatorOptions options;
    options.timeout = 2s;
    EXPECT_FALSE(Communicator::create(*zero, Bootstrap{0, 2, "", ""}, options).isOk());
  });
  EXPECT_EQ(heardOn(toZero, kNotes), fromHex("050100000000000200000000000000"));
  const auto hello = heardOn(toZero, kFirstCommunicator);
  ASSERT_EQ(hello.size(), 64u);
  EXPECT_EQ(std::vector<std::byte>(hello.begin(), hello.begin() + 28), fromHex("504c434d01010003"
                                                                               "0000000000000000"
                                                                               "00000000"
                                                                               "01000000"
                                                                               "02000000"));
  other.join();
}

// One transfer for messages of several ranks: it waits for all, and reports what failed.
TEST(CommunicatorRanks, AGroupIsOneTransfer) {
  World world(3);
  TestMemory middle(*world.contexts[1], 3 * 50'000, false, Access::kRemoteReadWrite, 1);
  TestMemory first(*world.contexts[0], 50'000, false, Access::kRemoteReadWrite, 2);
  TestMemory last(*world.contexts[2], 50'000, false, Access::kRemoteReadWrite, 3);
  auto group = world.ranks[1]->group();
  group.recv(0, middle.region(), 0, 50'000).send(2, middle.region(), 50'000, 50'000);
  const auto transfer = MUST(group.post());
  const auto sent = world.ranks[0]->send(1, first.region(), 0, 50'000);
  EXPECT_EQ(endOf(sent), Code::kOk);
  EXPECT_EQ(transfer.wait(10ms).code(), Code::kTimeout) << "rank 2 has not received";
  EXPECT_EQ(endOf(world.ranks[2]->recv(1, last.region(), 0, 50'000)), Code::kOk);
  EXPECT_OK(transfer.wait(kSoon));
  std::memcpy(middle.shadow(), first.shadow(), 50'000);
  std::memcpy(last.shadow(), middle.shadow() + 50'000, 50'000);
  EXPECT_TRUE(middle.isAsExpected());
  EXPECT_TRUE(last.isAsExpected());

  // All or nothing is posted.
  auto bad = world.ranks[1]->group();
  bad.send(0, middle.region(), 0, 8).send(2, middle.region(), 1'000'000, 8);
  EXPECT_EQ(bad.post().status().code(), Code::kInvalidArgument);
  auto mixed = world.ranks[1]->group();
  mixed.send(0, middle.region(), 0, 8).send(2, middle.region(), 0, 8);
  const auto partly = MUST(mixed.post());
  EXPECT_EQ(endOf(world.ranks[0]->recv(1, first.region(), 0, 8)), Code::kOk);
  EXPECT_EQ(endOf(world.ranks[2]->recv(1, last.region(), 0, 9)), Code::kSizeMismatch);
  EXPECT_EQ(partly.wait(kSoon).code(), Code::kSizeMismatch);
  std::memcpy(first.shadow(), middle.shadow(), 8);
  EXPECT_TRUE(first.isAsExpected());

  // A group of which one rank is gone.
  auto late = world.ranks[1]->group();
  late.recv(0, middle.region(), 0, 8).recv(2, middle.region(), 8, 8);
  const auto half = MUST(late.post());
  EXPECT_EQ(endOf(world.ranks[0]->send(1, first.region(), 0, 8)), Code::kOk);
  world.ranks[2].reset();
  EXPECT_EQ(half.wait(kSoon).code(), Code::kClosed);
  std::memcpy(middle.shadow(), first.shadow(), 8);
  EXPECT_TRUE(middle.isAsExpected());
}

TEST(CommunicatorRanks, TwoPeersCountByTheirIds) {
  ContextPair contexts(configFor(kSelf));
  auto other = std::async(std::launch::async,
                          [&] { return Communicator::create(*contexts.b, contexts.toA); });
  const auto one = MUST(Communicator::create(*contexts.a, contexts.toB));
  const auto two = MUST(other.get());
  EXPECT_EQ(one->rank(), contexts.a->id() < contexts.b->id() ? 0u : 1u);
  EXPECT_EQ(one->rank() + two->rank(), 1u);
  const uint64_t sent = 42;
  uint64_t received = 0;
  const auto send = one->send(two->rank(), std::as_bytes(std::span(&sent, 1)));
  EXPECT_EQ(endOf(two->recv(one->rank(), std::as_writable_bytes(std::span(&received, 1)))),
            Code::kOk);
  EXPECT_EQ(endOf(send), Code::kOk);
  EXPECT_EQ(received, 42u);
}

TEST(CommunicatorRanks, RefusesOtherCounts) {
  ContextPair contexts(configFor(kSelf));
  CommunicatorOptions options;
  options.timeout = kSoon;
  // Both think they are rank 0.
  auto other = std::async(std::launch::async, [&] {
    return Communicator::create(*contexts.b, {Peer(), contexts.toA}, 0, options);
  });
  const auto one = Communicator::create(*contexts.a, {Peer(), contexts.toB}, 0, options);
  const auto two = other.get();
  // Whoever looks first says why; the other may only hear that nothing comes of it.
  EXPECT_FALSE(one.isOk());
  EXPECT_FALSE(two.isOk());
  EXPECT_TRUE(one.status().code() == Code::kInvalidArgument ||
              two.status().code() == Code::kInvalidArgument);
  // Both have counted the attempt, so the next one meets.
  auto again = std::async(std::launch::async, [&] {
    return Communicator::create(*contexts.b, {contexts.toA, Peer()}, 1, options);
  });
  const auto met = Communicator::create(*contexts.a, {Peer(), contexts.toB}, 0, options);
  EXPECT_OK(met.status());
  EXPECT_OK(again.get().status());
}

TEST(CommunicatorRanks, RefusesWrongGroups) {
  ContextPair contexts(configFor(kSelf));
  Context& a = *contexts.a;
  const auto code = [&](const std::vector<Peer>& peers, Rank own,
                        const CommunicatorOptions& options = {}) {
    return Communicator::create(a, peers, own, options).status().code();
  };
  EXPECT_EQ(code({Peer()}, 0), Code::kInvalidArgument) << "alone";
  EXPECT_EQ(code({Peer(), contexts.toB}, 2), Code::kInvalidArgument) << "not a member";
  EXPECT_EQ(code({Peer(), Peer()}, 0), Code::kInvalidArgument) << "nobody there";
  EXPECT_EQ(code({Peer(), contexts.toA}, 0), Code::kInvalidArgument) << "another context's";
  EXPECT_EQ(code({Peer(), contexts.toB, contexts.toB}, 0), Code::kInvalidArgument) << "twice";
  CommunicatorOptions options;
  options.eagerBytes = 5000;
  EXPECT_EQ(code({Peer(), contexts.toB}, 0, options), Code::kInvalidArgument);
  options.eagerBytes = 0;
  options.timeout = 20ms;
  EXPECT_EQ(code({Peer(), contexts.toB}, 0, options), Code::kTimeout) << "the other side does not";
  EXPECT_EQ(Communicator::create(a, Bootstrap{1, 1, "127.0.0.1:1", ""}).status().code(),
            Code::kInvalidArgument);
  contexts.toB.close();
  EXPECT_EQ(code({Peer(), contexts.toB}, 0), Code::kClosed);
}

// Many communicators one after the other leave nothing behind.
TEST(CommunicatorRanks, ComeAndGo) {
  CommunicatorPair pair(kMapped);
  const auto regionsOf = [](const Context& context) {
    const std::string dump = context.dump();
    size_t count = 0;
    for (size_t at = dump.find("\n  region "); at != std::string::npos;
         at = dump.find("\n  region ", at + 1))
      ++count;
    return count;
  };
  // Areas go when the other side has let go of them, in the background.
  const auto settled = [&](size_t count) {
    EXPECT_TRUE(soon([&] { return regionsOf(*pair.contexts.a) <= count; }));
    return regionsOf(*pair.contexts.a);
  };
  const size_t before = regionsOf(*pair.contexts.a);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::byte> out(10'000, static_cast<std::byte>(i));
    std::vector<std::byte> in(10'000);
    MessageOptions ring;
    ring.protocol = Protocol::kRing;
    const auto sent = pair.zero->send(1, std::span<const std::byte>(out), ring);
    ASSERT_EQ(endOf(pair.one->recv(0, std::span(in))), Code::kOk) << i;
    ASSERT_EQ(endOf(sent), Code::kOk);
    ASSERT_EQ(in, out);
    pair.zero.reset();
    pair.one.reset();
    pair.meet({});
  }
  EXPECT_EQ(settled(before), before);
}

// --- Two processes ---

constexpr size_t kChildBytes = 5'000'000;

// The other process: rank 1, until it is killed.
void runRank1(const std::string& ticket) {
  auto context = MUST(Context::create());
  const Peer peer = MUST(context->connect(ticket, kSoon));
  auto communicator = MUST(Communicator::create(*context, {peer, Peer()}, 1));
  const Region shared = MUST(context->allocate(kChildBytes));
  std::vector<std::byte> own(kChildBytes);
  for (const Protocol protocol : {Protocol::kGet, Protocol::kPut, Protocol::kRing}) {
    // Echo: what comes in shared memory goes back from private memory, and the other way round.
    MessageOptions options;
    options.protocol = protocol;
    ASSERT_EQ(endOf(communicator->recv(0, shared, 0, kChildBytes)), Code::kOk);
    std::memcpy(own.data(), shared.data(), kChildBytes);
    ASSERT_EQ(endOf(communicator->send(0, std::span<const std::byte>(own), options)), Code::kOk);
    ASSERT_EQ(endOf(communicator->recv(0, std::span(own))), Code::kOk);
    std::memcpy(shared.data(), own.data(), kChildBytes);
    ASSERT_EQ(endOf(communicator->send(0, shared, 0, kChildBytes, options)), Code::kOk);
  }
  while (endOf(communicator->recv(0, shared, 0, kChildBytes)) == Code::kOk) continue;
}

// Made while this process has no threads.
class OtherProcess {
 public:
  OtherProcess() {
    EXPECT_EQ(pipe(pipe_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    std::string ticket;
    for (char each = 0; read(pipe_[0], &each, 1) == 1 && each != '\n';) ticket += each;
    runRank1(ticket);
    _exit(1);  // it should have been killed
  }
  ~OtherProcess() {
    kill();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  void tell(const std::string& ticket) {
    const std::string line = ticket + "\n";
    EXPECT_EQ(write(pipe_[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int how = 0;
    EXPECT_EQ(waitpid(pid_, &how, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(how)) << "it ended by itself";
    pid_ = -1;
  }

 private:
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST(CommunicatorProcesses, ExchangeMessagesUntilOneIsKilled) {
  OtherProcess child;
  auto context = MUST(Context::create());
  child.tell(context->ticket());
  const Peer peer = MUST(context->accept(kSoon));
  auto communicator = MUST(Communicator::create(*context, {Peer(), peer}, 0));
  TestMemory from(*context, kChildBytes, true, Access::kRemoteReadWrite, 1);
  TestMemory to(*context, kChildBytes, true, Access::kRemoteReadWrite, 2);
  std::vector<std::byte> own(from.data(), from.data() + kChildBytes);
  for (const Protocol protocol : {Protocol::kGet, Protocol::kPut, Protocol::kRing}) {
    MessageOptions options;
    options.protocol = protocol;
    ASSERT_EQ(endOf(communicator->send(1, from.region(), 0, kChildBytes, options)), Code::kOk);
    ASSERT_EQ(endOf(communicator->recv(1, to.region(), 0, kChildBytes)), Code::kOk);
    std::memcpy(to.shadow(), from.shadow(), kChildBytes);
    ASSERT_TRUE(to.isAsExpected()) << static_cast<int>(protocol);
    ASSERT_EQ(endOf(communicator->send(1, std::span<const std::byte>(own))), Code::kOk);
    std::fill(to.data(), to.data() + kChildBytes, std::byte{0});
    ASSERT_EQ(endOf(communicator->recv(1, to.region(), 0, kChildBytes)), Code::kOk);
    ASSERT_TRUE(to.isAsExpected()) << static_cast<int>(protocol);
  }
  // Killed while messages of both directions are pending: each ends, once, because the peer is lost
  // and not because it is silent.
  std::vector<Transfer> pending;
  for (int i = 0; i < 200; ++i)
    pending.push_back(MUST(communicator->send(1, from.region(), 0, kChildBytes)));
  for (int i = 0; i < 20; ++i)
    pending.push_back(MUST(communicator->recv(1, to.region(), 0, kChildBytes)));
  ASSERT_OK(pending.front().wait(kSoon));
  child.kill();
  for (const Transfer& transfer : pending) {
    const Code end = transfer.wait(kSoon).code();
    EXPECT_TRUE(end == Code::kOk || end == Code::kPeerLost) << transfer.status().toString();
  }
  EXPECT_EQ(pending.back().status().code(), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
