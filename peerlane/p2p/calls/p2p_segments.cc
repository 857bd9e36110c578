// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the calls that register memory, import that of other processes, and allocate host memory.
#include <chrono>
#include <optional>
#include <string>

#include "peerlane/os/cuda.h"
#include "peerlane/os/topology.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

using std::chrono::milliseconds;

static_assert(sizeof(P2pSegmentInfo) == SegmentName::kEncodedBytes);

Result<Access> accessOf(P2pSegmentPermissions permissions) {
  switch (permissions) {
    case P2P_SEGMENT_READ_WRITE: return Access::kRemoteReadWrite;
    case P2P_SEGMENT_READ_ONLY: return Access::kRemoteRead;
    case P2P_SEGMENT_WRITE_ONLY: return Access::kRemoteWrite;
  }
  return Status(Code::kInvalidArgument,
                "permissions is " + std::to_string(static_cast<int>(permissions)) +
                    "; accepted: P2P_SEGMENT_READ_WRITE (0), READ_ONLY (1), WRITE_ONLY (2)");
}

Answer registerMemory(void* memory, uint64_t size, P2pSegmentInfo* info,
                      P2pSegmentPermissions permissions, OptionalGpu gpu) {
  P2pProcess& process = P2pProcess::instance();
  PEERLANE_ASSIGN(const Access access, accessOf(permissions));
  PEERLANE_ASSIGN(const auto context, process.contexts().any(gpu));
  PEERLANE_ASSIGN(const SegmentName name,
                  process.segments().add(context, static_cast<std::byte*>(memory), size, access,
                                         gpu ? DeviceKind::kCuda : DeviceKind::kHost));
  name.encode(info->internal);
  return Status::ok();
}

// The NUMA node that the current GPU is attached to.
Result<std::optional<int>> nodeOfGpu() {
  const auto gpu = cuda::currentGpu();
  if (!gpu)
    return Status(Code::kInvalidArgument,
                  "numaNode is P2P_NUMA_OF_DEVICE, and this thread uses no GPU");
  PEERLANE_ASSIGN(const auto gpus, cuda::gpus());
  PEERLANE_ASSIGN(const TopologyReport topology, loadTopology());
  for (const TopologyDevice& device : topology.devices)
    if (device.busId == gpus[static_cast<size_t>(*gpu)].busId && device.numaNode >= 0)
      return std::optional(device.numaNode);
  return std::optional<int>();  // a machine that does not say it has one node
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PRegisterHostMem(void* hostBuf, uint64_t size, P2pSegmentInfo* segmentInfo,
                              P2pSegmentPermissions permissions) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    return registerMemory(hostBuf, size, segmentInfo, permissions, std::nullopt);
  });
}

HcclResult P2PRegisterDeviceMem(void* devBuf, uint64_t size, P2pSegmentInfo* segmentInfo,
                                P2pSegmentPermissions permissions) {
  return answer([&]() -> Answer {
    if (devBuf == nullptr) return nullPointer("devBuf");
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    const auto gpu = cuda::gpuOf(devBuf);
    if (!gpu) PEERLANE_RETURN_IF_ERROR(cuda::available());
    if (!gpu)
      return Status(Code::kInvalidArgument,
                    "devBuf is not memory of a GPU; register it by P2PRegisterHostMem");
    return registerMemory(devBuf, size, segmentInfo, permissions, gpu);
  });
}

HcclResult P2PUnregisterMem(const P2pSegmentInfo* segmentInfo, uint32_t timeoutMs) {
  return answer([&]() -> Answer {
    if (segmentInfo == nullptr) return nullPointer("segmentInfo");
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo->internal));
    const auto gone = P2pProcess::instance().segments().remove(name, milliseconds(timeoutMs));
    if (!gone) return notFound("the segment is not registered by this process (any more)");
    return afterWaiting(*gone, milliseconds(timeoutMs),
                        "other processes did not let go of " + rangeText(name.address, name.bytes));
  });
}

HcclResult P2PImportHostSegment(P2pSegmentInfo segmentInfo) {
  return answer([&]() -> Answer {
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo.internal));
    return P2pProcess::instance().importSegment(name);
  });
}

HcclResult P2PUnimportSegment(P2pSegmentInfo segmentInfo) {
  return answer([&]() -> Answer {
    PEERLANE_ASSIGN(const SegmentName name, SegmentName::decode(segmentInfo.internal));
    if (P2pProcess::instance().unimportSegment(name)) return Status::ok();
    return notFound("the segment was not imported by this process");
  });
}

HcclResult P2PAllocHostMem(void** hostBuf, uint64_t size, int numaNode) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (numaNode < P2P_NUMA_OF_DEVICE)
      return Status(Code::kInvalidArgument,
                    "numaNode is " + std::to_string(numaNode) +
                        "; accepted: the number of a node, P2P_NUMA_ANY (-1), "
                        "P2P_NUMA_OF_DEVICE (-2)");
    std::optional<int> node;
    if (numaNode >= 0) node = numaNode;
    if (numaNode == P2P_NUMA_OF_DEVICE) {
      PEERLANE_ASSIGN(node, nodeOfGpu());
    }
    PEERLANE_ASSIGN(*hostBuf, P2pProcess::instance().allocations().allocate(size, node));
    return Status::ok();
  });
}

HcclResult P2PFreeHostMem(void* hostBuf) {
  return answer([&]() -> Answer {
    if (hostBuf == nullptr) return nullPointer("hostBuf");
    if (auto freed = P2pProcess::instance().allocations().free(hostBuf)) return *freed;
    return notFound("the memory is not of P2PAllocHostMem, or was freed before");
  });
}
