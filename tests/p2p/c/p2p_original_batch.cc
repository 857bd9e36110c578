// SPDX-License-Identifier: Apache-2.0
//
// Two processes, batches of many blocks over the network, after a message for each; with the end of
// the communicators.
#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr P2pLink kLink = P2P_LINK_ROCE;
constexpr uint32_t kBatch = 500;
constexpr size_t kSmallest = 8 * 1024, kLargest = 32 * 1024;
constexpr int kSamples = 3;

void send(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_RDONLY);
  aclrtStream stream = createStream();
  Blocks blocks(kBatch, kLargest);
  blocks.fillWithRamps();
  const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(file);
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_SENDER, kLink, &p2pComm)),
               "Sender P2PCommInitRootInfo");
  for (uint32_t i = 0; i < kBatch; ++i)
    NPU_ERROR(P2PSend(blocks[i], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
  synchronize(stream);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    std::vector<uint64_t> sizes(kBatch, bytes / sizeof(float));
    Series time;
    barrier.wait();
    for (int sample = 0; sample < kSamples; ++sample)
      time.add(secondsOf([&] {
        NPU_ERROR(P2PSendBatch(blocks.pointers(), sizes.data(), HCCL_DATA_TYPE_FP32, kBatch,
                               p2pComm, stream));
        synchronize(stream);
      }));
    time.print("Sender", bytes, kBatch);
  }
  NPU_ERROR(P2PCommDestroy(p2pComm));
  close(file);
}

void receive(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_WRONLY);
  aclrtStream stream = createStream();
  Blocks blocks(kBatch, kLargest);
  HcclRootInfo rootInfo;
  MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Receiver P2PGetRootInfo");
  writeTo(file, rootInfo);
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_RECEIVER, kLink, &p2pComm)),
               "Receiver P2PCommInitRootInfo");
  for (uint32_t i = 0; i < kBatch; ++i)
    NPU_ERROR(P2PRecv(blocks[i], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
  synchronize(stream);
  blocks.verify(kBatch, kLargest / sizeof(float), 0, 0);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    std::vector<uint64_t> sizes(kBatch, bytes / sizeof(float));
    Series time;
    barrier.wait();
    for (int sample = 0; sample < kSamples; ++sample) {
      blocks.clear();
      time.add(secondsOf([&] {
        NPU_ERROR(P2PRecvBatch(blocks.pointers(), sizes.data(), HCCL_DATA_TYPE_FP32, kBatch,
                               p2pComm, stream));
        synchronize(stream);
      }));
      blocks.verify(kBatch, bytes / sizeof(float), 0, 0);
    }
    time.print("Receiver", bytes, kBatch);
  }
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
