// SPDX-License-Identifier: Apache-2.0
//
// A context by itself: what it tells of itself, its memory, its settings.
#include "peerlane/session/context/context.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/session/wire/ticket.h"
#include "tests/os/few_descriptors.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

TEST(Context, TellsWhoItIs) {
  auto context = makeContext();
  auto other = makeContext();
  EXPECT_EQ(context->id().size(), 32u);
  EXPECT_NE(context->id(), other->id());
  EXPECT_NE(context->secretText(), other->secretText());
  const Ticket ticket = MUST(Ticket::decode(context->ticket()));
  EXPECT_EQ(ticket.context.toText(), context->id());
  EXPECT_EQ(ticket.secret.revealText(), context->secretText());
  EXPECT_EQ(ticket.addresses, context->addresses());
  EXPECT_EQ(context->addresses(), std::vector<std::string>{"unix:@peerlane-" + context->id()});
  EXPECT_TRUE(context->peers().empty());
}

TEST(Context, KeepsTheSecretToItself) {
  auto context = makeContext();
  const std::string secret = context->secretText();
  EXPECT_EQ(context->dump().find(secret), std::string::npos);
  EXPECT_EQ(context->metrics().find(secret), std::string::npos);
}

TEST(Context, TakesItsConfigFromTheEnvironmentOrTheCaller) {
  ASSERT_EQ(setenv("PEERLANE_EAGER_BYTES", "123", 1), 0);
  EXPECT_EQ(MUST(Context::create())->config().eagerBytes, 123u);
  EXPECT_EQ(makeContext()->config().eagerBytes, 4096u) << "given, so the environment is not read";
  ASSERT_EQ(setenv("PEERLANE_EAGER_BYTES", "many", 1), 0);
  const auto refused = Context::create();
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("PEERLANE_EAGER_BYTES"), std::string_view::npos);
  ASSERT_EQ(unsetenv("PEERLANE_EAGER_BYTES"), 0);
}

TEST(Context, RefusesWhatItCannotListenOn) {
  for (const char* listen : {"nonsense", "127.0.0.1", "256.0.0.1:1", "203.0.113.7:0"}) {
    const auto refused = Context::create({Config(), {listen}, ""});
    ASSERT_FALSE(refused.isOk()) << listen;
    EXPECT_NE(refused.status().message().find(listen), std::string_view::npos)
        << refused.status().toString();
  }
}

