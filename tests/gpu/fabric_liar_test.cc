// SPDX-License-Identifier: Apache-2.0
//
// A peer that speaks of fabric handles by hand: of an earlier version, which is given none, and one
// that answers with other handles than it was asked for.
#include "peerlane/memory/chunk_runs.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"
#include "peerlane/transport/cuda_ipc/cuda_part.h"
#include "tests/faults/intruder.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr uint8_t kBothWays = 3;

// A context with a GPU, which tells the other side how to come in by hand.
struct Host {
  explicit Host(const Line& line) : device(gpu(0)) {
    ContextOptions options;
    options.devices = {device};
    options.listen = {"127.0.0.1:0"};
    context = must(Context::create(std::move(options)), "Context::create");
    for (const std::string& address : context->addresses())
      if (address.starts_with("unix")) line.send(address);
    line.send(context->secretText());
    peer = must(context->accept(kPatience), "accept");
  }

  const Device device;
  std::unique_ptr<Context> context;
  Peer peer;
};

std::unique_ptr<Intruder> comeIn(const Line& line) {
  auto it = std::make_unique<Intruder>(line.receive());
  it->enter(must(Secret::fromText(line.receive()), "secret"));
  CudaIpcOffer offer;
  offer.gpus.resize(1);  // one that is hidden from the host
  it->becomePeer({{"cuda_ipc", offer.encode(), 0}});
  return it;
}

// What a later version has is refused by its name, not granted in part.
TEST(FabricLiar, AnEarlierVersionIsGivenNoFabricHandle) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Host host(line);
        const Segment segment(host.device.index, chunks(2), Export::kFabric);
        for (const size_t bytes : {kGranule, 2 * kGranule}) {
          const Region region =
              must(host.context->registerRegion(segment.data(), bytes, Access::kRemoteReadWrite),
                   "registerRegion");
          const auto reference = must(RegionReference::decode(region.share()), "decode");
          line.send(std::to_string(reference.allocation));
          line.send(std::to_string(reference.generation));
          line.meet();
        }
      },
      [](const Line& line) {
        const auto it = comeIn(line);
        for (const MemoryKind kind : {MemoryKind::kCudaFabric, MemoryKind::kCudaFabricChunks}) {
          const uint64_t allocation = std::stoull(line.receive());
          const uint64_t generation = std::stoull(line.receive());
          const auto ask = [&](const std::string& link) {
            it->say(control::ImportRequest{1, allocation, generation, kBothWays, {link}});
            return it->hear<control::ImportReply>();
          };
          const auto refused = ask("tcp");
          EXPECT_EQ(refused.code, Code::kNotSupported);
          EXPECT_NE(refused.reason.find(kind.name()), std::string::npos) << refused.reason;
          const auto granted = ask("cuda_ipc");
          EXPECT_EQ(granted.code, Code::kOk) << granted.reason;
          EXPECT_EQ(granted.link, "cuda_ipc");
          EXPECT_EQ(MemoryKind::of(granted.place, granted.exported, granted.shape), kind);
          EXPECT_EQ(granted.fdCount, 0u);
          const CudaPart part = must(CudaPart::decode(granted.linkPart), "part");
          EXPECT_EQ(part.handle.size(), kind == MemoryKind::kCudaFabric ? 64u : 16u);
          line.meet();
        }
      }));
}

// A region of `chunks` granules that only the intruder knows.
RemoteRegion invented(const Peer& peer, size_t granules) {
  RegionReference reference;
  const auto owner = peer.core()->context().bytes();
  std::transform(owner.begin(), owner.end(), reference.owner.begin(),
                 [](std::byte b) { return static_cast<uint8_t>(b); });
  reference.allocation = reference.generation = 7;
  reference.bytes = granules * kGranule;
  reference.access = Access::kRemoteReadWrite;
  reference.device = {DeviceKind::kCuda, 0};
  reference.kind = MemoryKind::kCudaFabricChunks;
  return must(peer.importRegion(reference.encode()), "importRegion");
}

// Of `handleBytes`, where three chunks were asked for.
void answerWith(Intruder& it, size_t handleBytes) {
  ChunkRuns runs;
  for (int i = 0; i < 3; ++i) runs.add(kGranule);
  control::ImportReply grant;
  grant.request = it.hear<control::ImportRequest>().request;
  constexpr MemoryKind kKind = MemoryKind::kCudaFabricChunks;
  grant.link = "cuda_ipc";
  grant.place = static_cast<uint8_t>(kKind.place);
  grant.exported = static_cast<uint8_t>(kKind.exported);
  grant.shape = static_cast<uint8_t>(kKind.shape);
  grant.bytes = runs.bytes();
  grant.access = kBothWays;
  grant.allocation = grant.generation = 7;
  grant.linkPart =
      CudaPart{.backingBytes = runs.bytes(), .identity = 9, .handle = runs.encode()}.encode();
  it.say(grant);
  const auto asked = it.hear<control::ChunkRequest>();
  EXPECT_EQ(asked.count, 3u);
  it.say(control::ChunkReply{asked.request, Code::kOk, "", asked.first, asked.count, 0,
                             std::vector<std::byte>(handleBytes, std::byte{0x5a})});
}

TEST(FabricLiar, OtherHandlesThanWereAskedForEndTheConnection) {
  PEERLANE_NEEDS_FABRIC();
  for (const size_t handleBytes : {size_t{0}, 2 * kFabricHandleBytes, 3 * kFabricHandleBytes + 1})
    EXPECT_TRUE(runTwo(
        [](const Line& line) {
          const Host host(line);
          const RemoteRegion remote = invented(host.peer, 3);
          const Status lost = remote.prepare(kPatience);
          EXPECT_FALSE(lost.isOk());
          EXPECT_NE(lost.message().find("others were asked for"), std::string::npos)
              << lost.toString();
          line.meet();
        },
        [handleBytes](const Line& line) {
          const auto it = comeIn(line);
          answerWith(*it, handleBytes);
          EXPECT_TRUE(it->seesTheEnd());
          line.meet();
        }));
}

// As many as were asked for, which lead nowhere: that fails the chunks, and nothing else.
TEST(FabricLiar, HandlesThatLeadNowhereFailTheirChunks) {
  PEERLANE_NEEDS_FABRIC();
  EXPECT_TRUE(runTwo(
      [](const Line& line) {
        const Host host(line);
        const RemoteRegion remote = invented(host.peer, 3);
        const Status failed = remote.prepare(kPatience);
        EXPECT_NE(failed.message().find("the fabric handle leads to no memory"), std::string::npos)
            << failed.toString();
        EXPECT_EQ(host.peer.state(), "ready");
        line.meet();
      },
      [](const Line& line) {
        const auto it = comeIn(line);
        answerWith(*it, 3 * kFabricHandleBytes);
        line.meet();
      }));
}

}  // namespace
}  // namespace peerlane::gputest
