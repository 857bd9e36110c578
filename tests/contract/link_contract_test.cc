// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "peerlane/program/words/word.h"
#include "tests/contract/link_contract.h"
#include "tests/fake/patterned_bytes.h"

namespace peerlane {
namespace {

uint64_t wordAt(std::span<std::byte> bytes, size_t offset) {
  return loadWord(bytes.data() + offset, Width::k64);
}

Piece pieceOf(std::span<std::byte> local, const RemoteMemory& remote, uint64_t offset) {
  return {local.data(), &remote, offset, local.size()};
}

TEST_P(LinkContract, TraitsSayWhoCopiesAndWhoGuards) {
  const LinkTraits& traits = pair_->link(0).traits();
  EXPECT_FALSE(traits.transport.empty());
  EXPECT_TRUE(traits.abilities.canAny(MemoryPlace::kHost, Ability::kAttaches) ||
              traits.abilities.canAny(MemoryPlace::kCuda, Ability::kAttaches));
  while (pair_->link(0).health().code() == Code::kTryAgain) turn();  // it is being made
  EXPECT_TRUE(pair_->link(0).health().isOk());
  const Exported there = exportMemory(1, 64);
  EXPECT_STRNE(there.remote.engine, "");
  const MemoryKind kind = there.memory.kind;
  EXPECT_EQ(there.remote.grant.kind, kind);
  EXPECT_TRUE(traits.abilities.can(kind, Ability::kAttaches)) << kind.name();
  // What an attached region is, was said before.
  if (there.remote.mapped != nullptr) {
    EXPECT_TRUE(traits.abilities.can(kind, Ability::kMaps)) << kind.name();
  } else {
    EXPECT_TRUE(traits.abilities.can(kind, Ability::kByAgent)) << kind.name();
  }
  EXPECT_EQ(there.remote.enforcer, traits.abilities.enforcer(kind));
  EXPECT_EQ(there.remote.grant.bytes, 64u);
}

TEST_P(LinkContract, PutAndGetMoveEveryByteAndNoOther) {
  constexpr size_t kRoom = (6 << 20) + 64;
  Exported there = exportMemory(1, kRoom);
  std::vector<std::byte> source(kRoom);
  std::vector<std::byte> back(kRoom);
  Poster poster(*pair_, 0);
  uint64_t seed = 0;
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{64}, size_t{4095}, size_t{65537},
                             (size_t{1} << 20) + 3, (size_t{5} << 20) + 11}) {
    const size_t offset = 13 + seed % 7;
    paint(there, 0xee);
    std::memset(back.data(), 0xdd, kRoom);
    fillPattern(std::span(source).subspan(3, bytes), ++seed);
    poster.put({pieceOf(std::span(source).subspan(3, bytes), there.remote, offset)});
    finish(poster);
    const std::vector<std::byte> seen = contents(there);
    EXPECT_EQ(firstWrong(std::span(seen).subspan(offset, bytes), seed), bytes);
    EXPECT_EQ(seen[offset - 1], std::byte{0xee});
    EXPECT_EQ(seen[offset + bytes], std::byte{0xee});
    poster.get({pieceOf(std::span(back).subspan(5, bytes), there.remote, offset)});
    finish(poster);
    EXPECT_EQ(firstWrong(std::span(back).subspan(5, bytes), seed), bytes);
    EXPECT_EQ(back[4], std::byte{0xdd});
    EXPECT_EQ(back[5 + bytes], std::byte{0xdd});
  }
  EXPECT_EQ(pair_->regions(1).pins(), 0u);
}

TEST_P(LinkContract, ScatteredPiecesLandWhereTheyBelong) {
  constexpr size_t kSlot = 9000;
  constexpr size_t kPieces = 1500;  // more than any link may have under way at once
  Exported there = exportMemory(1, kSlot * kPieces);
  std::vector<std::byte> source(kSlot * kPieces);
  std::vector<std::byte> back(kSlot * kPieces);
  std::mt19937_64 random(7);
  std::vector<Piece> put;
  std::vector<Piece> get;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t slot = (i * 701) % kPieces;  // a permutation: 701 and 1500 share no factor
    const size_t bytes = 1 + random() % kSlot;
    const auto from = std::span(source).subspan(i * kSlot, bytes);
    fillPattern(from, i);
    put.push_back(pieceOf(from, there.remote, slot * kSlot));
    get.push_back(pieceOf(std::span(back).subspan(i * kSlot, bytes), there.remote, slot * kSlot));
  }
  Poster poster(*pair_, 0);
  poster.put(put);
  poster.get(get);
  finish(poster);
  for (size_t i = 0; i < kPieces; ++i)
    ASSERT_EQ(firstWrong({get[i].local, get[i].bytes}, i), get[i].bytes) << "piece " << i;
  ASSERT_EQ(std::memcmp(back.data(), source.data(), back.size()), 0);
}

