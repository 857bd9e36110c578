// SPDX-License-Identifier: Apache-2.0
//
// Chunks of a region that cannot be asked for, because nothing is sent to the peer any more.
#include "peerlane/session/peer/chunk_imports.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

constexpr uint64_t kChunk = 2 << 20;
constexpr uint64_t kChunks = 3 * ChunkImports::kPerRequest;

// Nothing is mapped there.
class NoSpace final : public ChunkSpace {
 public:
  std::byte* data() const override { return nullptr; }
  Status map(uint64_t, std::span<const uint64_t>, std::vector<VmmHandle>) override {
    return Status(Code::kInternal, "no chunk was to come");
  }
};

std::unique_ptr<ControlConnection> connectionThatEnded(EventLoop& loop) {
  std::array<int, 2> sockets{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const Fd far(sockets[1]);
  HandshakeOptions options;
  options.secret = Secret::random();
  options.keyId = keyIdOf(options.secret);
  options.self = ContextId::random();
  auto made = MUST(ControlConnection::create(loop, Fd(sockets[0]), false,
                                             Handshake::Role::kInitiator, std::move(options),
                                             {.authenticated = [](const PeerIdentity&) {},
                                              .message = [](const ControlMessage&) {},
                                              .ended = [](const Status&) {}}));
  made->close();
  return made;
}

std::shared_ptr<ImportedRegion> regionInChunks() {
  ChunkRuns runs;
  for (uint64_t i = 0; i < kChunks; ++i) runs.add(kChunk);
  auto region = std::make_shared<ImportedRegion>();
  region->memory.grant.bytes = kChunks * kChunk;
  region->memory.chunks =
      std::make_shared<ChunkMap>(runs, 0, kChunks * kChunk, std::make_unique<NoSpace>());
  return region;
}

// The peer is not over yet: its end, which would settle all, may be long in coming.
TEST(ChunkImports, WhoWaitsForAllChunksIsToldThatTheyCannotBeAskedFor) {
  Config config;
  const auto progress = MUST(Progress::create(config.spin));
  Metrics metrics;
  RegionTable regions;
  MemoryProviders providers;
  std::vector<std::unique_ptr<Transport>> transports;
  const DeviceExecutors devices;
  LogLimit strangers;
  Absentees absentees{regions};
  const cpu::HostCopier copier;
  PeerEnvironment env(1,
                      PeerSurroundings{nullptr, config, *progress, regions, providers, metrics,
                                       transports, devices, strangers, absentees, copier},
                      true);
  const auto region = regionInChunks();
  Status told;  // of the whole region, by the first call: it is settled once
  int calls = 0;
  ChunkImports imports(env, [&](const ImportedRegion& settled) {
    EXPECT_EQ(&settled, region.get());
    if (calls++ == 0) told = region->memory.chunks->failure(0, kChunks * kChunk);
  });
  const auto onLoop = [&](const std::function<void()>& act) {
    ASSERT_OK(progress->call(act, Progress::deadlineIn(kSoon)));
  };
  onLoop([&] { env.connection = connectionThatEnded(progress->loop()); });
  ASSERT_FALSE(env.status.over());
  imports.request(region, region->memory.chunks->ask(0, kChunks * kChunk));
  onLoop([] {});  // behind what was posted
  EXPECT_GE(calls, 1);
  EXPECT_EQ(told.code(), Code::kClosed) << told.toString();
  EXPECT_TRUE(region->memory.chunks->ask(0, kChunks * kChunk).empty()) << "none is tried again";
  onLoop([&] { env.connection.reset(); });
  progress->stop();
}

}  // namespace
}  // namespace peerlane
