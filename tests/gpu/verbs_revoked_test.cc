// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU that its provider takes back while transfers over a NIC use it: they end, Revoked
// or done before, nothing hangs, other regions go on, and nothing is written there afterwards.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/memory/cuda/cuda_provider.h"
#include "peerlane/memory/invalidation.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

// Memory of a GPU as CUDA's own provider describes it, that may be taken back.
class Lent final : public HeldMemory {
 public:
  explicit Lent(std::unique_ptr<HeldMemory> held) : held_(std::move(held)) {}
  Result<MemoryDescription> describe() const override { return held_->describe(); }
  Result<MemoryFacts> facts() const override {
    auto facts = held_->facts();
    if (facts.isOk()) facts->mayBeInvalidated = true;
    return facts;
  }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& importer, uint64_t offset,
                                 uint64_t bytes) override {
    return held_->exportAs(form, importer, offset, bytes);
  }

 private:
  const std::unique_ptr<HeldMemory> held_;
};

// Of one allocation.
class Lender final : public MemoryProvider {
 public:
  Lender(Device device, void* memory)
      : cuda_({must(cuda::PrimaryContext::retainShared(device.index), "PrimaryContext")}),
        memory_(memory) {}
  std::string_view name() const override { return "lender"; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override {
    if (pointer != memory_) return MemoryClaim::notMine();
    auto claim = cuda_.acquire(pointer, bytes, ticket);
    if (!claim.isOk() || !claim->held) return claim;
    ticket_ = ticket;
    return MemoryClaim::all(std::make_unique<Lent>(std::move(claim->held)));
  }
  uint64_t ticket() const { return ticket_; }

 private:
  CudaProvider cuda_;
  void* const memory_;
  std::atomic<uint64_t> ticket_{0};
};

// A side with two regions of its GPU, the first one lent.
struct LentSide : Meeting {
  LentSide(int side, const Line& line)
      : Meeting(side, line),
        memory(obtain()),
        lender(std::make_shared<Lender>(device, memory)),
        number(must(context->addProvider(lender), "addProvider")),
        lent(must(context->registerRegion(memory, kBytes, Access::kRemoteReadWrite),
                  "registerRegion")),
        other(makeRegion(*context, device, Memory::kVmm, kBytes)),
        theirLent(exchange(peer, lent, line)),
        theirOther(exchange(peer, other, line)) {}
  void* obtain() const {
    void* made = nullptr;
    mustCuda(cudaSetDevice(device.index), "cudaSetDevice");
    mustCuda(cudaMalloc(&made, kBytes), "cudaMalloc");
    return made;
  }

  void* const memory;
  const std::shared_ptr<Lender> lender;
  const uint64_t number;
  const Region lent;
  const Region other;
  const RemoteRegion theirLent;
  const RemoteRegion theirOther;
};

void configure() {
  setenv("PEERLANE_LINKS", "self,verbs", 1);
  setenv("PEERLANE_STAGING_BYTES", "262144", 1);
  setenv("SOFTWARE_HCA_DMABUF", "yes", 1);
}

// Of this side or of the peer; straight by the NIC, or staged because of the stream.
struct Taken {
  bool isLocal;
  bool onStream;
};
class VerbsRevoked : public ::testing::TestWithParam<Taken> {};
INSTANTIATE_TEST_SUITE_P(Takers, VerbsRevoked,
                         ::testing::Values(Taken{false, false}, Taken{false, true},
                                           Taken{true, false}, Taken{true, true}),
                         [](const auto& tested) {
                           return std::string(tested.param.isLocal ? "OfThisSide" : "OfThePeer") +
                                  (tested.param.onStream ? "OnAStream" : "ByTheNic");
                         });

TEST_P(VerbsRevoked, EndsWhatUsesIt) {
  PEERLANE_NEEDS_GPUS(1);
  const auto [isLocal, onStream] = GetParam();
  const auto active = [&, isLocal = isLocal, onStream = onStream](const Line& line) {
    configure();
    const LentSide side(0, line);
    PostOptions options;
    if (onStream) options.deviceStream = side.deviceStream();
    const Block used = isLocal ? Block{&side.lent, 0, &side.theirOther, 0, kBytes}
                               : Block{&side.other, 0, &side.theirLent, 0, kBytes};
    const Block free{&side.other, 0, &side.theirOther, 0, kBytes};
    const auto putUsed = [&] { return put(side.peer, {&used, 1}, options); };
    must(endOf(putUsed()), "the first put");
    line.send("take");
    if (isLocal) {
      std::vector<Transfer> posted;
      for (int i = 0; i < 8; ++i) posted.push_back(must(putUsed(), "put"));
      must(invalidateMemory(side.lender->ticket(), kPatience), "invalidateMemory");
      for (const Transfer& each : posted) {
        const Status ended = each.wait(kPatience);
        EXPECT_TRUE(ended.isOk() || ended.code() == Code::kRevoked) << ended.toString();
      }
    } else {
      // The owner takes it at some time during these.
      Status ended;
      while (ended.isOk()) ended = endOf(putUsed());
      EXPECT_EQ(ended.code(), Code::kRevoked) << ended.toString();
    }
    EXPECT_EQ(endOf(putUsed()).code(), Code::kRevoked) << endOf(putUsed()).toString();
    mustSync(side.stream);
    EXPECT_TRUE(endOf(put(side.peer, {&free, 1}, options)).isOk());
    line.send("tried");
    (void)line.receive();
  };
  const auto passive = [&, isLocal = isLocal](const Line& line) {
    configure();
    const LentSide side(1, line);
    EXPECT_EQ(line.receive(), "take");
    if (!isLocal) {
      must(invalidateMemory(side.lender->ticket(), kPatience), "invalidateMemory");
      fill(side.memory, kBytes, 9);
    }
    EXPECT_EQ(line.receive(), "tried");
    if (!isLocal) {
      EXPECT_EQ(wrongWords(side.memory, kBytes, 9), 0u);
    }
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
