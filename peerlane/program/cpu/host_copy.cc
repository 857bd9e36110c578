// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/host_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "peerlane/core/text.h"
#include "peerlane/os/process.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peerlane::cpu {
namespace {

constexpr std::array<const char*, kCopyInstructions> kNames{"memcpy", "streaming", "movsb",
                                                            "process_vm"};
// Twice as fast as memcpy from 1 MiB on where the bytes are in no cache, and half as fast up to 2
// MiB where they are; from here on it was the faster one either way.
constexpr uint64_t kStreamingFrom = 4 << 20;
// Shorter pieces are mostly ends that are not aligned.
constexpr uint64_t kLeastPiece = 2048;

CopyInstruction instructionAt(size_t index) {
  return static_cast<CopyInstruction>(index);
}

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

CopyChoice::CopyChoice() : from_{0, hasStreaming() ? kStreamingFrom : kNever, kNever, kNever} {}

Result<CopyChoice> CopyChoice::from(const TuneFile& file) {
  CopyChoice choice;
  std::array<uint64_t, kCopyInstructions> named{0, kNever, kNever, kNever};
  bool isNamed = false;
  for (size_t i = 0; i < kCopyInstructions; ++i) {
    const std::string name = std::string("copy_") + kNames[i];
    if (!file.has(name)) continue;
    isNamed = true;
    const uint64_t bytes = file.get(name, 0);
    named[i] = bytes == 0 && instructionAt(i) != CopyInstruction::kMemcpy ? kNever : bytes;
    if (named[i] != kNever)
      PEERLANE_RETURN_IF_ERROR(copyInstructionSupported(instructionAt(i))
                                   .withContext("PEERLANE_TUNE: " + file.source() + ": " + name));
  }
  if (!isNamed) return choice;
  choice.from_ = named;
  choice.source_ = file.source();
  return choice;
}

CopyInstruction CopyChoice::choose(uint64_t bytes, uint64_t pieceBytes) const {
  if (pieceBytes < kLeastPiece) return CopyInstruction::kMemcpy;
  size_t best = 0;  // memcpy, also below its own threshold
  bool isFound = false;
  for (size_t i = 0; i < kCopyInstructions; ++i) {
    if (from_[i] > bytes || (isFound && from_[i] <= from_[best])) continue;
    best = i;
    isFound = true;
  }
  return instructionAt(best);
}

uint64_t CopyChoice::least() const {
  return *std::min_element(from_.begin() + 1, from_.end());
}

std::string CopyChoice::toString() const {
  std::string text = source_ + ":";
  for (size_t i = 0; i < kCopyInstructions; ++i)
    if (from_[i] != kNever)
      text += std::string(" ") + kNames[i] + " from " + formatByteSize(from_[i]);
  return text;
}

}  // namespace peerlane::cpu