TEST(Context, MakesZeroedMemoryThatPeersCanMap) {
  auto context = makeContext();
  const Region region = MUST(context->allocate(10'000));
  EXPECT_EQ(region.bytes(), 10'000u);
  EXPECT_TRUE(region.isShared()) << region.description();
  EXPECT_EQ(region.access(), Access::kRemoteReadWrite);
  EXPECT_EQ(region.device(), Device());
  for (size_t i = 0; i < region.bytes(); ++i) ASSERT_EQ(region.data()[i], std::byte{0});
  std::memset(region.data(), 1, region.bytes());
  EXPECT_OK(context->unregister(region, kSoon));
  EXPECT_EQ(context->allocate(0).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(context->allocate(size_t{1} << 60).isOk());
  MemoryOptions cuda;
  cuda.device = {DeviceKind::kCuda, 0};
  EXPECT_EQ(context->allocate(4096, cuda).status().code(), Code::kNotSupported);
  MemoryOptions readable;
  readable.access = Access::kRemoteRead;
  EXPECT_EQ(MUST(context->allocate(4096, readable)).access(), Access::kRemoteRead);
}

TEST(Context, RegistersWhatTheCallerHas) {
  auto context = makeContext();
  std::vector<std::byte> heap(1000);
  const Region region = MUST(context->registerRegion(heap.data(), 1000, Access::kRemoteRead));
  EXPECT_EQ(region.data(), heap.data());
  EXPECT_FALSE(region.isShared());
  EXPECT_EQ(context->registerRegion(nullptr, 10, Access::kLocal).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(context->registerRegion(heap.data(), 0, Access::kLocal).status().code(),
            Code::kInvalidArgument);
  void* readOnly = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(readOnly, MAP_FAILED);
  EXPECT_EQ(context->registerRegion(readOnly, 4096, Access::kRemoteReadWrite).status().code(),
            Code::kPermissionDenied);
  const Region readable = MUST(context->registerRegion(readOnly, 4096, Access::kRemoteRead));
  EXPECT_OK(context->unregister(readable, kSoon));
  ASSERT_EQ(munmap(readOnly, 4096), 0);
  void* const lowest = reinterpret_cast<void*>(4096);  // the kernel maps nothing there
  EXPECT_EQ(context->registerRegion(lowest, 4096, Access::kRemoteRead).status().code(),
            Code::kInvalidArgument)
      << "memory that is not mapped is refused";
  EXPECT_OK(context->unregister(region, kSoon));
  EXPECT_OK(context->unregister(region, kSoon));
}

TEST(Context, DumpShowsRegionsAndListeners) {
  auto context = makeContext({}, {"127.0.0.1:0"});
  const Region region = MUST(context->allocate(12'345));
  const std::string dump = context->dump();
  EXPECT_NE(dump.find("context " + context->id()), std::string::npos) << dump;
  EXPECT_NE(dump.find("listens on 127.0.0.1:"), std::string::npos) << dump;
  EXPECT_NE(dump.find("12345 bytes live"), std::string::npos) << dump;
  EXPECT_NE(dump.find("pending: 0"), std::string::npos) << dump;
}

TEST(Context, MetricsAreOfItsOwn) {
  auto a = makeContext();
  auto b = makeContext();
  EXPECT_NE(a->metrics().find("peerlane_transfers_total{status=\"OK\"} 0"), std::string::npos)
      << a->metrics();
  EXPECT_NE(a->metrics().find("peerlane_quarantined_regions 0"), std::string::npos);
  EXPECT_NE(b->metrics().find("# TYPE peerlane_transfers_total counter"), std::string::npos);
}

TEST(Context, MayHaveAsManyDescriptorsAsItsProcess) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const FewDescriptors few(100);
  const auto context = makeContext();
  rlimit after{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, 1 << 20));
}

TEST(Context, SeveralLiveInOneProcess) {
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<Peer> peers;
  for (int i = 0; i < 6; ++i) {
    contexts.push_back(makeContext());
    for (int j = 0; j < i; ++j)
      peers.push_back(
          MUST(contexts.back()->connect(contexts[static_cast<size_t>(j)]->ticket(), kSoon)));
  }
  for (const auto& context : contexts)
    EXPECT_TRUE(soon([&] { return context->peers().size() == 5; })) << context->dump();
  contexts.erase(contexts.begin() + 2);
  for (const auto& context : contexts)
    EXPECT_TRUE(soon([&] { return context->peers().size() == 4; })) << context->dump();
}

// In a callback nothing can be waited for, and a region half taken back would be of no use.
TEST(Context, UnregisterIsRefusedInACallbackBeforeItChangesAnything) {
  auto a = makeContext();
  auto b = makeContext();
  const Region far = MUST(b->allocate(4096));
  std::atomic<bool> called{false};
  Status inside;
  Status communicator;
  b->onPeer([&](const Peer& peer) {
    inside = b->unregister(far, kSoon);
    communicator = Communicator::create(*b, {peer, Peer()}, 1).status();
    called = true;
  });
  const Peer toB = MUST(a->connect(b->ticket(), kSoon));
  ASSERT_TRUE(soon([&] { return called.load(); }));
  EXPECT_EQ(inside.code(), Code::kInvalidArgument) << inside.toString();
  EXPECT_EQ(communicator.code(), Code::kInvalidArgument) << communicator.toString();
  EXPECT_NE(b->dump().find("4096 bytes live"), std::string::npos) << b->dump();
  const Region near = MUST(a->allocate(4096));
  const RemoteRegion remote = MUST(toB.importRegion(far.share()));
  const Block block{&near, 0, &remote, 0, 4096};
  EXPECT_OK(MUST(put(toB, {&block, 1})).wait(kSoon));
  EXPECT_OK(b->unregister(far, kSoon));
  EXPECT_EQ(b->dump().find("4096 bytes live"), std::string::npos) << b->dump();
  // Nor has a refused communicator been counted: the first one meets the other side's first.
  Result<std::unique_ptr<Communicator>> zero = Status(Code::kInternal, "");
  std::thread other([&] { zero = Communicator::create(*a, {Peer(), toB}, 0); });
  const Peer toA = b->peers().front();
  const auto one = Communicator::create(*b, {toA, Peer()}, 1);
  other.join();
  EXPECT_OK(zero.status());
  EXPECT_OK(one.status());
}

TEST(Context, EndsWhileItsCallsWait) {
  for (int round = 0; round < 10; ++round) {
    auto a = makeContext();
    auto b = makeContext();
    const Peer toB = MUST(a->connect(b->ticket(), kSoon));
    const Peer toA = MUST(b->accept(kSoon));
    const Signal signal = MUST(Signal::create(toA, 0));
    std::thread waiter([&] { EXPECT_EQ(signal.wait(1, kSoon).code(), Code::kClosed); });
    std::thread taker(
        [&] { EXPECT_EQ(waitNotification(toA, kSoon).status().code(), Code::kClosed); });
    b.reset();
    waiter.join();
    taker.join();
  }
}

}  // namespace
}  // namespace peerlane
