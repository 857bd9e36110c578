// SPDX-License-Identifier: Apache-2.0
//
// A peer that is killed while a stream, and a kernel, wait for what it was to send by a triggered
// queue: they are released, the queue says PeerLost, and the stream is as good as before.
#include <cuda_runtime_api.h>

#include <string>

#include "peerlane/channel/trigger/triggered_queue.h"
#include "tests/core/soon.h"
#include "tests/gpu/trigger_kernels.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr uint64_t kBytes = 64 * 1024;
constexpr uint32_t kNever = 9;  // a signal

ContextOptions optionsFor(const std::string& link) {
  Config config;
  config.links = {link};
  ContextOptions options;
  options.devices = {gpu(0)};
  options.config = config;
  return options;
}

// The victim: there, and never adds to the signal.
SideFunction standing(const std::string& link) {
  return [link](const Line& line) {
    const auto context = must(Context::create(optionsFor(link)), "Context::create");
    const Region region = must(context->allocate(kBytes), "allocate");
    const Peer peer = meetPeer(*context, line, true);
    (void)exchange(peer, region, line);
    (void)line.receive();  // it is killed before
  };
}

// A queue with a put that is launched, and a signal of this side's, and one that is awaited.
class Waiting {
 public:
  Waiting(Context& context, const Victim& victim, TriggerEmitter emitter)
      : context_(context),
        region_(must(context.allocate(kBytes), "allocate")),
        peer_(meetPeer(context, victim.line(), false)),
        remote_(exchange(peer_, region_, victim.line())),
        queue(
            must(TriggeredQueue::create(peer_, {.emitter = emitter, .device = gpu(0)}), "queue")) {
    const Block block{&region_, 0, &remote_, 0, kBytes};
    must(queue.put({&block, 1}), "put");
    must(queue.signal(0), "signal");
    must(queue.receive(kNever, 1), "receive");
    commit = must(queue.commit(), "commit");
    peek = must(queue.peek(commit.id.number), "peek");
  }
  void expectLost() {
    EXPECT_TRUE(soon([this] { return queue.status().code() == Code::kPeerLost; }))
        << queue.status().toString();
    const Block block{&region_, 0, &remote_, 0, 64};
    EXPECT_EQ(queue.put({&block, 1}).code(), Code::kPeerLost);
    EXPECT_EQ(queue.poll(commit.id.number).code(), Code::kPeerLost);
    must(context_.unregister(region_, kPatience), "unregister");
  }

 private:
  Context& context_;
  const Region region_;
  const Peer peer_;
  const RemoteRegion remote_;

 public:
  TriggeredQueue queue;
  TriggerProgram commit, peek;
};

// It does what is enqueued next.
void expectUsable(cudaStream_t stream) {
  std::byte* memory = nullptr;
  mustCuda(cudaMalloc(reinterpret_cast<void**>(&memory), 4096), "cudaMalloc");
  mustCuda(cudaMemsetAsync(memory, 7, 4096, stream), "cudaMemsetAsync");
  mustSync(stream);
  std::byte last{};
  mustCuda(cudaMemcpy(&last, memory + 4095, 1, cudaMemcpyDefault), "cudaMemcpy");
  EXPECT_EQ(last, std::byte{7});
  mustCuda(cudaFree(memory), "cudaFree");
}

void streamWaits(Context& context, const Victims& victims, TriggerEmitter emitter,
                 cudaStream_t stream) {
  const Victim victim = victims.next();
  Waiting waiting(context, victim, emitter);
  const DeviceStream on = DeviceStream::cuda(stream);
  must(waiting.queue.enqueueCommit(waiting.commit.id, on), "enqueueCommit");
  must(waiting.queue.enqueuePeek(waiting.peek.id, on), "enqueuePeek");
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  victim.kill();
  mustSync(stream);
  waiting.expectLost();
  expectUsable(stream);
}

void kernelWaits(Context& context, const Victims& victims, TriggerEmitter emitter,
                 cudaStream_t stream) {
  const Victim victim = victims.next();
  Waiting waiting(context, victim, emitter);
  TriggerGame* game = nullptr;
  mustCuda(cudaHostAlloc(reinterpret_cast<void**>(&game), sizeof(TriggerGame), 0), "cudaHostAlloc");
  *game = {};
  game->count = 1;
  TriggerRound& round = game->rounds[0];
  // It launches, waits, and would launch what is not there.
  TriggerOp* const after =
      round.wait + must(waiting.queue.resolve(waiting.commit, round.wait), "").ops;
  const TriggerList wait =
      must(waiting.queue.resolve(waiting.peek, {after, std::end(round.wait)}), "resolve");
  round.waitOps = static_cast<uint32_t>(after - round.wait) + wait.ops;
  game->status = wait.status;
  must(waiting.queue.enqueueCommit(waiting.commit.id), "enqueueCommit");
  must(waiting.queue.enqueuePeek(waiting.peek.id), "enqueuePeek");
  launchTriggerGame(game, stream);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  victim.kill();
  mustSync(stream);
  EXPECT_EQ(game->outcome, static_cast<uint32_t>(TriggerOutcome::kEnded));
  waiting.expectLost();
  mustCuda(cudaFreeHost(game), "cudaFreeHost");
  expectUsable(stream);
}

struct FaultCase {
  const char* name;
  const char* link;
  TriggerEmitter emitter;
};
class TriggerFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(TriggerFaults, AKilledPeerReleasesStreamsAndKernels) {
  PEERLANE_NEEDS_GPUS(1);
  const FaultCase fault = GetParam();
  const auto survive = [fault](const Victims& victims) {
    const auto context = must(Context::create(optionsFor(fault.link)), "Context::create");
    mustCuda(cudaSetDevice(gpu(0).index), "cudaSetDevice");
    const cudaStream_t stream = makeStream();
    for (int round = 0; round < 3; ++round) {
      streamWaits(*context, victims, fault.emitter, stream);
      kernelWaits(*context, victims, fault.emitter, stream);
    }
  };
  EXPECT_TRUE(runWithVictims(survive, standing(fault.link)));
}

INSTANTIATE_TEST_SUITE_P(Links, TriggerFaults,
                         testing::Values(FaultCase{"tcp", "tcp", TriggerEmitter::kDoorbell},
                                         FaultCase{"shm", "shm", TriggerEmitter::kDoorbell},
                                         FaultCase{"mapped", "shm", TriggerEmitter::kMapped}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace peerlane::gputest
