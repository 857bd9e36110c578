// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_fabric.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <map>

namespace peerlane::softhca {

// A fresh file holds zeros, which is what all of this begins with.
struct Fabric::File {
  std::atomic<uint32_t> lastQueuePair;
  std::atomic<uint32_t> lastGeneration;
  DeviceRecord devices[kMostDevices];
  Endpoint endpoints[kMostEndpoints];
  std::atomic<uint64_t> queuePairs[kMostQueuePairs];  // number, endpoint + 1
  Lane lanes[kMostLanes];
  PacketRing rings[kMostLanes][2];  // far larger than all the rest, and mostly never touched
};

namespace {

// Bytes of the file that nobody reads: locks on them say who is there. The kernel drops the locks
// of a process that dies, however it dies.
constexpr off_t kLockAll = off_t{1} << 40;
constexpr off_t kLockEndpoint = kLockAll + 1;

constexpr uint32_t kPortActive = 4;  // as verbs have it

bool setLock(int fd, int command, short type, off_t at) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = 1;
  while (fcntl(fd, command, &lock) != 0)
    if (errno != EINTR) return false;
  return command != F_GETLK || lock.l_type != F_UNLCK;
}

}  // namespace

class PEERLANE_SCOPED_CAPABILITY Fabric::Locked {
 public:
  explicit Locked(Fabric& fabric) PEERLANE_ACQUIRE(fabric.mutex_) : fabric_(fabric) {
    fabric_.mutex_.lock();
    setLock(fabric_.fd_, F_SETLKW, F_WRLCK, kLockAll);
  }
  ~Locked() PEERLANE_RELEASE() {
    setLock(fabric_.fd_, F_SETLK, F_UNLCK, kLockAll);
    fabric_.mutex_.unlock();
  }
  Locked(const Locked&) = delete;

 private:
  Fabric& fabric_;
};

Fabric* Fabric::in(const std::string& folder) {
  // Leaked, and one per folder: whoever closes a second descriptor of a file loses the locks.
  static auto* const known = new std::map<std::string, Fabric*>;
  static auto* const knowing = new Mutex;
  const MutexLock lock(*knowing);
  Fabric*& fabric = (*known)[folder];
  if (fabric != nullptr) return fabric;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return nullptr;
  const std::string path = folder + "/fabric";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (ftruncate(fd, sizeof(File)) == 0)
    mapped = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int why = errno;
    close(fd);
    errno = why;
    return nullptr;
  }
  fabric = new Fabric(static_cast<File*>(mapped), fd);
  return fabric;
}

int Fabric::findOrAddDevice(const std::string& name) {
  const Locked lock(*this);
  for (int i = 0; i < kMostDevices; ++i) {
    DeviceRecord& device = file_->devices[i];
    if (name == device.name) return i;
    if (device.name[0] != '\0') continue;
    device.portState = kPortActive;
    strncpy(device.name, name.c_str(), sizeof device.name - 1);
    return i;
  }
  return -1;
}

DeviceRecord& Fabric::device(int index) {
  return file_->devices[index];
}
Endpoint& Fabric::endpoint(int index) {
  return file_->endpoints[index];
}
Lane& Fabric::lane(int index) {
  return file_->lanes[index];
}
PacketRing& Fabric::requests(const Lane& lane) {
  return file_->rings[&lane - file_->lanes][0];
}
PacketRing& Fabric::answers(const Lane& lane) {
  return file_->rings[&lane - file_->lanes][1];
}

int Fabric::addEndpoint(int device) {
  const Locked lock(*this);
  sweepDead();
  // A test that failed may have left the port down.
  if (!isOpen(device)) file_->devices[device].portState = kPortActive;
  for (int i = 0; i < kMostEndpoints; ++i) {
    Endpoint& endpoint = file_->endpoints[i];
    if (endpoint.isUsed != 0) continue;
    if (!setLock(fd_, F_SETLK, F_WRLCK, kLockEndpoint + i)) return -1;
    isOurs_[static_cast<size_t>(i)] = true;
    endpoint.generation = ++file_->lastGeneration;
    endpoint.device = device;
    endpoint.pid = getpid();
    endpoint.sleep = kAwake;
    for (auto& lanes : endpoint.incoming) lanes = 0;
    endpoint.isUsed = 1;
    return i;
  }
  return -1;
}

bool Fabric::isOpen(int device) const {
  for (const Endpoint& endpoint : file_->endpoints)
    if (endpoint.isUsed != 0 && endpoint.device == device) return true;
  return false;
}

