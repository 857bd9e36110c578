// SPDX-License-Identifier: Apache-2.0
//
// A caller that has its HCCL types from elsewhere, as it has them where the original's own headers
// are installed: they come first, and p2p.h adds none of them.
#include <cstdint>

// NOLINTBEGIN(readability-identifier-naming)
typedef void* aclrtStream;
typedef enum {
  HCCL_SUCCESS = 0,
  HCCL_E_PTR = 2,
  HCCL_E_NOT_FOUND = 6,
  HCCL_E_REMOTE = 21,
  HCCL_E_RESERVED = 255
} HcclResult;
typedef enum {
  HCCL_DATA_TYPE_INT8 = 0,
  HCCL_DATA_TYPE_FP32 = 4,
  HCCL_DATA_TYPE_RESERVED = 255
} HcclDataType;
const uint32_t HCCL_ROOT_INFO_BYTES = 4108;  // a constant there, not a macro
typedef struct HcclRootInfoDef {
  char internal[HCCL_ROOT_INFO_BYTES];
} HcclRootInfo;
// NOLINTEND(readability-identifier-naming)

#define P2P_NO_HCCL_TYPES
#include <thread>

#include "tests/p2p/c/original_scene.h"

namespace {

using namespace original;

constexpr size_t kFloats = 100000;

void transfer(const HcclRootInfo& rootInfo, P2pKind kind, Barrier& barrier) {
  aclrtStream stream = createStream();
  Blocks block(1, kFloats * sizeof(float));
  std::function<int()> heartbeat;
  P2PCommInitOptions options(true, &heartbeat);
  P2PComm p2pComm;
  NPU_ERROR(P2PCommInitRootInfo(&rootInfo, kind, P2P_LINK_AUTO, &p2pComm, &options));
  if (kind == P2P_SENDER) {
    block.fillWithRamps();
    NPU_ERROR(P2PSend(block[0], kFloats, HCCL_DATA_TYPE_FP32, p2pComm, stream));
  } else {
    NPU_ERROR(P2PRecv(block[0], kFloats, HCCL_DATA_TYPE_FP32, p2pComm, stream));
  }
  synchronize(stream);
  block.verify(1, kFloats, 0, 0);
  HcclResult error = HCCL_E_RESERVED;
  NPU_ERROR(P2PGetCommAsyncError(p2pComm, &error));
  MUST(error == HCCL_SUCCESS);
  MUST(heartbeat() >= 0);
  barrier.wait();  // who is first to destroy it is lost to the other
  NPU_ERROR(P2PCommDestroy(p2pComm));
  MUST(heartbeat() == -1);
  MUST(P2PCommDestroy(p2pComm) == HCCL_E_NOT_FOUND);
  MUST(P2PCommDestroy(nullptr) == HCCL_E_PTR);
}

}  // namespace

int main(int, char**) {
  alarm(kAlarmSeconds);
  Barrier barrier(2);
  HcclRootInfo rootInfo;
  NPU_ERROR(P2PGetRootInfo(&rootInfo));
  std::thread sender([&] { transfer(rootInfo, P2P_SENDER, barrier); });
  transfer(rootInfo, P2P_RECEIVER, barrier);
  sender.join();
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}
