// SPDX-License-Identifier: Apache-2.0
//
// What a message on a stream costs its poster on a warm lane, counted: this binary replaces
// operator new.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <new>

#include "tests/gpu/two_processes.h"

// There where GPUs are in software: what a GPU would do is not counted.
extern "C" __attribute__((weak)) unsigned peerlaneSoftwareWork();

namespace {

thread_local bool counting = false;
thread_local unsigned allocations = 0;

void* allocate(std::size_t bytes) {
  if (counting && (peerlaneSoftwareWork == nullptr || peerlaneSoftwareWork() == 0)) ++allocations;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace peerlane::gputest {
namespace {

// The message's own object, where that of a message before is not back yet.
constexpr unsigned kAllocationsPerPost = 1;

unsigned countedByOne() {
  allocations = 0;
  counting = true;
  delete new int;
  counting = false;
  return allocations;
}

TEST(StreamMessagePosts, AllocateOnlyTheMessage) {
  PEERLANE_NEEDS_GPUS(1);
  ASSERT_EQ(countedByOne(), 1u) << "nothing is counted";
  const auto side = [](int index, const Line& line) {
    const Meeting meeting(index, line);
    constexpr size_t kBytes = 4 << 20;
    const Region out = makeRegion(*meeting.context, meeting.device, Memory::kVmm, kBytes);
    const Region in = makeRegion(*meeting.context, meeting.device, Memory::kVmm, kBytes);
    const auto other = static_cast<Rank>(1 - index);
    std::vector<Peer> peers(2);
    peers[other] = meeting.peer;
    const auto ranks = must(Communicator::create(*meeting.context, peers, static_cast<Rank>(index)),
                            "communicator");
    MessageOptions on;
    on.deviceStream = meeting.deviceStream();
    for (const size_t bytes : {size_t{8}, size_t{2048}, size_t{70000}, size_t{1} << 20}) {
      constexpr int kWarm = 40, kCounted = 20;
      for (int i = 0; i < kWarm + kCounted; ++i) {
        unsigned cost[2] = {};
        Transfer posted[2];
        // One side sends first, the other receives.
        for (const int sends : {1 - index, index}) {
          allocations = 0;
          counting = true;
          auto message = sends == 1 ? ranks->send(other, out, 0, bytes, on)
                                    : ranks->recv(other, in, 0, bytes, on);
          counting = false;
          cost[sends] = allocations;
          posted[sends] = must(std::move(message), "post");
        }
        if (i >= kWarm) {
          for (const unsigned each : cost)
            EXPECT_LE(each, kAllocationsPerPost) << bytes << " bytes";
        }
        for (const Transfer& each : posted) must(each.wait(kPatience), "wait");
      }
    }
    line.meet();
  };
  EXPECT_TRUE(runTwo([&](const Line& line) { side(0, line); },
                     [&](const Line& line) { side(1, line); }, 60));
}

}  // namespace
}  // namespace peerlane::gputest
