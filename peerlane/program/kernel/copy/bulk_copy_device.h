// SPDX-License-Identifier: Apache-2.0
//
// Bulk ring: one warp moves bytes by the bulk copies (TMA) of sm_90, from global memory into a ring
// of buffers in shared memory and out again; half of the buffers are on their way in, half on their
// way out. A few warps keep a link busy that otherwise needs hundreds of threads. Not for unaligned
// bytes: addresses and sizes are multiples of 16.
//
// The accesses of bulk copies (the "async proxy") are not ordered with those of threads, so code
// that uses them must put fenceBulkCopies() after every wait whose data is copied and before every
// store that announces it.
#pragma once

#if defined(__CUDACC__)

#include <cstddef>
#include <cstdint>

namespace peerlane::kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fenceBulkCopies() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ uint32_t sharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Every lane of the warp constructs one; only lane 0 calls the other functions. `slots` and
// `buffers` lie in shared memory.
template <uint32_t kStages>
class BulkRing {
 public:
  struct Slots {
    uint64_t full[kStages];  // mbarriers
    std::byte* to[kStages];
    uint32_t bytes[kStages];
  };

  __device__ BulkRing(Slots& slots, std::byte* buffers, uint32_t bufferBytes)
      : slots_(slots), buffers_(sharedAddress(buffers)), bufferBytes_(bufferBytes) {
    if (threadIdx.x % 32 != 0) return;
    for (uint32_t i = 0; i < kStages; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(sharedAddress(&slots_.full[i])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  __device__ __forceinline__ void copy(const std::byte* from, std::byte* to, uint64_t bytes) {
    while (bytes > 0) {
      const uint32_t part = bytes < bufferBytes_ ? static_cast<uint32_t>(bytes) : bufferBytes_;
      load(from, to, part);
      if (loaded_ - stored_ > kAhead) storeOldest();
      from += part;
      to += part;
      bytes -= part;
    }
  }

  // When it returns, everything is written, and a system-wide fence after it covers the bytes.
  __device__ void finish() {
    while (stored_ != loaded_) storeOldest();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    fenceBulkCopies();
  }

 private:
  static constexpr uint32_t kAhead = kStages / 2;

  __device__ __forceinline__ void load(const std::byte* from, std::byte* to, uint32_t bytes) {
    // The buffer was last used kStages loads ago; so many of the stores after its own may still be
    // reading their buffers.
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStages - kAhead - 1) : "memory");
    const uint32_t slot = loadSlot_;
    const uint32_t full = sharedAddress(&slots_.full[slot]);
    slots_.to[slot] = to;
    slots_.bytes[slot] = bytes;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(buffers_ + slot * bufferBytes_),
        "l"(from), "r"(bytes), "r"(full)
        : "memory");
    ++loaded_;
    loadSlot_ = slot + 1 == kStages ? 0 : slot + 1;
  }

  __device__ __forceinline__ void storeOldest() {
    const uint32_t slot = storeSlot_;
    const uint32_t full = sharedAddress(&slots_.full[slot]);
    uint32_t done = 0;
    while (done == 0)
      asm volatile(
          "{\n .reg .pred p;\n"
          " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(full), "r"(phase_)
          : "memory");
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(slots_.to[slot]),
        "r"(buffers_ + slot * bufferBytes_), "r"(slots_.bytes[slot])
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    ++stored_;
    if (slot + 1 == kStages) {
      storeSlot_ = 0;
      phase_ ^= 1;
    } else {
      storeSlot_ = slot + 1;
    }
  }

  Slots& slots_;
  uint32_t buffers_;
  uint32_t bufferBytes_;
  uint32_t loaded_ = 0, stored_ = 0;
  uint32_t loadSlot_ = 0, storeSlot_ = 0, phase_ = 0;
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
