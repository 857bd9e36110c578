// SPDX-License-Identifier: Apache-2.0
//
// Two communicators that are each other's other side, in one process, through the C API alone.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/p2p.h"
#include "tests/core/soon.h"

namespace peerlane::p2p_test {

inline constexpr uint32_t kSoonMs = 20000;

// Fails with the library's sentence.
#define P2P_OK(call) ASSERT_EQ((call), HCCL_SUCCESS) << #call ": " << P2PGetLastError()

struct Side {
  P2pKind kind = P2P_BIDIRECTIONAL;
  P2pLink link = P2P_LINK_AUTO;
  P2PCommInitOptions options{};
};

// How both calls of P2PCommInitRootInfo ended.
struct Met {
  HcclResult root = HCCL_E_RESERVED, client = HCCL_E_RESERVED;
  P2PComm rootComm = nullptr, clientComm = nullptr;
  std::string rootError, clientError;
};

inline Met meet(Side root = {}, Side client = {}) {
  Met met;
  HcclRootInfo info;
  if (P2PGetRootInfo(&info) != HCCL_SUCCESS) {
    met.rootError = P2PGetLastError();
    return met;
  }
  for (Side* side : {&root, &client})
    if (side->options.timeoutMs == 0) side->options.timeoutMs = kSoonMs;
  auto other = std::async(std::launch::async, [&] {
    met.client =
        P2PCommInitRootInfo(&info, client.kind, client.link, &met.clientComm, &client.options);
    met.clientError = P2PGetLastError();
  });
  met.root = P2PCommInitRootInfo(&info, root.kind, root.link, &met.rootComm, &root.options);
  met.rootError = P2PGetLastError();
  other.get();
  return met;
}

// Both ends of one communicator, destroyed at the end.
class Pair {
 public:
  explicit Pair(const Side& root = {}, const Side& client = {}) : met_(meet(root, client)) {
    EXPECT_EQ(met_.root, HCCL_SUCCESS) << met_.rootError;
    EXPECT_EQ(met_.client, HCCL_SUCCESS) << met_.clientError;
  }
  ~Pair() {
    if (met_.rootComm != nullptr) (void)P2PCommDestroy(met_.rootComm);
    if (met_.clientComm != nullptr) (void)P2PCommDestroy(met_.clientComm);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  P2PComm root() const { return met_.rootComm; }
  P2PComm client() const { return met_.clientComm; }
  P2PComm releaseRoot() { return std::exchange(met_.rootComm, nullptr); }

 private:
  Met met_;
};

inline Side sender() {
  return {.kind = P2P_SENDER};
}
inline Side receiver() {
  return {.kind = P2P_RECEIVER};
}

inline std::vector<uint8_t> pattern(size_t bytes, uint8_t seed) {
  std::vector<uint8_t> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<uint8_t>(i * 31 + i / 251 + seed);
  return made;
}

}  // namespace peerlane::p2p_test
