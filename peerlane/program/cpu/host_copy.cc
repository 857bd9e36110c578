// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/host_copy.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "peerlane/os/process.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peerlane::cpu {
namespace {

constexpr std::array<const char*, kCopyInstructions> kNames{"memcpy", "streaming", "movsb",
                                                            "process_vm"};

#if defined(__x86_64__)

constexpr uint64_t kStepBytes = 128;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kPages = 4;

// Not counted for coverage: each locked addition to a counter empties the buffers in which
// streaming stores gather, and made copies twenty times as slow.
#define PEERLANE_STREAMS __attribute__((target("avx"), no_profile_instrument_function))

// 128 bytes to a multiple of 32.
PEERLANE_STREAMS __attribute__((always_inline)) inline void step(std::byte* to,
                                                                 const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* target = reinterpret_cast<__m256i*>(to);
  const __m256i a = _mm256_loadu_si256(source);
  const __m256i b = _mm256_loadu_si256(source + 1);
  const __m256i c = _mm256_loadu_si256(source + 2);
  const __m256i d = _mm256_loadu_si256(source + 3);
  _mm256_stream_si256(target, a);
  _mm256_stream_si256(target + 1, b);
  _mm256_stream_si256(target + 2, c);
  _mm256_stream_si256(target + 3, d);
}

// Four pages at a time, because the processor fetches ahead within one page only.
PEERLANE_STREAMS uint64_t streamWhole(std::byte* to, const std::byte* from, uint64_t bytes) {
  uint64_t done = 0;
  for (; bytes - done >= kPages * kPageBytes; done += kPages * kPageBytes)
    for (uint64_t offset = done; offset < done + kPageBytes; offset += kStepBytes)
      for (uint64_t page = 0; page < kPages; ++page)
        step(to + page * kPageBytes + offset, from + page * kPageBytes + offset);
  for (; bytes - done >= kStepBytes; done += kStepBytes) step(to + done, from + done);
  return done;
}

void copyStreaming(std::byte* to, const std::byte* from, uint64_t bytes) {
  const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(to) % kStepBytes);
  std::memcpy(to, from, head);
  const uint64_t end = head + streamWhole(to + head, from + head, bytes - head);
  std::memcpy(to + end, from + end, bytes - end);
}

void copyMovsb(std::byte* to, const std::byte* from, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void fenceStores() {
  _mm_sfence();
}
bool hasStreaming() {
  return __builtin_cpu_supports("avx") != 0;
}

#else

void copyStreaming(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
void copyMovsb(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
void fenceStores() {}
bool hasStreaming() {
  return false;
}

#endif

// The kernel stops at a page that it cannot reach; memcpy then says so as memcpy does.
void copyProcessVm(std::byte* to, const std::byte* from, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const IoSlice source{const_cast<std::byte*>(from) + done, bytes - done};
    const IoSlice target{to + done, bytes - done};
    const auto moved = writeProcess(::getpid(), {&source, 1}, {&target, 1});
    if (!moved.isOk() || *moved == 0) {
      std::memcpy(to + done, from + done, bytes - done);
      return;
    }
    done += *moved;
  }
}

}  // namespace

const char* copyInstructionName(CopyInstruction instruction) {
  return kNames[static_cast<size_t>(instruction)];
}

Status copyInstructionSupported(CopyInstruction instruction) {
  switch (instruction) {
    case CopyInstruction::kMemcpy: return Status::ok();
    case CopyInstruction::kStreaming:
      if (hasStreaming()) return Status::ok();
      return Status(Code::kNotSupported, "this processor has no AVX");
    case CopyInstruction::kMovsb:
#if defined(__x86_64__)
      return Status::ok();
#else
      return Status(Code::kNotSupported, "this processor has no rep movsb");
#endif
    case CopyInstruction::kProcessVm: {
      std::byte from{1}, to{0};
      const IoSlice source{&from, 1};
      const IoSlice target{&to, 1};
      return writeProcess(::getpid(), {&source, 1}, {&target, 1}).status();
    }
  }
  return Status(Code::kInternal, "no such instruction");
}

void copyBytes(CopyInstruction instruction, std::byte* to, const std::byte* from, uint64_t bytes) {
  switch (instruction) {
    case CopyInstruction::kMemcpy: std::memcpy(to, from, bytes); return;
    case CopyInstruction::kStreaming: copyStreaming(to, from, bytes); return;
    case CopyInstruction::kMovsb: copyMovsb(to, from, bytes); return;
    case CopyInstruction::kProcessVm: copyProcessVm(to, from, bytes); return;
  }
}

void orderCopies(CopyInstruction instruction) {
  if (instruction == CopyInstruction::kStreaming) fenceStores();
}

}  // namespace peerlane::cpu
