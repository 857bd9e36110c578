// SPDX-License-Identifier: Apache-2.0
//
// Two threads of one process, 32 messages in a row over memory that is mapped: what p2p-transfer
// itself cannot do.
#include <thread>

#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr P2pLink kLink = P2P_LINK_HCCS;
constexpr uint32_t kBatch = 32;
constexpr size_t kSmallest = 256 * 1024, kLargest = 1024 * 1024;
constexpr int kSamples = 2;

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
    barrier.wait();
    Series time;
    for (int sample = 0; sample < kSamples; ++sample)
      time.add(secondsOf([&] {
        for (uint32_t i = 0; i < kBatch; ++i)
          NPU_ERROR(
              P2PSend(blocks[i], bytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
        synchronize(stream);
      }));
    time.print("Sender", bytes, kBatch);
  }
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
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    blocks.clear();
    barrier.wait();
    Series time;
    for (int sample = 0; sample < kSamples; ++sample)
      time.add(secondsOf([&] {
        for (uint32_t i = 0; i < kBatch; ++i)
          NPU_ERROR(
              P2PRecv(blocks[i], bytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
        synchronize(stream);
      }));
    blocks.verify(kBatch, bytes / sizeof(float), 0, 0);
    time.print("Receiver", bytes, kBatch);
  }
  close(file);
}

}  // namespace

int main(int, char**) {
  alarm(kAlarmSeconds);
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  std::thread sender([&] { send(fifo.path(), barrier); });
  std::thread receiver([&] { receive(fifo.path(), barrier); });
  sender.join();
  receiver.join();
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}
