// SPDX-License-Identifier: Apache-2.0
//
// What programs written for p2p-transfer bring along: a FIFO for the root, a barrier of processes
// or threads, a stream, memory of a "device", and measured times. The streams are host streams and
// the memory is the host's, so they run without a GPU. In C++11, as old callers may be.
#pragma once

#include <fcntl.h>
#include <p2p.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace original {

// Nothing of theirs waits for ever, and neither do we.
constexpr unsigned kAlarmSeconds = 100;
constexpr uint32_t kPatienceMs = 30000;

inline void die(const char* what, const std::string& why, int line) {
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, why.c_str());
  std::fflush(nullptr);
  _exit(1);
}

#define NPU_ERROR(call)                                                                  \
  do {                                                                                   \
    const HcclResult result = (call);                                                    \
    if (result != HCCL_SUCCESS)                                                          \
      original::die(#call, std::to_string(result) + ", " + P2PGetLastError(), __LINE__); \
  } while (false)
#define MUST(condition)                                                 \
  do {                                                                  \
    if (!(condition)) original::die(#condition, "is not so", __LINE__); \
  } while (false)
#define MEASURE_TIME(call, name)                                                                   \
  do {                                                                                             \
    const auto begin = std::chrono::steady_clock::now();                                           \
    call;                                                                                          \
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin; \
    std::printf("%s: %.3f ms\n", name, ms.count());                                                \
  } while (false)

// Removed at the end by whoever made it. In a folder of its own: tests run side by side.
class Fifo {
 public:
  explicit Fifo(const char* name) {
    char folder[] = "/tmp/p2p_original_XXXXXX";
    MUST(mkdtemp(folder) != nullptr);
    folder_ = folder;
    path_ = folder_ + "/" + name;
    MUST(mkfifo(path_.c_str(), 0600) == 0);
  }
  ~Fifo() {
    if (getpid() != owner_) return;
    (void)unlink(path_.c_str());
    (void)rmdir(folder_.c_str());
  }
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  const pid_t owner_ = getpid();
  std::string folder_, path_;
};

template <typename T>
void writeTo(int file, const T& value) {
  const char* at = reinterpret_cast<const char*>(&value);
  for (size_t left = sizeof(T); left > 0;) {
    const ssize_t written = write(file, at, left);
    MUST(written > 0);
    at += written;
    left -= static_cast<size_t>(written);
  }
}

template <typename T>
T readFrom(int file) {
  T value;
  char* at = reinterpret_cast<char*>(&value);
  for (size_t left = sizeof(T); left > 0;) {
    const ssize_t got = read(file, at, left);
    MUST(got > 0);
    at += got;
    left -= static_cast<size_t>(got);
  }
  return value;
}

// In memory that a child of fork() shares, so for threads and processes alike.
class Barrier {
 public:
  explicit Barrier(unsigned count) {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    shared_ = static_cast<Shared*>(memory);
    pthread_barrierattr_t attributes;
    MUST(pthread_barrierattr_init(&attributes) == 0);
    MUST(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_barrier_init(&shared_->barrier, &attributes, count) == 0);
    MUST(pthread_barrierattr_destroy(&attributes) == 0);
  }
  ~Barrier() { (void)munmap(shared_, sizeof(Shared)); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  void wait() { (void)pthread_barrier_wait(&shared_->barrier); }

 private:
  struct Shared {
    pthread_barrier_t barrier;
  };
  Shared* shared_;
};

inline aclrtStream createStream() {
  aclrtStream stream = nullptr;
  NPU_ERROR(P2PHostStreamCreate(&stream));
  return stream;
}
inline void synchronize(aclrtStream stream) {
  NPU_ERROR(P2PHostStreamSynchronize(stream, kPatienceMs));
}

// Blocks of floats, of one size.
class Blocks {
 public:
  Blocks(size_t count, size_t bytes) : floats_(bytes / sizeof(float)) {
    for (size_t i = 0; i < count; ++i) memory_.emplace_back(floats_);
    for (std::vector<float>& block : memory_) pointers_.push_back(block.data());
  }
  void** pointers() { return pointers_.data(); }
  void* operator[](size_t i) { return pointers_[i]; }
  void fillWithRamps() {
    for (std::vector<float>& block : memory_) ramp(block.data(), floats_, 0);
  }
  void clear() {
    for (std::vector<float>& block : memory_) std::fill(block.begin(), block.end(), -1.0f);
  }
  // The ramp of block i begins at `first` + i * `step`; behind its `floats`, nothing was touched.
  void verify(size_t count, size_t floats, size_t first, size_t step) const {
    for (size_t i = 0; i < count; ++i)
      for (size_t k = 0; k < floats_; ++k) {
        const float wanted = k < floats ? static_cast<float>(first + i * step + k) : -1.0f;
        if (memory_[i][k] != wanted)
          die("verify",
              "block " + std::to_string(i) + ", float " + std::to_string(k) + " is " +
                  std::to_string(memory_[i][k]) + ", not " + std::to_string(wanted),
              __LINE__);
      }
  }
  static void ramp(float* memory, size_t floats, size_t first) {
    for (size_t k = 0; k < floats; ++k) memory[k] = static_cast<float>(first + k);
  }

 private:
  size_t floats_;
  std::vector<std::vector<float>> memory_;
  std::vector<void*> pointers_;
};

// The mean without the best and the worst.
class Series {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  double value() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() > 2) sorted = std::vector<double>(sorted.begin() + 1, sorted.end() - 1);
    double sum = 0;
    for (const double each : sorted) sum += each;
    return sum / static_cast<double>(sorted.size());
  }
  void print(const char* side, size_t blockBytes, size_t blocks) const {
    std::printf("%s: %zu x %.1f kB  %.3f ms  %.2f GB/s\n", side, blocks,
                static_cast<double>(blockBytes) / 1024, value() * 1e3,
                static_cast<double>(blockBytes * blocks) / value() * 1e-9);
  }

 private:
  std::vector<double> seconds_;
};

template <typename Act>
double secondsOf(const Act& act) {
  const auto begin = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The sender in a child, the receiver here. What main() returns.
template <typename Sender, typename Receiver>
int runTwoProcesses(const Sender& sender, const Receiver& receiver) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  MUST(pid >= 0);
  alarm(kAlarmSeconds);
  if (pid == 0) {
    sender();
    std::exit(0);  // with whatever communicators there are
  }
  receiver();
  int status = 0;
  MUST(waitpid(pid, &status, 0) == pid);
  MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}

}  // namespace original
