// SPDX-License-Identifier: Apache-2.0
//
// How long it takes to set up: five communicators, one after the other, each used once and kept;
// the device warmed up before.
#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr P2pLink kLink = P2P_LINK_ROCE;
constexpr size_t kBytes = 2 * 1024 * 1024;
constexpr int kRounds = 5;

void send(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_RDONLY);
  aclrtStream stream = createStream();
  Blocks block(1, kBytes);
  block.fillWithRamps();
  for (int round = 0; round < kRounds; ++round) {
    const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(file);
    NPU_ERROR(PrewarmHccp());
    barrier.wait();
    P2PComm p2pComm;
    MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_SENDER, kLink, &p2pComm)),
                 "Sender P2PCommInitRootInfo");
    NPU_ERROR(P2PSend(block[0], kBytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
    synchronize(stream);
  }
  close(file);
}

void receive(const char* fifo, Barrier& barrier) {
  const int file = open(fifo, O_WRONLY);
  aclrtStream stream = createStream();
  Blocks block(1, kBytes);
  // A root belongs to the GPU that is in use when it is made.
  NPU_ERROR(PrewarmHccp());
  for (int round = 0; round < kRounds; ++round) {
    HcclRootInfo rootInfo;
    MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Receiver P2PGetRootInfo");
    writeTo(file, rootInfo);
    barrier.wait();
    P2PComm p2pComm;
    MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_RECEIVER, kLink, &p2pComm)),
                 "Receiver P2PCommInitRootInfo");
    block.clear();
    NPU_ERROR(P2PRecv(block[0], kBytes / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
    synchronize(stream);
    block.verify(1, kBytes / sizeof(float), 0, 0);
  }
  NPU_ERROR(UnwarmHccp());
  close(file);
}

}  // namespace

int main(int, char**) {
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  return runTwoProcesses([&] { send(fifo.path(), barrier); },
                         [&] { receive(fifo.path(), barrier); });
}
