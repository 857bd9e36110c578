// SPDX-License-Identifier: Apache-2.0
//
// What programs that scatter host memory of another side in batches have in common: an owner whose
// memory holds objects of 31 blocks each, and a reader that takes 1, 5 or 20 of them at once.
#pragma once

#include "tests/p2p/c/original_scene.h"

namespace original {

constexpr uint32_t kBlocksPerObject = 31, kObjects = 20;
constexpr size_t kBlockBytes = 73 * 64, kBlockFloats = kBlockBytes / sizeof(float);
constexpr size_t kObjectFloats = kBlocksPerObject * kBlockFloats;

struct Scatter {
  P2pLink link;
  int samples;
  bool saysDone;      // P2PScatterBatchFromRemoteHostMemDone, once the stream is done
  bool hasHeartbeat;  // and no buffers for messages: options of later callers
};

inline P2PComm connectAs(const HcclRootInfo& rootInfo, P2pKind kind, const Scatter& scatter,
                         std::function<int()>& heartbeat) {
  P2PComm p2pComm = nullptr;
  if (scatter.hasHeartbeat) {
    P2PCommInitOptions options(false, &heartbeat);
    NPU_ERROR(P2PCommInitRootInfo(&rootInfo, kind, scatter.link, &p2pComm, &options));
    MUST(heartbeat != nullptr && heartbeat() >= 0);
  } else {
    NPU_ERROR(P2PCommInitRootInfo(&rootInfo, kind, scatter.link, &p2pComm));
  }
  return p2pComm;
}

inline void ownObjects(const std::string& fifo, Barrier& barrier, const Scatter& scatter) {
  const int file = open(fifo.c_str(), O_WRONLY);
  std::vector<float> hostBuff(kObjects * kObjectFloats);
  Blocks::ramp(hostBuff.data(), hostBuff.size(), 0);
  const uint64_t bytes = hostBuff.size() * sizeof(float);
  HcclRootInfo rootInfo;
  MEASURE_TIME(NPU_ERROR(P2PGetRootInfo(&rootInfo)), "Sender P2PGetRootInfo");
  writeTo(file, rootInfo);
  P2pSegmentInfo segmentInfo;
  NPU_ERROR(P2PRegisterHostMem(hostBuff.data(), bytes, &segmentInfo, P2P_SEGMENT_READ_ONLY));
  writeTo(file, segmentInfo);
  writeTo(file, hostBuff.data());
  barrier.wait();
  std::function<int()> heartbeat;
  P2PComm p2pComm = nullptr;
  MEASURE_TIME(p2pComm = connectAs(rootInfo, P2P_SENDER, scatter, heartbeat),
               "Sender P2PCommInitRootInfo");
  barrier.wait();  // all has been read
  NPU_ERROR(P2PCommDestroy(p2pComm));
  MUST(!heartbeat || heartbeat() == -1);
  // Callers of the original just go on. Whose memory is freed has to take it back.
  NPU_ERROR(P2PUnregisterMem(&segmentInfo, kPatienceMs));
  close(file);
}

inline void readObjects(const std::string& fifo, Barrier& barrier, const Scatter& scatter) {
  const int file = open(fifo.c_str(), O_RDONLY);
  aclrtStream stream = createStream();
  std::vector<Blocks> objects;
  for (uint32_t k = 0; k < kObjects; ++k) objects.emplace_back(kBlocksPerObject, kBlockBytes);
  const HcclRootInfo rootInfo = readFrom<HcclRootInfo>(file);
  const P2pSegmentInfo segmentInfo = readFrom<P2pSegmentInfo>(file);
  float* const remoteHostBuff = readFrom<float*>(file);
  NPU_ERROR(P2PImportHostSegment(segmentInfo));
  barrier.wait();
  std::function<int()> heartbeat;
  P2PComm p2pComm = nullptr;
  MEASURE_TIME(p2pComm = connectAs(rootInfo, P2P_RECEIVER, scatter, heartbeat),
               "Receiver P2PCommInitRootInfo");
  for (const uint32_t count : {1u, 5u, kObjects}) {
    Series time;
    for (int sample = 0; sample < scatter.samples; ++sample) {
      std::vector<uint64_t> counts(kBlocksPerObject, kBlockFloats);
      std::vector<P2pScatterEntry> entries(count);
      for (uint32_t k = 0; k < count; ++k) {
        objects[k].clear();
        entries[k].ddrBuf = remoteHostBuff + k * kObjectFloats;
        entries[k].dstBufs = objects[k].pointers();
        entries[k].counts = counts.data();
        entries[k].dataType = HCCL_DATA_TYPE_FP32;
        entries[k].numEl = kBlocksPerObject;
      }
      time.add(secondsOf([&] {
        NPU_ERROR(P2PScatterBatchFromRemoteHostMem(entries.data(), count, p2pComm, stream));
        synchronize(stream);
      }));
      if (scatter.saysDone) NPU_ERROR(P2PScatterBatchFromRemoteHostMemDone(p2pComm));
      for (uint32_t k = 0; k < count; ++k)
        objects[k].verify(kBlocksPerObject, kBlockFloats, k * kObjectFloats, kBlockFloats);
    }
    time.print("Receiver", kBlockBytes, static_cast<size_t>(count) * kBlocksPerObject);
  }
  barrier.wait();
  NPU_ERROR(P2PCommDestroy(p2pComm));
  close(file);
}

}  // namespace original
