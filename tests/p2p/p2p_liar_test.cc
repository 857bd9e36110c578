// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator, and an other side that speaks its notes by hand and lies about the process that
// it is.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>

#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/process/root_blob.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane::p2p {
namespace {

using Bytes = std::vector<std::byte>;

// One end of a connection on which notes are spoken by hand.
class ByHand {
 public:
  explicit ByHand(Peer peer) : peer_(std::move(peer)) {
    peer_.core()->messages().onMessage(kPairChannel, [come = come_](const Bytes& bytes) {
      const std::lock_guard lock(come->mutex);
      come->notes.push_back(bytes);
      come->changed.notify_one();
    });
  }
  ~ByHand() {
    peer_.core()->messages().onMessage(kPairChannel, nullptr);
    peer_.close();
  }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;

  void say(const Bytes& note) const {
    EXPECT_OK(peer_.core()->messages().send(kPairChannel, note));
  }
  // The next note; empty when none comes.
  Bytes hear() const {
    std::unique_lock lock(come_->mutex);
    if (!come_->changed.wait_for(lock, kSoon, [&] { return !come_->notes.empty(); })) return {};
    Bytes note = std::move(come_->notes.front());
    come_->notes.pop_front();
    return note;
  }

 private:
  struct Come {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Bytes> notes;
  };
  const Peer peer_;
  const std::shared_ptr<Come> come_ = std::make_shared<Come>();
};

// A process: what of it the C API would keep.
struct Process {
  explicit Process(uint8_t number) {
    token.fill(number);
    segments.emplace(token);
  }
  ContextId id() const { return MUST(ContextId::fromText(context->id())); }

  std::shared_ptr<Context> context = makeContext();
  ProcessToken token{};
  std::optional<SegmentRegistry> segments;
  ImportedSegments imports;
};

// The liar's end of a connection to `honest`, to which it says that it is `claimed`.
struct Meeting {
  Meeting(Process& liar, Process& honest, const ProcessToken& claimed) {
    Invitation invitation = MUST(honest.context->invite());
    end.emplace(MUST(liar.context->connect(invitation.ticket(), kSoon)));
    PairOptions options;
    options.wantsMessages = false;
    options.timeout = kSoon;
    auto made = std::async(std::launch::async, [&, peer = MUST(invitation.accept(kSoon))] {
      return PairCommunicator::create({honest.context, peer, /*isRoot=*/true}, options,
                                      *honest.segments, honest.imports);
    });
    PairNote hello;
    hello.kind = P2P_BIDIRECTIONAL;
    hello.link = P2P_LINK_AUTO;
    hello.wantsMessages = false;
    hello.process = claimed;
    end->say(hello.encode());
    EXPECT_EQ(MUST(PairNote::decode(end->hear())).process, honest.token);
    pair = MUST(made.get());
  }
  ~Meeting() { pair->leave(); }

