// SPDX-License-Identifier: Apache-2.0
//
// What the library's kernels on the software GPU have in common: whether they are loaded, and Run,
// through which a kernel touches memory.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/model/op.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::kernel {

enum KernelKind {
  kCopyKernels,
  kWordKernels,
  kPacketKernels,
  kRingSlotKernels,
  kPutKernels,
  kGetKernels,
  kListKernels,
  kResidentKernels,
  kKernelKinds
};
inline std::atomic<bool> loaded[kKernelKinds][softgpu::kMostDevices];

inline std::atomic<bool>& loadedHere(KernelKind kind) {
  return loaded[kind][softgpu::currentDevice()];
}

inline Status load(KernelKind kind) {
  if (softgpu::deviceCount() == 0) return Status(Code::kSystem, "there is no software GPU");
  loadedHere(kind) = true;
  return Status::ok();
}

inline Status launched(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(error));
}

// A running kernel: its device, and whether it has touched what it must not, which ends it.
class Run {
 public:
  Run(int device, const char* name) : device_(device), name_(name) {}

  bool failed() const { return failed_; }
  bool reaches(const void* at, uint64_t bytes, const char* what) {
    if (failed_) return false;
    if (bytes == 0 || softgpu::canReach(device_, at, bytes)) return true;
    char address[32];
    std::snprintf(address, sizeof(address), "%p", at);
    fail(std::string(what) + " at " + address + ", " + std::to_string(bytes) +
         " bytes, which it cannot reach");
    return false;
  }
  void fail(const std::string& what) {
    failed_ = true;
    softgpu::failDevice(device_, "the " + std::string(name_) + " kernel touched " + what);
  }

  uint64_t load(const uint64_t* word, std::memory_order order = std::memory_order_acquire) {
    if (!reaches(word, 8, "a word")) return 0;
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(order);
  }
  void store(uint64_t* word, uint64_t value) {
    if (reaches(word, 8, "a word"))
      std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
  }
  void add(const WordStore& addition) {
    if (addition.word == nullptr || !reaches(addition.word, 8, "a counter")) return;
    std::atomic_ref<uint64_t>(*addition.word).fetch_add(operandNow(addition.value));
  }
  void copy(void* to, const void* from, uint64_t bytes) {
    if (bytes > 0 && reaches(from, bytes, "a source") && reaches(to, bytes, "a destination"))
      softgpu::moveBytes(to, from, bytes);
  }

  uint64_t operandNow(const WordOperand& operand) {
    return operand.cursor == nullptr ? operand.delta : load(operand.cursor) + operand.delta;
  }
  bool isAborted(const uint64_t* abort) { return abort != nullptr && load(abort) != 0; }

  // False: released.
  bool waitWord(const uint64_t* word, uint64_t wanted, const uint64_t* abort) {
    for (softgpu::PollPause pause; !failed_; pause.wait()) {
      const uint64_t value = load(word);
      if (value >> 62 == 1) return false;
      if (static_cast<int64_t>(value - wanted) >= 0) return !failed_;
      if (isAborted(abort)) return false;
    }
    return false;
  }
  bool waitLine(const uint64_t* line, uint64_t wanted, const uint64_t* abort) {
    for (softgpu::PollPause pause; !failed_; pause.wait()) {
      uint64_t sum = 0;
      for (size_t i = 0; i < 8; ++i) {
        const uint64_t value = load(line + i);
        if (value >> 62 == 1) return false;
        sum += value;
      }
      if (static_cast<int64_t>(sum - wanted) >= 0) return !failed_;
      if (isAborted(abort)) return false;
    }
    return false;
  }
  bool passes(const WordWait& wait) {
    if (wait.word == nullptr) return !isAborted(wait.abort);
    return waitWord(wait.word, operandNow(wait.atLeast), wait.abort);
  }
  void performTail(const WordTail& tail, bool released) {
    if (!released)
      for (uint32_t i = tail.storeCount; i-- > 0;)
        store(tail.stores[i].word, operandNow(tail.stores[i].value));
    if (tail.completion.word != nullptr)
      store(tail.completion.word, operandNow(tail.completion.value));
    if (tail.advance != nullptr) store(tail.advance, load(tail.advance) + tail.step);
  }

  void enter(uint32_t* arrivals) {
    if (arrivals == nullptr || !reaches(arrivals, 4, "arrivals")) return;
    if (std::atomic_ref<uint32_t>(*arrivals).exchange(1) != 0)
      fail("arrivals that were not 0: two launches use them at once");
  }
  void leave(uint32_t* arrivals) {
    if (arrivals != nullptr && !failed_) std::atomic_ref<uint32_t>(*arrivals).store(0);
  }

 private:
  const int device_;
  const char* const name_;
  bool failed_ = false;
};

// As release_device.h's.
template <class Job>
bool isEnded(Run& run, const Job& job) {
  return job.ended != nullptr && run.load(job.ended) != 0;
}
template <class Job>
void tellReleased(Run& run, const Job& job) {
  if (job.fault != nullptr) run.store(job.fault, kReleasedFault);
  if (job.ended != nullptr) run.store(job.ended, 1);
}

}  // namespace peerlane::kernel
