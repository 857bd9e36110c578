// SPDX-License-Identifier: Apache-2.0
//
// Two processes, a sweep of sizes over the network, times of both sides; the communicators are left
// to the end of the processes.
#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr P2pLink kLink = P2P_LINK_ROCE;
constexpr size_t kSmallest = 128 * 1024, kLargest = 4 * 1024 * 1024;
constexpr int kSamples = 5;

void send(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_RDONLY);
  aclrtStream stream = createStream();
  Blocks block(1, kLargest);
  block.fillWithRamps();
  const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(file);
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_SENDER, kLink, &p2pComm)),
               "Sender P2PCommInitRootInfo");
  NPU_ERROR(P2PSend(block[0], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm,
                    stream));  // warm-up
  synchronize(stream);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    barrier.wait();
    for (int sample = 0; sample < kSamples; ++sample) {
      NPU_ERROR(P2PSend(block[0], bytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
      synchronize(stream);
    }
  }
  close(file);
}

void receive(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_WRONLY);
  aclrtStream stream = createStream();
  Blocks block(1, kLargest);
  HcclRootInfo rootInfo;
  MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Receiver P2PGetRootInfo");
  writeTo(file, rootInfo);
  barrier.wait();
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_RECEIVER, kLink, &p2pComm)),
               "Receiver P2PCommInitRootInfo");
  NPU_ERROR(P2PRecv(block[0], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
  synchronize(stream);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    block.clear();
    Series time;
    barrier.wait();
    for (int sample = 0; sample < kSamples; ++sample)
      time.add(secondsOf([&] {
        NPU_ERROR(P2PRecv(block[0], bytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
        synchronize(stream);
      }));
    block.verify(1, bytes / sizeof(float), 0, 0);
    time.print("Receiver", bytes, 1);
  }
  close(file);
}

}  // namespace

int main(int, char**) {
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  return runTwoProcesses([&] { send(fifo.path(), barrier); },
                         [&] { receive(fifo.path(), barrier); });
}
