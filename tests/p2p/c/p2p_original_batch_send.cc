// SPDX-License-Identifier: Apache-2.0
//
// The sender of two programs: listens, then sends 64 messages in a row, of growing size.
// Argument: the number of a file that listens. Without one it starts the receiver itself.
#include "tests/p2p/c/original_two_hosts.h"

namespace {

using namespace original;

void send(int connection) {
  aclrtStream stream = createStream();
  Blocks blocks(kBatch, kLargest);
  blocks.fillWithRamps();
  const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(connection);
  meetOver(connection);
  P2PComm p2pComm;
  MEASURE_TIME(NPU_ERROR(P2PCommInitRootInfo(&rootInfo, P2P_SENDER, P2P_LINK_ROCE, &p2pComm)),
               "Sender P2PCommInitRootInfo");
  for (uint32_t i = 0; i < kBatch; ++i)
    NPU_ERROR(P2PSend(blocks[i], kLargest / sizeof(float), HCCL_DATA_TYPE_FP32, p2pComm, stream));
  synchronize(stream);
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    meetOver(connection);
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
  close(connection);
}

}  // namespace

int main(int count, char** arguments) {
  alarm(kAlarmSeconds);
  if (count > 1) {
    send(acceptOne(std::atoi(arguments[1])));
    return 0;
  }
  const Listener listener = listenHere();
  const pid_t receiver = startProgram("original_batch_recv", listener.port);
  send(acceptOne(listener.socket));
  return endOf(receiver);
}
