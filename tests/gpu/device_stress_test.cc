// SPDX-License-Identifier: Apache-2.0
//
// Data, then signal, many times: messages of random sizes by every engine on one stream, each with
// contents of its own; the receiver looks at the bytes as soon as the signal says that they are
// there. A signal that runs ahead of its bytes, or a message that is lost, is seen at once.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

const uint64_t kMessages = inSoftware() ? 50'000 : 1'000'000;
constexpr uint64_t kSlots = 64;
constexpr uint64_t kSlotBytes = 1 << 20;
constexpr uint64_t kSourceBytes = 128 << 20;
constexpr uint64_t kSampleBytes = 64;  // looked at: the first and the last of each message
constexpr uint32_t kSeed = 11;

// What both sides know of message `number`.
struct Message {
  uint64_t bytes = 0;
  uint64_t from = 0;  // in the source
  uint64_t to = 0;    // in its slot
  Engine engine = Engine::kAuto;
};

Message messageOf(uint64_t number) {
  std::mt19937_64 random(number);
  Message message;
  // Small ones mostly: the size has 0 to 20 bits.
  message.bytes = kSampleBytes + (random() >> (44 + random() % 20)) / 4 * 4;
  message.bytes = std::min(message.bytes, kSlotBytes);
  message.from = random() % ((kSourceBytes - message.bytes) / 4) * 4;
  message.to = number % kSlots * kSlotBytes;
  static constexpr Engine kEngines[] = {Engine::kAuto, Engine::kCe, Engine::kSm, Engine::kInline};
  message.engine = kEngines[random() % 4];
  if (message.engine == Engine::kInline && message.bytes > 65536) message.engine = Engine::kSm;
  return message;
}

void sendAll(const Line& line) {
  const Device device = gpu(0);
  auto context = makeContext({device});
  const Peer peer = meetPeer(*context, line, false);
  const Region source = must(context->allocate(kSourceBytes, {.device = device}), "allocate");
  const RemoteRegion target = exchange(peer, source, line);
  must(target.prepare(), "prepare");
  fill(source.data(), kSourceBytes, kSeed);
  cudaStream_t stream = nullptr;
  mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Signal credit = must(Signal::create(peer, 1), "signal");
  line.meet();
  for (uint64_t number = 0; number < kMessages; ++number) {
    if (number >= kSlots) must(credit.wait(number - kSlots + 1, kPatience), "credit");
    const Message message = messageOf(number);
    const Block block{&source, message.from, &target, message.to, message.bytes};
    must(put(peer, {&block, 1},
             {.notify = {.signal = 0},
              .deviceStream = DeviceStream::cuda(stream),
              .engine = message.engine}),
         "put");
  }
  must(flush(peer, kPatience), "flush");
  line.meet();
}

void receiveAll(const Line& line) {
  const Device device = gpu(1);
  auto context = makeContext({device});
  const Peer peer = meetPeer(*context, line, true);
  const Region target =
      must(context->allocate(kSlots * kSlotBytes, {.device = device}), "allocate");
  const RemoteRegion source = exchange(peer, target, line);
  // What the source holds, to compare with.
  std::vector<std::byte> expected(kSourceBytes);
  fill(expected.data(), kSourceBytes, kSeed);
  cudaStream_t stream = nullptr;
  mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::byte* seen = nullptr;
  mustCuda(cudaMallocHost(reinterpret_cast<void**>(&seen), 2 * kSampleBytes), "cudaMallocHost");
  const Signal arrived = must(Signal::create(peer, 0), "signal");
  line.meet();
  uint64_t wrong = 0;
  for (uint64_t number = 0; number < kMessages; ++number) {
    must(arrived.wait(number + 1, kPatience), "signal");
    const Message message = messageOf(number);
    const std::byte* const at = target.data() + message.to;
    const uint64_t last = message.bytes - kSampleBytes;
    mustCuda(cudaMemcpyAsync(seen, at, kSampleBytes, cudaMemcpyDefault, stream), "copy");
    mustCuda(
        cudaMemcpyAsync(seen + kSampleBytes, at + last, kSampleBytes, cudaMemcpyDefault, stream),
        "copy");
    mustCuda(cudaStreamSynchronize(stream), "synchronize");
    const std::byte* const wanted = expected.data() + message.from;
    wrong += !std::equal(seen, seen + kSampleBytes, wanted) ||
             !std::equal(seen + kSampleBytes, seen + 2 * kSampleBytes, wanted + last);
    must(addSignal(peer, 1), "addSignal");
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(arrived.value(), kMessages);
  line.meet();
}

TEST(DeviceStress, SignalsNeverRunAheadOfTheirBytes) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(sendAll, receiveAll, 120));
}

}  // namespace
}  // namespace peerlane::gputest