  std::optional<ByHand> end;
  std::shared_ptr<PairCommunicator> pair;
};

TEST(P2pLiar, ALiarLearnsNoKeyAndItsAskIsWorthNothingElsewhere) {
  Process owner(1), importer(2), liar(3);
  std::vector<std::byte> memory(4096);
  const SegmentName name = MUST(owner.segments->add(owner.context, memory.data(), memory.size(),
                                                    Access::kRemoteReadWrite, DeviceKind::kHost));
  EXPECT_OK(importer.imports.add(name));

  // The importer takes the liar for the owner, and asks.
  const Meeting withImporter(liar, importer, owner.token);
  const Bytes ask = withImporter.end->hear();
  EXPECT_EQ(MUST(PairNote::decode(ask)).type, PairNote::Type::kAsk);
  EXPECT_EQ(MUST(PairNote::decode(ask)).segment, name.number);
  const auto key = std::as_bytes(std::span(name.key));
  EXPECT_EQ(std::search(ask.begin(), ask.end(), key.begin(), key.begin() + 8), ask.end());

  const Meeting withOwner(liar, owner, importer.token);
  withOwner.end->say(ask);
  const PairNote refused = MUST(PairNote::decode(withOwner.end->hear()));
  EXPECT_EQ(refused.type, PairNote::Type::kAnswer);
  EXPECT_EQ(refused.code, Code::kInvalidArgument) << refused.why;

  // Nothing but the ends was wrong with it: who has the key makes one for them, in this direction.
  PairNote own;
  own.type = PairNote::Type::kAsk;
  own.segment = name.number;
  own.proof = makeProof(name.number, name.key, {owner.id(), liar.id()});
  withOwner.end->say(own.encode());
  EXPECT_EQ(MUST(PairNote::decode(withOwner.end->hear())).code, Code::kInvalidArgument);
  own.proof = makeProof(name.number, name.key, {liar.id(), owner.id()});
  withOwner.end->say(own.encode());
  EXPECT_EQ(MUST(PairNote::decode(withOwner.end->hear())).code, Code::kOk);
}

// As two processes would be that drew the same random token.
TEST(P2pLiar, TwoProcessesOfOneTokenAreToldNotMixedUp) {
  Process one(1), twin(1), importer(2);
  ASSERT_EQ(one.token, twin.token);
  std::vector<std::byte> memory(4096), others(4096);
  const auto add = [](Process& process, std::vector<std::byte>& bytes) {
    return MUST(process.segments->add(process.context, bytes.data(), bytes.size(),
                                      Access::kRemoteReadWrite, DeviceKind::kHost));
  };
  const SegmentName first = add(one, memory), same = add(twin, others);
  EXPECT_OK(importer.imports.add(first));
  EXPECT_OK(importer.imports.add(first));
  const Status refused = importer.imports.add(same);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("have drawn the same random number"), std::string::npos)
      << refused.toString();
  EXPECT_FALSE(importer.imports.remove(same));
  // Met by its twin, the importer names what it has: the twin finds that it has another key.
  const Meeting met(twin, importer, twin.token);
  const PairNote ask = MUST(PairNote::decode(met.end->hear()));
  EXPECT_EQ(ask.segment, first.number);
  EXPECT_EQ(
      twin.segments->regionFor(ask.segment, ask.proof, {importer.id(), twin.id()}, twin.context)
          .status()
          .code(),
      Code::kInvalidArgument);
  EXPECT_TRUE(importer.imports.remove(first));
  EXPECT_OK(importer.imports.add(same));
}

TEST(P2pLiar, AProofIsOfItsKeyNumberAndEnds) {
  SegmentKey key{};
  key[0] = 1;
  const AskEnds ends{ContextId::random(), ContextId::random()};
  const SegmentProof proof = makeProof(7, key, ends);
  EXPECT_TRUE(isProof(proof, 7, key, ends));
  EXPECT_FALSE(isProof(proof, 8, key, ends));
  EXPECT_FALSE(isProof(proof, 7, SegmentKey{}, ends));
  EXPECT_FALSE(isProof(proof, 7, key, {ends.owner, ends.asker}));
  EXPECT_FALSE(isProof(proof, 7, key, {ends.asker, ContextId::random()}));
  EXPECT_FALSE(isProof(proof, 7, key, {ContextId::random(), ends.owner}));
  for (size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    SegmentProof flipped = proof;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(isProof(flipped, 7, key, ends)) << bit;
  }
}

// It has connected and says nothing, as one that was stopped.
TEST(P2pLiar, ARootThatIsCancelledWhileItsGuestIsSilentEndsTheCall) {
  HcclRootInfo root;
  ASSERT_EQ(P2PGetRootInfo(&root), HCCL_SUCCESS);
  Process guest(9);
  const std::string ticket = MUST(decodeRoot(root.internal));
  auto owner = std::async(std::launch::async, [&] {
    P2PComm comm = nullptr;
    P2PCommInitOptions options;
    options.timeoutMs = 60000;
    const HcclResult result =
        P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &options);
    return std::pair(result, std::string(P2PGetLastError()));
  });
  const ByHand end(MUST(guest.context->connect(ticket, kSoon)));
  EXPECT_EQ(MUST(PairNote::decode(end.hear())).type, PairNote::Type::kHello);
  EXPECT_EQ(P2PCancelRootInfo(&root), HCCL_SUCCESS);
  const auto [result, why] = owner.get();
  EXPECT_EQ(result, HCCL_E_UNAVAIL) << why;
  EXPECT_NE(why.find("cancelled"), std::string::npos) << why;
}

}  // namespace
}  // namespace peerlane::p2p
