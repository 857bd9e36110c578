// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/handshake.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/text.h"
#include "peerlane/session/wire/secure_channel.h"

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;
using Role = Handshake::Role;

template <size_t N>
std::array<std::byte, N> countingFrom(int first) {
  std::array<std::byte, N> bytes;
  for (size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::byte>(static_cast<size_t>(first) + i);
  return bytes;
}

bool contains(const Status& status, std::string_view part) {
  return status.message().find(part) != std::string_view::npos;
}

Secret theSecret() {
  return Secret(countingFrom<32>(0x40));
}
ContextId contextA() {
  return ContextId(countingFrom<16>(0x10));
}
ContextId contextB() {
  return ContextId(countingFrom<16>(0x20));
}

HandshakeOptions optionsOf(ContextId self) {
  HandshakeOptions options;
  options.secret = theSecret();
  options.keyId = keyIdOf(options.secret);
  options.self = self;
  options.features = 0b0111;
  options.hostIdentity = 77;
  options.processHint = 1234;
  return options;
}

std::unique_ptr<Handshake> initiator(HandshakeOptions options = optionsOf(contextA())) {
  return Handshake::create(Role::kInitiator, std::move(options)).value();
}
std::unique_ptr<Handshake> acceptor(HandshakeOptions options = optionsOf(contextB())) {
  return Handshake::create(Role::kAcceptor, std::move(options)).value();
}

// The acceptor's answer to `hello`.
Bytes answerTo(Handshake& side, std::span<const std::byte> hello) {
  auto progress = side.feed(hello);
  EXPECT_TRUE(progress.isOk()) << progress.status().toString();
  EXPECT_TRUE(progress.isOk() && progress->done);
  return progress.isOk() ? progress->send : Bytes();
}

TEST(Handshake, GoldenBytes) {
  // Made by an independent program from the description in docs/wire.md.
  internal::Hello first{Role::kInitiator,       2,          3,
                        0x0102030405060708,     contextA(), 0x1112131415161718,
                        countingFrom<32>(0x80), 4321};
  const auto helloA = internal::encodeHello(first, theSecret(), {});
  EXPECT_EQ(encodeHex(helloA),
            "504545524c414e4502000100030000000807060504030201101112131415161718191a1b1c1d1e1f181716"
            "1514131211808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fe11000005be3"
            "bd5df79b5c74201c94cfc63616a768d6830853d0d9221ba2c10667dbbce8c7189345");
  internal::Hello second{Role::kAcceptor,        2,          5,
                         0x8000000000000001,     contextB(), 0x2122232425262728,
                         countingFrom<32>(0xa0), 99};
  const auto helloB = internal::encodeHello(second, theSecret(), helloA);
  EXPECT_EQ(encodeHex(helloB),
            "504545524c414e4502000200050000000100000000000080202122232425262728292a2b2c2d2e2f282726"
            "2524232221a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf630000005be3"
            "bd5db6808836e739255e18ecbb273274e062aaa85da06a1246d9e1cb2bd918ded3b4");
  const auto keys = internal::initiatorKeys(theSecret(), countingFrom<32>(0xc0), helloA, helloB);
  EXPECT_EQ(encodeHex(keys.send.bytes()),
            "acc5e17547f0c5f19753446c17c7feb2522aebaee77590c73d402ee0c4e9a756");
  EXPECT_EQ(encodeHex(keys.receive.bytes()),
            "fa8fe16a5797d4fe481f75f17db2131d264a0aa9dd085f3ffdfb478acb61ddf9");
  EXPECT_EQ(encodeHex(keys.links.bytes()),
            "45806d23300179ad0434091db84ed3653c281fcf74f82b7161d4c56032bc3188");
}

TEST(Handshake, BothSidesAgree) {
  auto optionsA = optionsOf(contextA());
  optionsA.minor = 4;
  optionsA.features = 0b1010;
  optionsA.expectedPeer = contextB();
  auto optionsB = optionsOf(contextB());
  optionsB.minor = 2;
  optionsB.features = 0b0110;
  optionsB.hostIdentity = 99;
  optionsB.processHint = 5678;
  auto a = initiator(optionsA);
  auto b = acceptor(optionsB);
  EXPECT_TRUE(b->start().empty());
  const Bytes answer = answerTo(*b, a->start());
  EXPECT_EQ(answer.size(), kHelloBytes);
  auto last = a->feed(answer);
  ASSERT_TRUE(last.isOk()) << last.status().toString();
  EXPECT_TRUE(last->done);
  EXPECT_TRUE(last->send.empty());

  EXPECT_TRUE(a->keys().send == b->keys().receive);
  EXPECT_TRUE(a->keys().receive == b->keys().send);
  EXPECT_FALSE(a->keys().send == a->keys().receive);
  EXPECT_TRUE(a->keys().links == b->keys().links);
  EXPECT_FALSE(a->keys().links == a->keys().send || a->keys().links == a->keys().receive);
  EXPECT_EQ(a->peer().context, contextB());
  EXPECT_EQ(b->peer().context, contextA());
  for (const Handshake* side : {a.get(), b.get()}) {
    EXPECT_EQ(side->peer().major, kProtocolMajor);
    EXPECT_EQ(side->peer().minor, 2);
    EXPECT_EQ(side->peer().features, 0b0010u);
  }
  EXPECT_EQ(a->peer().hostIdentity, 99u);
  EXPECT_EQ(a->peer().processHint, 5678u);
  EXPECT_EQ(b->peer().hostIdentity, 77u);
  EXPECT_EQ(b->peer().processHint, 1234u);
  EXPECT_EQ(a->feed(answer).status().code(), Code::kInvalidArgument);
}

TEST(Handshake, AnyPiecesAndNothingBeyondItsOwnBytes) {
  for (const size_t piece : {1u, 7u, 12u, 119u, 121u, 500u}) {
    auto a = initiator();
    auto b = acceptor();
    Bytes wire = a->start();
    wire.insert(wire.end(), 300, std::byte{0xee});  // early records
    Bytes answer;
    size_t taken = 0;
    for (size_t at = 0; at < wire.size() && answer.empty(); at += piece) {
      auto progress = b->feed(std::span(wire).subspan(at, std::min(piece, wire.size() - at)));
      ASSERT_TRUE(progress.isOk()) << progress.status().toString();
      EXPECT_EQ(progress->done, !progress->send.empty());
      taken += progress->consumed;
      answer = progress->send;
    }
    EXPECT_EQ(taken, kHelloBytes);
    EXPECT_EQ(answer.size(), kHelloBytes);
  }
}

TEST(Handshake, FreshKeysEachTimeFromOneSecret) {
  auto a1 = initiator();
  auto b1 = acceptor();
  (void)a1->feed(answerTo(*b1, a1->start())).value();
  auto a2 = initiator();
  auto b2 = acceptor();
  (void)a2->feed(answerTo(*b2, a2->start())).value();
  EXPECT_FALSE(a1->keys().send == a2->keys().send);
  EXPECT_FALSE(a1->keys().receive == a2->keys().receive);
  EXPECT_FALSE(a1->keys().links == a2->keys().links);
}

TEST(Handshake, WrongSecretIsToldToBothSides) {
  auto options = optionsOf(contextA());
  options.secret = Secret::random();
  auto a = initiator(options);
  auto b = acceptor();
  auto refused = b->feed(a->start());
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.status().message(), "authentication failed: wrong secret");
  EXPECT_EQ(encodeHex(b->rejection()),
            "504545524c414e4503000300"
            "0000"
            "0200");
  auto told = a->feed(b->rejection());
  EXPECT_EQ(told.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(told.status().message(), "authentication failed: wrong secret");
  EXPECT_TRUE(a->rejection().empty());
  // Both stay refused whatever comes.
  EXPECT_EQ(b->feed(initiator()->start()).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(a->feed({}).status().code(), Code::kPermissionDenied);
}

TEST(Handshake, OtherMajorIsRefusedNamingBothOnBothSides) {
  auto options = optionsOf(contextA());
  options.major = 9;
  auto a = initiator(options);
  auto b = acceptor();
  // Twelve bytes suffice: what follows may have any layout in another major.
  const Bytes hello = a->start();
  auto refused = b->feed(std::span(hello).first(kPrefaceBytes));
  EXPECT_EQ(refused.status().code(), Code::kNotSupported);
  EXPECT_TRUE(contains(refused.status(),
                       "other side speaks Peerlane protocol version 9, this side version 3"));
  EXPECT_EQ(b->feed({}).status().code(), Code::kNotSupported) << "the first error is final";
  ASSERT_EQ(b->rejection().size(), kRejectBytes);
  auto told = a->feed(std::span(b->rejection()).first(kPrefaceBytes));
  EXPECT_EQ(told.status().code(), Code::kNotSupported);
  EXPECT_TRUE(contains(told.status(),
                       "other side speaks Peerlane protocol version 3, this side version 9"));
}

TEST(Handshake, EveryFlippedBitOfTheHelloIsRefused) {
  const Bytes hello = initiator()->start();
  for (size_t bit = 0; bit < 8 * hello.size(); ++bit) {
    Bytes wire = hello;
    wire[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto b = acceptor();
    auto progress = b->feed(wire);
    ASSERT_FALSE(progress.isOk()) << "bit " << bit;
    if (bit >= 8 * kPrefaceBytes) {
      EXPECT_EQ(progress.status().code(), Code::kPermissionDenied) << "bit " << bit;
    }
  }
}

TEST(Handshake, EveryFlippedBitOfTheAnswerIsRefused) {
  for (size_t bit = 0; bit < 8 * kHelloBytes; ++bit) {
    auto a = initiator();
    auto b = acceptor();
    Bytes answer = answerTo(*b, a->start());
    ASSERT_EQ(answer.size(), kHelloBytes);
    answer[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto progress = a->feed(answer);
    ASSERT_FALSE(progress.isOk()) << "bit " << bit;
    EXPECT_TRUE(a->rejection().empty());
  }
}

TEST(Handshake, EveryFlippedBitOfARejectStillEndsTheAttempt) {
  auto options = optionsOf(contextA());
  options.secret = Secret::random();
  auto b = acceptor();
  (void)b->feed(initiator(options)->start());
  const Bytes reject = b->rejection();
  for (size_t bit = 0; bit < 8 * reject.size(); ++bit) {
    Bytes wire = reject;
    wire[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto progress = initiator()->feed(wire);
    // One flip makes the kind that of an answer: then a whole hello is awaited and nothing is
    // believed.
    EXPECT_TRUE(!progress.isOk() || !progress->done) << bit;
  }
}

TEST(Handshake, ReflectionIsRefused) {
  auto a = initiator();
  auto echoed = a->feed(a->start());
  EXPECT_EQ(echoed.status().code(), Code::kPermissionDenied);
  EXPECT_TRUE(contains(echoed.status(), "own role"));
  // The same with the kind rewritten to that of an answer: the role is part of the key.
  auto a2 = initiator();
  Bytes disguised = a2->start();
  disguised[10] = std::byte{2};
  EXPECT_EQ(a2->feed(disguised).status().message(), "authentication failed: wrong secret");
  // An acceptor's answer sent to an acceptor.
  auto b = acceptor();
  const Bytes answer = answerTo(*b, initiator()->start());
  EXPECT_EQ(acceptor()->feed(answer).status().code(), Code::kPermissionDenied);
  // A hello led back to the context that made it, which listens with the same secret.
  auto self = acceptor(optionsOf(contextA()));
  auto own = self->feed(initiator()->start());
  EXPECT_EQ(own.status().code(), Code::kPermissionDenied);
  EXPECT_TRUE(contains(own.status(), "cannot be its own peer"));
  EXPECT_TRUE(contains(initiator()->feed(self->rejection()).status(), "this very context"));
}

TEST(Handshake, ReplayedHelloIsUseless) {
  auto a = initiator();
  auto b = acceptor();
  const Bytes hello = a->start();
  (void)a->feed(answerTo(*b, hello)).value();
  auto channel = SecureChannel::create(a->keys()).value();
  const Bytes record = channel->seal(std::vector<std::byte>(5)).value();

  auto again = acceptor();
  (void)answerTo(*again, hello);
  auto replayed = SecureChannel::create(again->keys()).value();
  ASSERT_TRUE(replayed->feed(record).isOk());
  EXPECT_EQ(replayed->next().status().code(), Code::kPermissionDenied);
  // An old answer does not fit a new hello.
  auto c = acceptor();
  const Bytes oldAnswer = answerTo(*c, hello);
  EXPECT_EQ(initiator()->feed(oldAnswer).status().message(), "authentication failed: wrong secret");
}

// However many secrets are open: nobody hashes a hello for one that it does not name.
TEST(Handshake, TheSecretIsFoundByItsName) {
  auto guest = optionsOf(contextA());
  guest.secret = Secret(countingFrom<32>(0x77));
  std::vector<uint32_t> asked;
  size_t tried = 0;
  bool hasRoom = true;
  auto host = optionsOf(contextB());
  host.otherSecret = [&](uint32_t keyId, const HandshakeOptions::Fits& fits) {
    asked.push_back(keyId);
    std::optional<HandshakeOptions::OtherSecret> found;
    for (int first = 0x70; first < 0x80; ++first) {
      const Secret open(countingFrom<32>(first));
      if (keyIdOf(open) != keyId) continue;
      ++tried;
      if (fits(open)) found = {open, hasRoom};
    }
    return found;
  };
  auto a = initiator(guest);
  EXPECT_TRUE(a->feed(answerTo(*acceptor(host), a->start()))->done);
  EXPECT_EQ(asked, std::vector<uint32_t>{keyIdOf(guest.secret)});
  EXPECT_EQ(tried, 1u);
  (void)answerTo(*acceptor(host), initiator()->start());
  EXPECT_EQ(asked.size(), 1u) << "the context's own secret is not looked for among others";
  // Who knows the secret is told that there is no room.
  hasRoom = false;
  auto full = acceptor(host);
  EXPECT_EQ(full->feed(initiator(guest)->start()).status().code(), Code::kTryAgain);
  EXPECT_EQ(initiator(guest)->feed(full->rejection()).status().code(), Code::kTryAgain);
  tried = 1;
  guest.secret = Secret(countingFrom<32>(0x11));
  EXPECT_EQ(acceptor(host)->feed(initiator(guest)->start()).status().code(),
            Code::kPermissionDenied);
  EXPECT_EQ(tried, 1u) << "a stranger's name costs no hash";
  // A name alone opens nothing.
  Bytes named = initiator(guest)->start();
  const Bytes honest = initiator()->start();
  std::copy_n(honest.begin() + 84, 4, named.begin() + 84);
  EXPECT_EQ(acceptor(host)->feed(named).status().code(), Code::kPermissionDenied);
}

TEST(Handshake, WhoIsNotWaitedForIsToldWhy) {
  const auto noRoom =
      initiator()->feed(Handshake::rejectionFor(Handshake::Reason::kNoRoom)).status();
  EXPECT_EQ(noRoom.code(), Code::kTryAgain) << noRoom.toString();
  const auto late = initiator()->feed(Handshake::rejectionFor(Handshake::Reason::kLate)).status();
  EXPECT_EQ(late.code(), Code::kTryAgain) << late.toString();
  const auto otherUser =
      initiator()->feed(Handshake::rejectionFor(Handshake::Reason::kOtherUser)).status();
  EXPECT_EQ(otherUser.code(), Code::kPermissionDenied) << otherUser.toString();
}

TEST(Handshake, AnotherContextThanTheTicketNamesIsRefused) {
  auto options = optionsOf(contextA());
  options.expectedPeer = ContextId(countingFrom<16>(0x70));
  auto a = initiator(options);
  auto b = acceptor();
  auto progress = a->feed(answerTo(*b, a->start()));
  EXPECT_EQ(progress.status().code(), Code::kPermissionDenied);
  EXPECT_TRUE(contains(progress.status(), contextB().toText()));
  EXPECT_TRUE(contains(progress.status(), options.expectedPeer->toText()));
}

TEST(Handshake, AuthenticHellosWithUnusableFieldsAreRefused) {
  internal::Hello hello;
  hello.context = contextA();
  auto lowOrder = acceptor();
  auto progress = lowOrder->feed(internal::encodeHello(hello, theSecret(), {}));
  EXPECT_EQ(progress.status().code(), Code::kCorrupt);
  EXPECT_TRUE(contains(progress.status(), "low order"));
  EXPECT_TRUE(contains(initiator()->feed(lowOrder->rejection()).status(), "malformed"));
  hello.ephemeralPublic = countingFrom<32>(1);
  hello.context = ContextId();
  EXPECT_TRUE(contains(acceptor()->feed(internal::encodeHello(hello, theSecret(), {})).status(),
                       "context id is null"));
}

TEST(Handshake, StrangersAreTurnedAwayAtTheFirstWrongByte) {
  const std::string http = "GET / HTTP/1.1\r\n";
  auto b = acceptor();
  auto progress = b->feed(std::as_bytes(std::span(http)).first(1));
  EXPECT_EQ(progress.status().code(), Code::kCorrupt);
  EXPECT_TRUE(contains(progress.status(), "does not speak Peerlane"));
  EXPECT_TRUE(b->rejection().empty());
  const std::string near = "PEERLANd";
  EXPECT_FALSE(acceptor()->feed(std::as_bytes(std::span(near))).isOk());
  EXPECT_TRUE(acceptor()->feed(std::as_bytes(std::span(near)).first(7)).isOk());
}

TEST(Handshake, UnexpectedKindsAreRefused) {
  for (const int kind : {0, 2, 3, 4, 255}) {
    Bytes wire = initiator()->start();
    wire[10] = static_cast<std::byte>(kind);
    EXPECT_FALSE(acceptor()->feed(std::span(wire).first(kPrefaceBytes)).isOk()) << kind;
  }
  Bytes wire = initiator()->start();
  wire[10] = std::byte{4};
  auto progress = initiator()->feed(wire);
  EXPECT_EQ(progress.status().code(), Code::kCorrupt);
  EXPECT_TRUE(contains(progress.status(), "kind 4; kind 2 is expected"));
}

TEST(Handshake, RandomBytesNeverComplete) {
  std::mt19937_64 random(20);
  const Bytes preface = initiator()->start();
  for (int round = 0; round < 3000; ++round) {
    Bytes noise(random() % 300);
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    // Half of the rounds begin right, so that the noise meets the later checks.
    const size_t right = std::min(noise.size(), round % 2 == 0 ? 0 : kPrefaceBytes);
    std::copy_n(preface.begin(), right, noise.begin());
    for (auto& side : {initiator(), acceptor()}) {
      size_t at = 0;
      while (at < noise.size()) {
        const size_t piece = std::min<size_t>(noise.size() - at, random() % 64 + 1);
        auto progress = side->feed(std::span(noise).subspan(at, piece));
        if (!progress.isOk()) break;
        EXPECT_FALSE(progress->done);
        at += piece;
      }
    }
  }
}

TEST(Handshake, CreateRefusesEmptyCredentials) {
  auto options = optionsOf(contextA());
  options.secret = Secret();
  EXPECT_EQ(Handshake::create(Role::kInitiator, options).status().code(), Code::kInvalidArgument);
  options = optionsOf(ContextId());
  EXPECT_EQ(Handshake::create(Role::kAcceptor, options).status().code(), Code::kInvalidArgument);
  options = optionsOf(contextA());
  options.keyId.reset();
  EXPECT_EQ(Handshake::create(Role::kAcceptor, options).status().code(), Code::kInvalidArgument);
}

// The acceptor makes no key id for a hello: it compares with the one that it was given, right or
// wrong.
TEST(Handshake, AHelloForNoOpenSecretCostsNoHash) {
  auto host = optionsOf(contextB());
  ++*host.keyId;
  EXPECT_EQ(acceptor(host)->feed(initiator()->start()).status().code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace peerlane