TEST_P(LinkContract, WordsAreWrittenWhole) {
  Exported there = exportMemory(1, 64);
  paint(there, 0xff);
  Poster poster(*pair_, 0);
  poster.store(there.remote, 8, 0x1122334455667788, Width::k64);
  poster.store(there.remote, 20, 0x99aabbcc, Width::k32);
  poster.add64(there.remote, 32, 3);  // all ones + 3 wraps to 2
  poster.flush(there.remote);
  finish(poster);
  EXPECT_EQ(word(there, 0), ~uint64_t{0});
  EXPECT_EQ(word(there, 8), 0x1122334455667788u);
  EXPECT_EQ(word(there, 16), 0x99aabbccffffffffu);
  EXPECT_EQ(word(there, 24), ~uint64_t{0});
  EXPECT_EQ(word(there, 32), 2u);
}

TEST_P(LinkContract, EntriesOfOneMailboxTakeEffectInOrder) {
  constexpr size_t kBytes = 700'001;
  Exported there = exportMemory(1, kBytes);
  std::vector<std::byte> first(kBytes);
  std::vector<std::byte> second(kBytes);
  std::vector<std::byte> seen(kBytes);
  std::vector<std::byte> seenLater(kBytes);
  fillPattern(first, 1);
  fillPattern(second, 2);
  Poster poster(*pair_, 0);
  // The second put must not overtake the get before it, nor the get the put before it.
  poster.put({pieceOf(first, there.remote, 0)});
  poster.get({pieceOf(seen, there.remote, 0)});
  poster.put({pieceOf(second, there.remote, 0)});
  poster.get({pieceOf(seenLater, there.remote, 0)});
  poster.store(there.remote, 8, 1);
  poster.store(there.remote, 8, 2);
  poster.add64(there.remote, 8, 40);
  finish(poster);
  EXPECT_EQ(firstWrong(seen, 1), kBytes);
  EXPECT_EQ(firstWrong(seenLater, 2), kBytes);
  EXPECT_EQ(word(there, 8), 42u);
}