void Fabric::forgetEndpoint(int index) {
  Endpoint& endpoint = file_->endpoints[index];
  endpoint.isUsed = 0;
  endpoint.generation = ++file_->lastGeneration;
  for (auto& slot : file_->queuePairs)
    if (static_cast<int>(slot & 0xffffffff) == index + 1) slot = 0;
  for (Lane& lane : file_->lanes) {
    if (lane.ends == 0) continue;
    if (lane.from == index) lane.ends &= ~uint32_t{Lane::kWriter};
    if (lane.to == index) lane.ends &= ~uint32_t{Lane::kReader};
  }
}

void Fabric::removeEndpoint(int endpoint) {
  const Locked lock(*this);
  forgetEndpoint(endpoint);
  isOurs_[static_cast<size_t>(endpoint)] = false;
  setLock(fd_, F_SETLK, F_UNLCK, kLockEndpoint + endpoint);
}

void Fabric::sweepDead() {
  for (int i = 0; i < kMostEndpoints; ++i)
    if (file_->endpoints[i].isUsed != 0 && !isAlive(i)) forgetEndpoint(i);
}

bool Fabric::isAlive(int endpoint) {
  if (file_->endpoints[endpoint].isUsed == 0) return false;
  return isOurs_[static_cast<size_t>(endpoint)] ||
         setLock(fd_, F_GETLK, F_WRLCK, kLockEndpoint + endpoint);
}

bool Fabric::wake(int endpoint, bool isPost) {
  Endpoint& to = file_->endpoints[endpoint];
  const uint32_t sleep = to.sleep.load(std::memory_order_seq_cst);
  if (sleep == kAwake || (isPost && sleep == kHeld)) return false;
  if (to.sleep.exchange(kAwake) == kAwake) return false;
  ++to.signal;
  syscall(SYS_futex, &to.signal, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return true;
}

uint32_t Fabric::addQueuePair(int endpoint) {
  constexpr uint32_t kFirst = 0x11;  // lower numbers are special on wires
  for (uint32_t tries = 0; tries < 2 * kMostQueuePairs; ++tries) {
    const uint32_t number = (kFirst + file_->lastQueuePair.fetch_add(1)) & 0xffffff;
    if (number < kFirst) continue;
    uint64_t nobody = 0;
    const uint64_t mine = uint64_t{number} << 32 | static_cast<uint32_t>(endpoint + 1);
    if (file_->queuePairs[number % kMostQueuePairs].compare_exchange_strong(nobody, mine))
      return number;
  }
  return 0;
}

void Fabric::removeQueuePair(uint32_t number) {
  file_->queuePairs[number % kMostQueuePairs] = 0;
}

int Fabric::endpointOf(uint32_t number) const {
  const uint64_t slot = file_->queuePairs[number % kMostQueuePairs];
  return slot >> 32 == number ? static_cast<int>(slot & 0xffffffff) - 1 : -1;
}

Lane* Fabric::openLane(int from, int to) {
  const Locked lock(*this);
  if (file_->endpoints[to].isUsed == 0) return nullptr;
  for (int i = 0; i < kMostLanes; ++i) {
    Lane& lane = file_->lanes[i];
    if (lane.ends != 0) continue;
    requests(lane).clear();
    answers(lane).clear();
    lane.from = from;
    lane.to = to;
    lane.toGeneration = file_->endpoints[to].generation;
    lane.ends = Lane::kWriter | Lane::kReader;
    file_->endpoints[to].incoming[i / 64] |= uint64_t{1} << (i % 64);
    return &lane;
  }
  return nullptr;
}

void Fabric::leaveLane(Lane* lane, Lane::Ends end) {
  const Locked lock(*this);
  const auto index = lane - file_->lanes;
  if (end == Lane::kReader)
    file_->endpoints[lane->to].incoming[index / 64] &= ~(uint64_t{1} << (index % 64));
  lane->ends &= ~uint32_t{end};
}

void waitOnWord(std::atomic<uint32_t>& word, uint32_t seen, uint64_t nanoseconds) {
  constexpr uint64_t kSecond = 1'000'000'000;
  const timespec limit{static_cast<time_t>(nanoseconds / kSecond),
                       static_cast<long>(nanoseconds % kSecond)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, nanoseconds == 0 ? nullptr : &limit, nullptr, 0);
}

}  // namespace peerlane::softhca
