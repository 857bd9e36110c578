// SPDX-License-Identifier: Apache-2.0
//
// The network between software HCAs: one file that all processes with the same folder map. It knows
// which devices there are, which contexts are open (endpoints), whose each queue pair is, and holds
// the rings that packets travel in: a lane for each pair of endpoints that talk. Requests and
// answers have rings of their own, so that answers are always taken and nothing waits in a circle.
// Not a switch: nothing is routed but by the owner of a queue pair. Any thread may call; a lane is
// written by one engine and read by one.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_hca/hca_ring.h"

namespace peerlane::softhca {

inline constexpr int kMostDevices = 32;
inline constexpr int kMostEndpoints = 128;
inline constexpr int kMostLanes = 1024;
inline constexpr uint32_t kMostQueuePairs = 1 << 16;

// Of a device, what all processes that open it share.
struct DeviceRecord {
  char name[64];
  std::atomic<uint32_t> portState;    // ibv_port_state
  std::atomic<uint32_t> portChanges;  // counts, so that each context sees that there was one
  std::atomic<uint32_t> gidChanges;
  std::atomic<uint32_t> pkeyChanges;
};

struct Endpoint {
  std::atomic<uint32_t> isUsed;
  std::atomic<uint32_t> generation;  // odd or even, it differs from whoever was here before
  std::atomic<int32_t> device;
  std::atomic<int32_t> pid;      // for people
  std::atomic<uint32_t> signal;  // its engine sleeps on it
  std::atomic<uint32_t> sleep;   // Sleep
  std::atomic<uint64_t> incoming[kMostLanes / 64];
};

// How an engine sleeps: posts need not wake one that is held by a test.
enum Sleep : uint32_t { kAwake, kAsleep, kHeld };

struct Lane {
  enum Ends : uint32_t { kWriter = 1, kReader = 2 };
  std::atomic<uint32_t> ends;  // which of its ends are there; 0: free
  int32_t from, to;
  uint32_t toGeneration;
};

class Fabric {
 public:
  // The one in this folder, which is made where there is none. Null with errno: it cannot be.
  static Fabric* in(const std::string& folder);

  // -1: no room.
  int findOrAddDevice(const std::string& name);
  DeviceRecord& device(int index);

  // -1: no room.
  int addEndpoint(int device);
  void removeEndpoint(int endpoint);
  Endpoint& endpoint(int index);
  // Its process lives and has not closed it.
  bool isAlive(int endpoint);
  // After this an engine sees what was published before. `isPost`: its own process has posted.
  // True: it slept.
  bool wake(int endpoint, bool isPost = false);

  // 0: no room.
  uint32_t addQueuePair(int endpoint);
  void removeQueuePair(uint32_t number);
  // -1: there is none with this number.
  int endpointOf(uint32_t number) const;

  // Of an endpoint to another; null: no room.
  Lane* openLane(int from, int to);
  void leaveLane(Lane* lane, Lane::Ends end);
  Lane& lane(int index);
  PacketRing& requests(const Lane& lane);
  PacketRing& answers(const Lane& lane);

 private:
  struct File;
  explicit Fabric(File* file, int fd) : file_(file), fd_(fd) {}
  class Locked;
  void forgetEndpoint(int index);
  void sweepDead();

  File* const file_;
  const int fd_;
  Mutex mutex_;  // of this process; of all processes it is a lock on the file
  std::array<std::atomic<bool>, kMostEndpoints> isOurs_{};
};

// The kernel's wait for a word, also between processes. `nanoseconds` 0: without an end.
void waitOnWord(std::atomic<uint32_t>& word, uint32_t seen, uint64_t nanoseconds);

}  // namespace peerlane::softhca
