// SPDX-License-Identifier: Apache-2.0
//
// Bytes that no peer would send, to a context that works with another process meanwhile: that
// connection ends, one line says why, and the other peer does not notice.
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <random>

#include "peerlane/core/limits.h"
#include "peerlane/core/log_level.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/faults/intruder.h"
#include "tests/faults/largest_allocation.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Bytes = Intruder::Bytes;

constexpr size_t kLargestAllocation = 128 << 10;  // a record has 64 KiB at most

struct Line {
  LogLevel level;
  std::string text;
};

// Lines of the library while it lives.
class Log {
 public:
  Log() {
    setLogLevel(LogLevel::kInfo);
    setLogSink([shared = shared_](LogLevel level, std::string_view, std::string_view text) {
      const std::lock_guard lock(shared->mutex);
      shared->lines.push_back({level, std::string(text)});
    });
  }
  ~Log() {
    setLogSink({});
    setLogLevel(LogLevel::kWarn);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  // Those since the last call.
  std::vector<Line> take() {
    const std::lock_guard lock(shared_->mutex);
    return std::exchange(shared_->lines, {});
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<Line> lines;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

Bytes randomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Bytes firstOf(Bytes bytes, size_t count) {
  bytes.resize(count);
  return bytes;
}

// A record's length, and some of it.
Bytes bytesOfLength(uint32_t length) {
  Bytes bytes(4);
  std::memcpy(bytes.data(), &length, 4);
  bytes.resize(1000);
  return bytes;
}

enum class Door : uint8_t { kUnix, kTcp };

class IntruderTest : public testing::TestWithParam<Door> {
 protected:
  static Config config() {
    Config config;
    config.links = {"shm", "tcp"};
    config.connectTimeout = 5s;  // a busy machine is slow to say hello
    return config;
  }
  IntruderTest() {
    context_ = MUST(Context::create({config(), {"127.0.0.1:0"}, ""}));
    secret_ = MUST(Secret::fromText(context_->secretText()));
    for (const std::string& address : context_->addresses())
      if (address.starts_with("unix") == (GetParam() == Door::kUnix)) address_ = address;
    const std::string route = GetParam() == Door::kUnix ? "mapped" : "tcp";
    other_ = std::make_unique<PeerProcess>(std::vector<std::string>{route});
    other_->tell(context_->ticket());
    friend_ = MUST(context_->accept(kSoon));
    memory_ = std::make_unique<SideMemory>(*context_, route, Traffic::kBytes);
    tellReference(friend_, 1, memory_->region());
    const RemoteRegion theirs = hearReference(friend_, 1);
    EXPECT_EQ(other_->line(), "ready");
    other_->tell("traffic");
    traffic_ = std::make_unique<Traffic>(*context_, friend_, memory_->region(), theirs);
    EXPECT_EQ(other_->line(), "running");
    usual_ = atRest();
  }
  ~IntruderTest() override {
    EXPECT_EQ(traffic_->running(), 10u);
    other_->kill();
    traffic_.reset();
  }

  // Somebody does `what`, and is shown out with one line, a warning or worse, that has `why`.
  template <typename What>
  void expectShownOut(const char* why, What what) {
    SCOPED_TRACE(why);
    (void)log_.take();
    const uint64_t done = traffic_->done();
    {
      Intruder intruder(address_);
      largest_allocation = 0;
      what(intruder);
      EXPECT_TRUE(intruder.seesTheEnd());
    }
    expectAsBefore(done);
    EXPECT_LE(largest_allocation, kLargestAllocation);
    const std::vector<Line> lines = log_.take();
    ASSERT_EQ(lines.size(), 1u) << (lines.empty() ? "" : lines[0].text + "\n" + lines.back().text);
    EXPECT_LE(lines[0].level, LogLevel::kWarn);
    EXPECT_NE(lines[0].text.find(why), std::string::npos) << lines[0].text;
  }
  Footprint atRest() {
    return Footprint::atRest(*context_, [this] {
      const uint64_t done = traffic_->done();
      EXPECT_TRUE(soon([&] { return traffic_->done() > done; }));
    });
  }
  // The other peer goes on; nothing is left of who came.
  void expectAsBefore(uint64_t done) {
    Footprint now;
    EXPECT_TRUE(soon([&] {
      now = Footprint::of(*context_);
      now.pending = usual_.pending;  // those of the traffic come and go
      return now == usual_;
    })) << "before: "
        << usual_ << "\nafter: " << now << "\n"
        << context_->dump();
    EXPECT_TRUE(soon([&] { return traffic_->done() > done + 20; }));
    EXPECT_EQ(traffic_->running(), 10u);
    EXPECT_EQ(friend_.state(), "ready");
  }

  Log log_;
  std::unique_ptr<Context> context_;
  Secret secret_;
  std::string address_;
  std::unique_ptr<PeerProcess> other_;
  Peer friend_;
  std::unique_ptr<SideMemory> memory_;
  std::unique_ptr<Traffic> traffic_;
  Footprint usual_;
};

INSTANTIATE_TEST_SUITE_P(Doors, IntruderTest, testing::Values(Door::kUnix, Door::kTcp),
                         [](const auto& each) {
                           return std::string(each.param == Door::kUnix ? "unix" : "tcp");
                         });

TEST_P(IntruderTest, WithoutTheSecret) {
  const Secret wrong = Secret::random();
  expectShownOut("said 0 of 120 bytes of a hello", [](Intruder&) {});
  for (uint64_t seed = 0; seed < 5; ++seed)
    expectShownOut("Corrupt", [&](Intruder& it) {
      it.send(randomBytes(1 << (3 * seed), seed));
      it.finish();
    });
  expectShownOut("PermissionDenied", [&](Intruder& it) { it.send(it.hello(wrong)); });
  expectShownOut("after 60 of 120 bytes", [&](Intruder& it) {
    it.send(firstOf(it.hello(secret_), 60));
    it.finish();
  });
  expectShownOut("said 119 of 120 bytes of a hello",
                 [&](Intruder& it) { it.send(firstOf(it.hello(secret_), 119)); });
  expectShownOut("major", [&](Intruder& it) {
    Bytes hello = it.hello(secret_);
    hello[8] = std::byte{9};
    it.send(hello);
  });
  for (const size_t at : {13u, 30u, 50u, 81u, 119u})
    expectShownOut("PermissionDenied", [&](Intruder& it) {
      Bytes hello = it.hello(secret_);
      hello[at] ^= std::byte{1};
      it.send(hello);
    });
}

// A recorded hello is answered; what follows shows that it was only recorded.
TEST_P(IntruderTest, WithAReplayedHello) {
  Bytes recorded;
  expectShownOut("said 0 of 120 bytes of a hello",
                 [&](Intruder& it) { recorded = it.hello(secret_); });
  expectShownOut("PermissionDenied", [&](Intruder& it) {
    it.send(recorded);
    it.send(randomBytes(24, 1));
    Bytes record = randomBytes(104, 2);
    const uint32_t length = 100;
    std::memcpy(record.data(), &length, 4);
    it.send(record);
  });
  expectShownOut("did not finish connecting in time", [&](Intruder& it) { it.send(recorded); });
}

TEST_P(IntruderTest, WithTheSecretAndNoManners) {
  const control::Heartbeat beat{1, true};
  for (uint64_t seed = 0; seed < 5; ++seed)
    expectShownOut("Corrupt", [&](Intruder& it) {
      it.enter(secret_);
      it.send(it.sealed(randomBytes(1 << (3 * seed), seed)));
    });
  for (const uint32_t length : {0u, 16u, 65537u, 0x7fffffffu, 0xffffffffu})
    expectShownOut("Corrupt", [&](Intruder& it) {
      it.enter(secret_);
      it.say(beat);
      it.send(bytesOfLength(length));
    });
  expectShownOut("PermissionDenied", [&](Intruder& it) {  // a record twice
    it.enter(secret_);
    it.say(beat);
    const Bytes record = it.sealed(beat);
    it.send(record);
    it.send(record);
  });
  expectShownOut("PermissionDenied", [&](Intruder& it) {  // a bit flipped
    it.enter(secret_);
    it.say(beat);
    Bytes record = it.sealed(beat);
    record.back() ^= std::byte{1};
    it.send(record);
  });
  expectShownOut("Corrupt", [&](Intruder& it) {  // cut
    it.enter(secret_);
    it.say(beat);
    const Bytes record = it.sealed(beat);
    it.send(firstOf(record, record.size() - 1));
    it.finish();
  });
}

TEST_P(IntruderTest, WithTheSecretAndTheWrongWords) {
  const std::vector<ControlMessage> outOfTurn = {
      control::Accepted{{"tcp"}, {}},
      control::Accepted{{"carrier pigeon"}, {}},
      control::ImportRequest{1, 1, 1, 3, {}},
      control::ImportReply{},
      control::ChunkRequest{1, 1, 1, 0, 1},
      control::ChunkReply{},
      control::StagingRequest{1, 4096},
      control::StagingReply{},
      control::StagedMove{},
      control::StagedMoveDone{},
      control::RevokeDone{77, Code::kOk},
      control::LinkEnded{"tcp", "before it was made"},
      control::LinkMessage{"carrier pigeon", {}},
      control::Offers{{{"shm", randomBytes(50, 1), 3}}},
      control::Offers{{{"tcp", {}, 200}}},
  };
  for (const ControlMessage& message : outOfTurn) {
    SCOPED_TRACE(controlName(message));
    expectShownOut("Corrupt", [&](Intruder& it) {
      it.enter(secret_);
      it.say(message);
    });
  }
  for (const bool isEmpty : {true, false})
    expectShownOut("Corrupt", [&](Intruder& it) {  // offers twice before a choice
      it.enter(secret_);
      control::Offers offers;
      if (!isEmpty) offers.links = {{"pigeon", {}, 0}};
      it.say(offers);
      it.say(offers);
    });
  expectShownOut("Corrupt", [&](Intruder& it) {  // more than anybody waits for
    it.enter(secret_);
    for (uint32_t i = 0; i <= limits::kMessagesPerPeer; ++i)
      it.say(control::UserMessage{i, randomBytes(16, i)});
  });
  if (GetParam() == Door::kUnix)
    expectShownOut("Corrupt", [&](Intruder& it) {  // descriptors that no message is about
      it.enter(secret_);
      const std::vector<int> files(16, 0);
      for (int i = 0; i < 5; ++i) it.sendWithFiles(it.sealed(control::Heartbeat{1, true}), files);
    });
}

// --- As a peer that was let in ---

// What the numbers of a later version mean is not guessed.
TEST_P(IntruderTest, AKindOfMemoryThatNobodyKnowsFailsItsImportAlone) {
  Intruder it(address_);
  it.enter(secret_);
  it.becomePeer();
  const Peer peer = MUST(context_->accept(kSoon));
  RegionReference reference;
  const auto owner = peer.core()->context().bytes();
  std::transform(owner.begin(), owner.end(), reference.owner.begin(),
                 [](std::byte byte) { return static_cast<uint8_t>(byte); });
  reference.allocation = reference.generation = 7;
  reference.bytes = 4096;
  reference.access = Access::kRemoteReadWrite;
  const RemoteRegion remote = MUST(peer.importRegion(reference.encode()));
  auto prepared = std::async(std::launch::async, [&] { return remote.prepare(kSoon); });
  control::ImportReply grant;
  grant.request = it.hear<control::ImportRequest>().request;
  grant.link = "tcp";
  grant.place = 9;
  grant.exported = 1;
  grant.kindName = "moon memory by rocket";
  grant.bytes = 4096;
  grant.access = 3;
  grant.allocation = grant.generation = 7;
  it.say(grant);
  const Status refused = prepared.get();
  EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
  for (const char* part : {"'moon memory by rocket'", "place 9", "export 1", "shape 0"})
    EXPECT_NE(refused.message().find(part), std::string_view::npos) << refused.toString();
  EXPECT_EQ(it.hear<control::Release>().allocation, 7u);
  EXPECT_EQ(peer.state(), "ready");
}

TEST_P(IntruderTest, AsAPeerItsOwnConnectionEnds) {
  const std::vector<std::pair<const char*, std::function<void(Intruder&)>>> attacks = {
      {"random record", [](Intruder& it) { it.send(it.sealed(randomBytes(333, 5))); }},
      {"huge record", [](Intruder& it) { it.send(bytesOfLength(0xfffffff0)); }},
      {"another slab", [](Intruder& it) { it.say(control::ImportReply{}); }},
      {"links once more", [](Intruder& it) { it.say(control::Accepted{}); }},
      {"offers once more", [](Intruder& it) { it.say(control::Offers{}); }},
      {"the end of a link that was not made",
       [](Intruder& it) {
         it.say(control::LinkEnded{"pigeon", "it flew away"});
       }},
      {"words about a link that was not offered",
       [](Intruder& it) {
         it.say(control::LinkMessage{"pigeon", {}});
       }},
      {"unasked confirmation",
       [](Intruder& it) {
         it.say(control::RevokeDone{5, Code::kOk});
       }},
      {"chunks that nobody asked for",
       [](Intruder& it) {
         it.say(control::ChunkReply{9, Code::kOk, "", 0, 3, 0});
       }},
      {"staging memory that nobody asked for",
       [](Intruder& it) {
         it.say(control::StagingReply{9, Code::kOk, "", 1, 2, 3});
       }},
      {"a move that nobody asked for",
       [](Intruder& it) {
         it.say(control::StagedMoveDone{9, Code::kOk, ""});
       }},
      {"random frames",
       [](Intruder& it) {
         const Bytes junk = randomBytes(100'000, 6);
         (void)::send(it.data(), junk.data(), junk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
       }},
  };
  {  // The first peer that can use no other link than tcp has its listener opened, which stays.
    Intruder first(address_);
    first.enter(secret_);
    first.becomePeer();
    (void)MUST(context_->accept(kSoon));
  }
  usual_ = atRest();
  for (const auto& [name, attack] : attacks) {
    SCOPED_TRACE(name);
    const uint64_t done = traffic_->done();
    {
      Intruder it(address_);
      it.enter(secret_);
      it.becomePeer();
      const Peer peer = MUST(context_->accept(kSoon));
      EXPECT_EQ(peer.route().link, "tcp");
      EXPECT_EQ(peer.state(), "ready");
      // It may ask for what there is not, and is answered.
      it.say(control::ImportRequest{4, 12345, 6789, 3, {"tcp"}});
      EXPECT_EQ(it.hear<control::ImportReply>().code, Code::kInvalidArgument);
      it.say(control::ChunkRequest{5, 12345, 6789, 0, 253});
      EXPECT_EQ(it.hear<control::ChunkReply>().code, Code::kInvalidArgument);
      EXPECT_EQ(peer.state(), "ready");
      (void)log_.take();
      largest_allocation = 0;
      attack(it);
      EXPECT_TRUE(it.seesTheEnd());
      EXPECT_EQ(MUST(Signal::create(peer, 1)).wait(1, kSoon).code(), Code::kPeerLost);
    }
    expectAsBefore(done);
    EXPECT_LE(largest_allocation, kLargestAllocation);
    size_t told = 0;
    for (const Line& line : log_.take()) told += line.level <= LogLevel::kWarn ? 1 : 0;
    EXPECT_GE(told, 1u);
    EXPECT_LE(told, 2u);  // the link's, and the peer's
  }
}

}  // namespace
}  // namespace peerlane
