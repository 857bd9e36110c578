// SPDX-License-Identifier: Apache-2.0
//
// P2pSpeaker: one of two processes, or threads, that are each other's other side through the C API,
// each with a GPU in use.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

inline constexpr uint32_t kPatienceMs = 20000;

// Ends the process, with the library's sentence.
inline void mustP2p(HcclResult result, const char* what) {
  if (result == HCCL_SUCCESS) return;
  die(what, Status(Code::kInternal, "result " + std::to_string(result) + ": " + P2PGetLastError()));
}

// A blob over the line.
template <typename T>
void sendBlob(const Line& line, const T& blob) {
  line.send(std::string(reinterpret_cast<const char*>(&blob), sizeof(blob)));
}
template <typename T>
T receiveBlob(const Line& line) {
  const std::string text = line.receive();
  T blob;
  if (text.size() != sizeof(blob)) die("a blob", Status(Code::kCorrupt, "of another size"));
  std::memcpy(&blob, text.data(), sizeof(blob));
  return blob;
}

struct P2pSpeaker {
  // Uses GPU `gpuIndex`, or none if it is negative. Side 0 makes the root.
  P2pSpeaker(int side, const Line& to, int gpuIndex, P2pKind kind = P2P_BIDIRECTIONAL,
             P2pLink link = P2P_LINK_AUTO)
      : index(side), line(to) {
    if (gpuIndex >= 0) {
      mustCuda(cudaSetDevice(gpuIndex), "set device");
      mustCuda(cudaFree(nullptr), "use it");
      stream = makeStream();
    }
    P2PCommInitOptions options;
    options.timeoutMs = kPatienceMs;
    HcclRootInfo root;
    if (side == 0) {
      mustP2p(P2PGetRootInfo(&root), "root");
      sendBlob(line, root);
    } else {
      root = receiveBlob<HcclRootInfo>(line);
    }
    mustP2p(P2PCommInitRootInfo(&root, kind, link, &comm, &options), "init");
  }
  ~P2pSpeaker() { (void)P2PCommDestroy(comm); }
  P2pSpeaker(const P2pSpeaker&) = delete;
  P2pSpeaker& operator=(const P2pSpeaker&) = delete;

  // Everything on the stream is done, and well.
  void sync() const {
    mustSync(stream);
    mustP2p(P2PCommSynchronize(comm, kPatienceMs), "synchronize");
  }
  std::string route() const {
    char text[8192];
    mustP2p(P2PGetCommRoute(comm, text, sizeof text), "route");
    return text;
  }

  const int index;
  const Line& line;
  cudaStream_t stream = nullptr;
  P2PComm comm = nullptr;
};

inline std::byte* deviceMemory(size_t bytes) {
  void* memory = nullptr;
  mustCuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

// Registered there, imported here, both ways at once: what is at the other side.
struct FarSegment {
  P2pSegmentInfo info;
  std::byte* base;
};
inline FarSegment exchangeSegments(const Line& line, const P2pSegmentInfo& own, std::byte* base) {
  sendBlob(line, own);
  sendBlob(line, base);
  FarSegment far{};
  far.info = receiveBlob<P2pSegmentInfo>(line);
  far.base = receiveBlob<std::byte*>(line);
  mustP2p(P2PImportHostSegment(far.info), "import");
  return far;
}

}  // namespace peerlane::gputest
