// SPDX-License-Identifier: Apache-2.0
//
// exit() while links seal and open. In children, because libcrypto cannot be initialised twice: the
// process of the tests itself never touches it.
#include <dlfcn.h>
#include <openssl/crypto.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "peerlane/os/process.h"
#include "peerlane/transport/tcp/record_cipher.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

// The status of a child that calls `act`, and then exit(0) itself.
template <typename Act>
int statusOf(const Act& act) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    act();
    std::exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// As a program that uses libcrypto itself: it is cleaned up by exit().
void initialiseAsTheProgram() {
  void* const library = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) ::_exit(40);
  const auto initialise =
      reinterpret_cast<decltype(&::OPENSSL_init_crypto)>(::dlsym(library, "OPENSSL_init_crypto"));
  if (initialise(0, nullptr) != 1) ::_exit(41);
}

// Seals one record with a cipher that is new: OK, or why not.
Status sealAnew() {
  std::array<std::byte, 32> key{};
  RecordCipher cipher(Aead::Use::kSeal, {.chain = KeyBytes(key)});
  std::array<std::byte, 100> plain{};
  std::array<std::byte, 100 + kRecordExtraBytes> sealed{};
  const IoSlice slice{plain.data(), plain.size()};
  std::array<RecordCipher::Record, 1> record{
      {{.sealed = sealed.data(), .bytes = 100, .plain = {&slice, 1}}}};
  cipher.plan(record);
  Status status = cipher.seal(record, [](size_t) {});
  if (status.isOk() && !record[0].isGood) return Status(Code::kCorrupt, "it was not sealed");
  return status;
}

Code expected = Code::kOk;
void sealAtTheVeryEnd() {
  if (sealAnew().code() != expected) ::_exit(42);
}

bool isSaid = false;
void sealInTheGoodbyes() {
  isSaid = true;
  if (!sealAnew().isOk()) ::_exit(44);
}
void findThemSaid() {
  if (!isSaid) ::_exit(45);
}

TEST(CryptoExit, LinksGoOnInExit) {
  EXPECT_EQ(statusOf([] {
              std::atexit(sealAtTheVeryEnd);  // called last
              if (!sealAnew().isOk()) ::_exit(43);
            }),
            0);
}

TEST(CryptoExit, LinksTouchNoLibraryThatTheProgramHasCleanedUp) {
  EXPECT_EQ(statusOf([] {
              expected = Code::kClosed;
              std::atexit(sealAtTheVeryEnd);
              initialiseAsTheProgram();
              if (!sealAnew().isOk()) ::_exit(43);
            }),
            0);
}

TEST(CryptoExit, TheGoodbyesAreSaidBeforeLinksEnd) {
  EXPECT_EQ(statusOf([] {
              std::atexit(findThemSaid);
              initialiseAsTheProgram();
              setGoodbyes(&sealInTheGoodbyes);
              if (!sealAnew().isOk()) ::_exit(43);
            }),
            0);
}

// A process calls exit() while its peer writes to it; the messages that it has sent arrive.
void exitWhileThePeerWrites(bool isShared) {
  constexpr int kMessages = 50;
  constexpr size_t kBytes = 4 << 20;
  int ticket[2];
  ASSERT_EQ(::pipe(ticket), 0);
  Config config = configFor(kTcp);
  config.tcpEncrypt = true;
  config.tcpSockets = 2;
  std::fflush(nullptr);
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::alarm(60);
    std::string text(2048, 0);
    if (::read(ticket[0], text.data(), text.size()) != 2048) ::_exit(50);
    auto context = MUST(Context::create({config, {}, ""}));
    const Peer peer = MUST(context->connect(text.c_str(), kSoon));
    const RemoteRegion remote = MUST(peer.importRegion(MUST(peer.receiveMessage(1, kSoon))));
    const Region local = MUST(context->allocate(kBytes));
    const Block block{&local, 0, &remote, 0, kBytes};
    bool isTold = false;
    for (;;) {
      const auto transfer = put(peer, {&block, 1});
      if (!transfer.isOk() || !transfer->wait(kSoon).isOk()) break;
      if (!std::exchange(isTold, true)) (void)peer.sendMessage(2, {}, kSoon);
    }
    for (int i = 0; i < kMessages; ++i)
      if (!peer.receiveMessage(3, kSoon).isOk()) ::_exit(51);
    ::_exit(0);
  }
  const int status = statusOf([&] {
    if (isShared) initialiseAsTheProgram();
    Context* const context = MUST(Context::create({config, {}, ""})).release();
    static const Region memory = MUST(context->allocate(kBytes));
    std::string text = context->ticket();
    text.resize(2048);
    if (::write(ticket[1], text.data(), text.size()) != 2048) ::_exit(52);
    static const Peer peer = MUST(context->accept(kSoon));
    if (!peer.sendMessage(1, memory.share(), kSoon).isOk()) ::_exit(53);
    if (!peer.receiveMessage(2, kSoon).isOk()) ::_exit(54);  // it writes
    for (int i = 0; i < kMessages; ++i)
      if (!peer.sendMessage(3, memory.share(), kSoon).isOk()) ::_exit(55);
  });
  EXPECT_EQ(status, 0);
  int ofWriter = 0;
  EXPECT_EQ(::waitpid(writer, &ofWriter, 0), writer);
  EXPECT_EQ(ofWriter, 0);
  ::close(ticket[0]);
  ::close(ticket[1]);
}

TEST(CryptoExit, IsNoDangerWhileThePeerWrites) {
  for (int round = 0; round < 8; ++round) exitWhileThePeerWrites(/*isShared=*/false);
}
TEST(CryptoExit, IsNoDangerWhereTheProgramUsesTheLibrary) {
  for (int round = 0; round < 8; ++round) exitWhileThePeerWrites(/*isShared=*/true);
}

}  // namespace
}  // namespace peerlane