TEST_P(LinkContract, AWordIsVisibleOnlyAfterTheBytesBeforeIt) {
  constexpr size_t kBytes = 50'000;
  constexpr uint64_t kRounds = 40;
  Exported there = exportMemory(1, kBytes);
  Exported words = exportMemory(1, 64);
  std::atomic<uint64_t> consumed{0};  // release by the consumer, acquire by the producer
  std::atomic<uint64_t> wrong{0};
  const LinkThreads threads(*pair_);
  std::thread consumer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (word(words, 0) < round) std::this_thread::yield();
      if (firstWrong(contents(there), round) != kBytes) ++wrong;
      consumed.store(round, std::memory_order_release);
    }
  });
  std::vector<std::byte> source(kBytes);
  Poster poster(*pair_, 0);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    fillPattern(source, round);
    poster.put({pieceOf(std::span(source).first(20'000), there.remote, 0),
                pieceOf(std::span(source).subspan(20'000), there.remote, 20'000)});
    poster.add64(words.remote, 0, 1);
    while (!poster.idle() || consumed.load(std::memory_order_acquire) < round) {
      poster.serve();
      std::this_thread::yield();
    }
  }
  consumer.join();
  EXPECT_EQ(poster.takeCode(), Code::kOk);
  EXPECT_EQ(wrong.load(), 0u);
}

TEST_P(LinkContract, ManyMailboxesOfSeveralThreadsInBothDirections) {
  constexpr size_t kThreads = 3;  // per side
  constexpr size_t kBytes = 300'000;
  constexpr uint64_t kRounds = 12;
  std::array<Exported, 2> area{exportMemory(0, kThreads * kBytes),
                               exportMemory(1, kThreads * kBytes)};
  std::array<Exported, 2> words{exportMemory(0, 64), exportMemory(1, 64)};
  std::atomic<uint64_t> wrong{0};
  {
    const LinkThreads progress(*pair_);
    std::vector<std::thread> users;
    for (size_t i = 0; i < 2 * kThreads; ++i) {
      users.emplace_back([&, i] {
        const int side = static_cast<int>(i % 2);
        const uint64_t offset = i / 2 * kBytes;
        const RemoteMemory& remote = area[1 - side].remote;
        Poster poster(*pair_, side);
        std::vector<std::byte> out(kBytes);
        std::vector<std::byte> in(kBytes);
        for (uint64_t round = 0; round < kRounds; ++round) {
          fillPattern(out, i * 100 + round);
          poster.put({pieceOf(out, remote, offset)});
          poster.get({pieceOf(in, remote, offset)});
          poster.add64(words[1 - side].remote, 0, 1);
          while (!poster.idle()) {
            poster.serve();
            std::this_thread::yield();
          }
          if (poster.takeCode() != Code::kOk || firstWrong(in, i * 100 + round) != kBytes) ++wrong;
        }
      });
    }
    for (std::thread& user : users) user.join();
  }
  EXPECT_EQ(wrong.load(), 0u);
  for (int side : {0, 1}) {
    EXPECT_EQ(word(words[side], 0), kThreads * kRounds);
    EXPECT_EQ(pair_->regions(side).pins(), 0u);
  }
}

TEST_P(LinkContract, DetachedMemoryCanBeAttachedAgain) {
  Exported there = exportMemory(1, 4096);
  for (uint64_t round = 0; round < 3; ++round) {
    Result<RemoteMemory> again =
        pair_->link(0).attach(grantOf(1, there.memory, Access::kRemoteReadWrite));
    ASSERT_TRUE(again.isOk()) << again.status().toString();
    std::vector<std::byte> source(4096);
    fillPattern(source, round);
    Poster poster(*pair_, 0);
    poster.put({pieceOf(source, *again, 0)});
    finish(poster);
    EXPECT_EQ(firstWrong(contents(there), round), 4096u);
    pair_->link(0).detach(*again);
  }
}

TEST_P(AgentLinkContract, EmptyListsAndPiecesEndWell) {
  Exported there = exportMemory(1, 64);
  std::array<std::byte, 8> local{};
  fillPattern(local, 5);
  Poster poster(*pair_, 0);
  poster.put({});
  poster.get({});
  poster.put({{local.data(), &there.remote, 0, 0}});
  poster.get({{local.data(), &there.remote, 0, 0}});
  poster.put({{local.data(), &there.remote, 0, 0},
              pieceOf(local, there.remote, 9),
              {local.data(), &there.remote, 0, 0}});
  poster.flush(there.remote);
  finish(poster);
  EXPECT_EQ(firstWrong(there.bytes().subspan(9, 8), 5), 8u);
}

TEST_P(AgentLinkContract, AbortEndsWhatHasNotBegun) {
  Exported there = exportMemory(1, 4096);
  std::vector<std::byte> source(4096, std::byte{1});
  Poster poster(*pair_, 0);
  poster.mailbox().abort(Code::kCancelled);
  for (int i = 0; i < 5; ++i) poster.put({pieceOf(source, there.remote, 0)});
  EXPECT_EQ(settle(poster), Code::kCancelled);
  poster.mailbox().clearAbort();
  EXPECT_EQ(there.bytes()[0], std::byte{0});
  poster.put({pieceOf(source, there.remote, 0)});
  finish(poster);
  EXPECT_EQ(there.bytes()[4095], std::byte{1});
}

TEST_P(AgentLinkContract, AClosedLinkEndsEntriesWithItsCode) {
  Exported there = exportMemory(1, 4096);
  std::vector<std::byte> local(4096, std::byte{1});
  pair_->link(0).close(Code::kPeerSilent);
  pair_->link(0).close(Code::kClosed);  // the first one counts
  EXPECT_EQ(pair_->link(0).health().code(), Code::kPeerSilent);
  Poster poster(*pair_, 0);
  poster.put({pieceOf(local, there.remote, 0)});
  poster.get({pieceOf(local, there.remote, 0)});
  poster.flush(there.remote);
  EXPECT_EQ(settle(poster), Code::kPeerSilent);
  EXPECT_EQ(there.bytes()[0], std::byte{0});
  EXPECT_EQ(local[0], std::byte{1});
}

// What the owner refuses, whatever the initiator believes. Nothing is written, nothing stays
// pinned, and the link goes on.
TEST_P(OwnerLinkContract, RightsAndRangesAreCheckedByTheOwner) {
  std::array<std::byte, 64> local{};
  local.fill(std::byte{0xaa});
  Poster poster(*pair_, 0);
  const auto put = [&](const RemoteMemory& to, uint64_t offset) {
    poster.put({pieceOf(local, to, offset)});
    return settle(poster);
  };
  const auto get = [&](const RemoteMemory& from, uint64_t offset) {
    poster.get({pieceOf(local, from, offset)});
    return settle(poster);
  };
  const auto store = [&](const RemoteMemory& to, uint64_t offset, Width width = Width::k64) {
    poster.store(to, offset, 1, width);
    return settle(poster);
  };
  Exported readOnly = exportMemory(1, 128, Access::kRemoteRead);
  EXPECT_EQ(put(readOnly.remote, 0), Code::kPermissionDenied);
  EXPECT_EQ(store(readOnly.remote, 0), Code::kPermissionDenied);
  EXPECT_EQ(get(readOnly.remote, 64), Code::kOk);
  local.fill(std::byte{0xaa});
  Exported writeOnly = exportMemory(1, 128, Access::kRemoteWrite);
  EXPECT_EQ(get(writeOnly.remote, 0), Code::kPermissionDenied);
  EXPECT_EQ(local[0], std::byte{0xaa});

  Exported both = exportMemory(1, 128);
  EXPECT_EQ(put(both.remote, 65), Code::kInvalidArgument);
  EXPECT_EQ(get(both.remote, 65), Code::kInvalidArgument);
  EXPECT_EQ(put(both.remote, ~uint64_t{0} - 3), Code::kInvalidArgument);
  EXPECT_EQ(get(both.remote, ~uint64_t{0} - 3), Code::kInvalidArgument);
  EXPECT_EQ(store(both.remote, 124), Code::kInvalidArgument);
  EXPECT_EQ(store(both.remote, 4), Code::kInvalidArgument);
  EXPECT_EQ(store(both.remote, 6, Width::k32), Code::kInvalidArgument);
  poster.add64(both.remote, 1, 1);
  EXPECT_EQ(settle(poster), Code::kInvalidArgument);
  RemoteMemory unknown = both.remote;
  unknown.grant.allocation = 999'999;
  EXPECT_EQ(put(unknown, 0), Code::kInvalidArgument);
  EXPECT_EQ(wordAt(both.bytes(), 0), 0u);

  pair_->regions(1).renew(both.remote.grant.allocation);
  EXPECT_EQ(put(both.remote, 0), Code::kInvalidArgument);
  EXPECT_EQ(get(both.remote, 0), Code::kInvalidArgument);
  pair_->regions(1).beginClosing(readOnly.remote.grant.allocation);
  EXPECT_EQ(get(readOnly.remote, 0), Code::kClosed);

  Exported fresh = exportMemory(1, 128);
  EXPECT_EQ(put(fresh.remote, 64), Code::kOk);
  EXPECT_EQ(fresh.bytes()[64], std::byte{0xaa});
  EXPECT_EQ(wordAt(both.bytes(), 0), 0u);
  EXPECT_EQ(wordAt(readOnly.bytes(), 0), 0u);
  EXPECT_EQ(pair_->regions(1).pins(), 0u);
  EXPECT_GT(pair_->regions(1).pinsEver(), 0u);
}

TEST_P(OwnerLinkContract, ARefusalInTheMiddleOfAListDropsTheRestOfItOnly) {
  constexpr size_t kBytes = 900'000;
  Exported there = exportMemory(1, kBytes);
  Exported refusing = exportMemory(1, kBytes, Access::kLocal);
  std::vector<std::byte> source(kBytes);
  fillPattern(source, 3);
  Poster poster(*pair_, 0);
  poster.put({pieceOf(std::span(source).first(1000), there.remote, 0),
              pieceOf(source, refusing.remote, 0),
              pieceOf(std::span(source).subspan(1000, 1000), there.remote, 1000)});
  EXPECT_EQ(settle(poster), Code::kPermissionDenied);
  EXPECT_EQ(firstWrong(there.bytes().first(1000), 3), 1000u);
  EXPECT_EQ(there.bytes()[1000], std::byte{0});
  EXPECT_EQ(refusing.bytes()[0], std::byte{0});

  std::vector<std::byte> local(kBytes, std::byte{1});
  poster.get({pieceOf(std::span(local).first(1000), there.remote, 0),
              pieceOf(std::span(local).subspan(1000), refusing.remote, 0)});
  EXPECT_EQ(settle(poster), Code::kPermissionDenied);
  EXPECT_EQ(local[1000], std::byte{1});

  poster.put({pieceOf(source, there.remote, 0)});
  finish(poster);
  EXPECT_EQ(firstWrong(there.bytes(), 3), kBytes);
  EXPECT_EQ(pair_->regions(1).pins(), 0u);
}

// Works in every stage (in the mailbox, half written, unanswered, half arrived) end once.
class Flight {
 public:
  Flight(LinkPair& pair, int side, const RemoteMemory& remote, size_t bytes) : remote_(remote) {
    for (int i = 0; i < 4; ++i) {
      posters_.push_back(std::make_unique<Poster>(pair, side));
      buffers_.emplace_back(bytes);
    }
  }
  void post() {
    for (size_t i = 0; i < posters_.size(); ++i) {
      Poster& poster = *posters_[i];
      const Piece piece = pieceOf(buffers_[i], remote_, 0);
      if (i % 2 == 0) poster.put({piece, piece});
      poster.get({piece, piece, piece});
      poster.add64(remote_, 0, 1);
      poster.put({piece});
    }
  }
  void serve() {
    for (auto& poster : posters_) poster->serve();
  }
  // A device with threads of its own may have done all while this thread was off the processor.
  void postAgainIfIdle() {
    if (!idle()) return;
    post();
    serve();
  }
  bool idle() {
    bool all = true;
    for (auto& poster : posters_) all &= poster->idle();
    return all;
  }
  // Every mailbox ended with `code`, or was done before.
  void expectEnded(Code code) {
    EXPECT_TRUE(idle());
    size_t ended = 0;
    for (auto& poster : posters_) {
      const Code seen = poster->takeCode();
      EXPECT_TRUE(seen == code || seen == Code::kOk) << codeName(seen);
      ended += seen == code;
    }
    EXPECT_GT(ended, 0u) << "nothing was in flight: the test tests nothing";
  }

 private:
  const RemoteMemory& remote_;
  std::vector<std::unique_ptr<Poster>> posters_;
  std::vector<std::vector<std::byte>> buffers_;
};

TEST_P(WireLinkContract, CloseEndsEverythingInFlightOnce) {
  constexpr size_t kBytes = 3 << 20;
  Exported here = exportMemory(0, kBytes);
  Exported there = exportMemory(1, kBytes);
  Flight out(*pair_, 0, there.remote, kBytes);
  Flight in(*pair_, 1, here.remote, kBytes);
  Poster probe(*pair_, 0);
  probe.flush(there.remote);
  finish(probe);  // the link is up
  for (int round = 0; round < 2; ++round) {
    out.post();
    in.post();
    for (int i = 0; round == 0 && i < 3; ++i) {
      out.serve();
      in.serve();
      turn();
    }
    if (round == 0) {
      in.postAgainIfIdle();
      out.postAgainIfIdle();
      pair_->link(0).close(Code::kClosed);
    }
    until([&] {
      out.serve();
      in.serve();
      return out.idle() && in.idle();
    });
    // The second round shows that the mailboxes still count right: what ended, ended once.
    out.expectEnded(Code::kClosed);
    in.expectEnded(Code::kPeerLost);
  }
  EXPECT_EQ(pair_->link(0).health().code(), Code::kClosed);
  EXPECT_EQ(pair_->link(1).health().code(), Code::kPeerLost);
  EXPECT_EQ(pair_->regions(0).pins(), 0u);
  EXPECT_EQ(pair_->regions(1).pins(), 0u);
}

TEST_P(WireLinkContract, ADeadPeerEndsEverythingInFlight) {
  constexpr size_t kBytes = 3 << 20;
  Exported here = exportMemory(0, kBytes);
  Exported there = exportMemory(1, kBytes);
  Flight out(*pair_, 0, there.remote, kBytes);
  out.post();
  for (int i = 0; i < 6; ++i) {
    out.serve();
    turn();
  }
  out.postAgainIfIdle();
  killSide1();
  until([&] {
    out.serve();
    return out.idle();
  });
  out.expectEnded(Code::kPeerLost);
  EXPECT_EQ(pair_->link(0).health().code(), Code::kPeerLost);
  EXPECT_EQ(pair_->regions(0).pins(), 0u);
}

// Nobody reads before both have written as much as fits: neither side may wait for the other.
TEST_P(WireLinkContract, BothSidesMayPutMoreThanTheWireHolds) {
  constexpr size_t kBytes = 24 << 20;
  Exported here = exportMemory(0, kBytes);
  Exported there = exportMemory(1, kBytes);
  std::vector<std::byte> a(kBytes);
  std::vector<std::byte> b(kBytes);
  fillPattern(a, 1);
  fillPattern(b, 2);
  Poster left(*pair_, 0);
  Poster right(*pair_, 1);
  left.put({pieceOf(a, there.remote, 0)});
  right.put({pieceOf(b, here.remote, 0)});
  until([&] { return left.idle() && right.idle(); }, {&left, &right});
  EXPECT_EQ(left.takeCode(), Code::kOk);
  EXPECT_EQ(right.takeCode(), Code::kOk);
  EXPECT_EQ(firstWrong(there.bytes(), 1), kBytes);
  EXPECT_EQ(firstWrong(here.bytes(), 2), kBytes);
}

}  // namespace
}  // namespace peerlane
