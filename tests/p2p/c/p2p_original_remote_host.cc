// SPDX-License-Identifier: Apache-2.0
//
// Host memory of one process that another reads: blocks one by one, then all of them scattered from
// one range, in a sweep of sizes.
#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr P2pLink kLink = P2P_LINK_ROCE;
constexpr uint32_t kBatch = 32;
constexpr size_t kSmallest = 13 * 1024, kLargest = 208 * 1024;
constexpr size_t kFloats = kBatch * kLargest / sizeof(float);
constexpr int kSamples = 3;

void send(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_WRONLY);
  // Private pages, as the caller got them: neither shared nor locked.
  float* const hostBuff =
      static_cast<float*>(mmap(nullptr, kFloats * sizeof(float), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  MUST(hostBuff != MAP_FAILED);
  Blocks::ramp(hostBuff, kFloats, 0);
  HcclRootInfo rootInfo;
  MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Sender P2PGetRootInfo");
  writeTo(file, rootInfo);
  P2pSegmentInfo segmentInfo;
  NPU_ERROR(
      P2PRegisterHostMem(hostBuff, kFloats * sizeof(float), &segmentInfo, P2P_SEGMENT_READ_ONLY));
  writeTo(file, segmentInfo);
  writeTo(file, hostBuff);
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_SENDER, kLink, &p2pComm)),
               "Sender P2PCommInitRootInfo");
  barrier.wait();  // all has been read
  NPU_ERROR(P2PCommDestroy(p2pComm));
  close(file);
}

void receive(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_RDONLY);
  aclrtStream stream = createStream();
  Blocks blocks(kBatch, kLargest);
  const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(file);
  const P2pSegmentInfo segmentInfo = readFrom<P2pSegmentInfo>(file);
  float* const remoteHostBuff = readFrom<float*>(file);
  NPU_ERROR(P2PImportHostSegment(segmentInfo));  // there is no communicator yet
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_RECEIVER, kLink, &p2pComm)),
               "Receiver P2PCommInitRootInfo");
  constexpr size_t kEach = kLargest / sizeof(float);
  for (uint32_t i = 0; i < kBatch; ++i)
    NPU_ERROR(P2PGetRemoteHostMem(&remoteHostBuff[i * kEach], blocks[i], kEach, HCCL_DATA_TYPE_FP32,
                                  p2pComm, stream));
  synchronize(stream);
  blocks.verify(kBatch, kEach, 0, kEach);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    const size_t each = bytes / sizeof(float);
    std::vector<uint64_t> sizes(kBatch, each);
    Series time;
    for (int sample = 0; sample < kSamples; ++sample) {
      blocks.clear();
      time.add(secondsOf([&] {
        NPU_ERROR(P2PScatterFromRemoteHostMem(remoteHostBuff, blocks.pointers(), sizes.data(),
                                              HCCL_DATA_TYPE_FP32, kBatch, p2pComm, stream));
        synchronize(stream);
      }));
      blocks.verify(kBatch, each, 0, each);
    }
    time.print("Receiver", bytes, kBatch);
  }
  barrier.wait();
  NPU_ERROR(P2PCommDestroy(p2pComm));
  close(file);
}

}  // namespace

int main(int, char**) {
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  return runTwoProcesses([&] { send(fifo.path(), barrier); },
                         [&] { receive(fifo.path(), barrier); });
}
