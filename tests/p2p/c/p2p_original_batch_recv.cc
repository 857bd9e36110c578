// SPDX-License-Identifier: Apache-2.0
//
// The receiver of two programs: connects to the sender, makes the root, and receives 64 messages in
// a row, of growing size. Argument: the port. Without one it starts the sender itself.
#include "tests/p2p/c/original_two_hosts.h"

namespace {

using namespace original;

void receive(int connection) {
  aclrtStream stream = createStream();
  Blocks blocks(kBatch, kLargest);
  HcclRootInfo rootInfo;
  MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Receiver P2PGetRootInfo");
  writeTo(connection, rootInfo);
  meetOver(connection);
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_RECEIVER, P2P_LINK_ROCE, &p2pComm)),
               "Receiver P2PCommInitRootInfo");
  for (uint32_t i = 0; i < kBatch; ++i)
    NPU_ERROR(P2PRecv(blocks[i], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
  synchronize(stream);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    blocks.clear();
    meetOver(connection);
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
  close(connection);
}

}  // namespace

int main(int count, char** arguments) {
  alarm(kAlarmSeconds);
  if (count > 1) {
    receive(connectTo(static_cast<uint16_t>(std::atoi(arguments[1]))));
    return 0;
  }
  const Listener listener = listenHere();
  const pid_t sender = startProgram("original_batch_send", listener.socket);
  close(listener.socket);
  receive(connectTo(listener.port));
  return endOf(sender);
}
