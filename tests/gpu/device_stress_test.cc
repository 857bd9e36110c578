// SPDX-License-Identifier: Apache-2.0
//
// Data, then signal, many times: messages of 1 byte to 64 MiB by every engine on several streams
// whose messages overtake each other, each with contents of its own. The receiver looks at the
// bytes as soon as their signal says that they are there: by a kernel, by the copy engine, or as
// the host, in host memory. A signal that runs ahead of its bytes, one that moves for the message
// of another stream, or a message that is lost, is seen at once.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

const uint64_t kMessages = inSoftware() ? 50'000 : 1'000'000;
constexpr uint64_t kSlots = 64;
const uint64_t kSlotBytes = (inSoftware() ? uint64_t{1} : uint64_t{64}) << 20;
constexpr uint64_t kHostSlotBytes = 64 << 10;
const uint64_t kSourceBytes = 2 * kSlotBytes;
constexpr uint64_t kSampleBytes = 256;  // looked at: the first and the last of each message
constexpr uint32_t kSeed = 11;
constexpr uint32_t kStreams = 3;  // each with the signal of its number
constexpr uint32_t kCredit = 7;

enum class Reader { kKernel, kCopyEngine, kHost };

// What both sides know of message `number`.
struct Message {
  uint64_t bytes = 0;
  uint64_t from = 0;  // in the source
  uint64_t to = 0;    // in the target
  Engine engine = Engine::kAuto;
  Reader reader = Reader::kKernel;

  uint64_t sample() const { return std::min(bytes, kSampleBytes); }
};

Message messageOf(uint64_t number) {
  std::mt19937_64 random(number);
  Message message;
  // Small ones mostly.
  const uint64_t bits = random() % 4 == 0 ? random() % 27 : random() % 14;
  message.reader = static_cast<Reader>(random() % 3);
  const uint64_t room = message.reader == Reader::kHost ? kHostSlotBytes : kSlotBytes;
  message.bytes = std::min(1 + random() % (uint64_t{1} << bits), room);
  message.from = random() % (kSourceBytes - message.bytes + 1);
  message.to = number % kSlots * room + random() % std::min<uint64_t>(room - message.bytes + 1, 64);
  static constexpr Engine kEngines[] = {Engine::kAuto, Engine::kCe, Engine::kSm, Engine::kInline};
  message.engine = kEngines[random() % 4];
  if (message.engine == Engine::kInline && message.bytes > 65536) message.engine = Engine::kSm;
  return message;
}

void sendAll(const Line& line) {
  const Meeting meeting(0, line);
  const Region source =
      must(meeting.context->allocate(kSourceBytes, {.device = meeting.device}), "allocate");
  const RemoteRegion device = exchange(meeting.peer, source, line);
  const RemoteRegion host = exchange(meeting.peer, source, line);
  must(device.prepare(kPatience), "prepare");
  must(host.prepare(kPatience), "prepare");
  fill(source.data(), kSourceBytes, kSeed);
  std::vector<cudaStream_t> streams(kStreams);
  for (cudaStream_t& stream : streams) stream = makeStream();
  const Signal credit = must(Signal::create(meeting.peer, kCredit), "signal");
  line.meet();
  for (uint64_t number = 0; number < kMessages; ++number) {
    if (number >= kSlots) must(credit.wait(number - kSlots + 1, kPatience), "credit");
    const Message message = messageOf(number);
    const RemoteRegion& target = message.reader == Reader::kHost ? host : device;
    const Block block{&source, message.from, &target, message.to, message.bytes};
    const auto lane = static_cast<uint32_t>(number % kStreams);
    must(put(meeting.peer, {&block, 1},
             {.notify = {.signal = lane},
              .deviceStream = DeviceStream::cuda(streams[lane]),
              .engine = message.engine}),
         "put");
  }
  must(flush(meeting.peer, kPatience), "flush");
  line.meet();
}

// The first and the last bytes of a message on the GPU, as a kernel or the copy engine sees them.
void readOnDevice(const Message& message, const std::byte* at, cudaStream_t stream,
                  std::byte* seen) {
  const kernel::CopyPiece ends[] = {
      {at, seen, message.sample()},
      {at + message.bytes - message.sample(), seen + kSampleBytes, message.sample()}};
  if (message.reader == Reader::kKernel) {
    kernel::CopyLaunch launch;
    launch.pieces = ends;
    launch.pieceCount = 2;
    launch.ctas = 1;
    launch.stream = stream;
    must(kernel::launchCopy(launch), "launchCopy");
  } else {
    for (const kernel::CopyPiece& end : ends)
      mustCuda(cudaMemcpyAsync(end.to, end.from, end.bytes, cudaMemcpyDefault, stream), "copy");
  }
  mustSync(stream);
}

void receiveAll(const Line& line) {
  const Meeting meeting(1, line);
  const Region device =
      must(meeting.context->allocate(kSlots * kSlotBytes, {.device = meeting.device}), "allocate");
  const Region host = must(meeting.context->allocate(kSlots * kHostSlotBytes), "allocate");
  const RemoteRegion source = exchange(meeting.peer, device, line);
  (void)exchange(meeting.peer, host, line);
  // What the source holds, to compare with.
  std::vector<std::byte> expected(kSourceBytes);
  fill(expected.data(), kSourceBytes, kSeed);
  std::byte* seen = nullptr;
  mustCuda(cudaMallocHost(reinterpret_cast<void**>(&seen), 2 * kSampleBytes), "cudaMallocHost");
  std::vector<Signal> arrived;
  for (uint32_t lane = 0; lane < kStreams; ++lane)
    arrived.push_back(must(Signal::create(meeting.peer, lane), "signal"));
  line.meet();
  uint64_t wrong = 0;
  for (uint64_t number = 0; number < kMessages; ++number) {
    must(arrived[number % kStreams].wait(number / kStreams + 1, kPatience), "signal");
    const Message message = messageOf(number);
    const uint64_t last = message.bytes - message.sample();
    const std::byte* first = host.data() + message.to;
    const std::byte* end = first + last;
    if (message.reader != Reader::kHost) {
      readOnDevice(message, device.data() + message.to, meeting.stream, seen);
      first = seen;
      end = seen + kSampleBytes;
    }
    const std::byte* const wanted = expected.data() + message.from;
    wrong += std::memcmp(first, wanted, message.sample()) != 0 ||
             std::memcmp(end, wanted + last, message.sample()) != 0;
    must(addSignal(meeting.peer, kCredit), "addSignal");
  }
  EXPECT_EQ(wrong, 0u);
  for (uint32_t lane = 0; lane < kStreams; ++lane)
    EXPECT_EQ(arrived[lane].value(), (kMessages + kStreams - 1 - lane) / kStreams);
  line.meet();
}

TEST(DeviceStress, SignalsNeverRunAheadOfTheirBytes) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runTwo(sendAll, receiveAll, 150));
}

}  // namespace
}  // namespace peerlane::gputest
