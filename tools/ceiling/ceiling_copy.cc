// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling/ceiling_copy.h"

#include <immintrin.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <limits>
#include <utility>

namespace peerlane::bench {
namespace {

constexpr size_t kStreamedAtOnce = 128;
constexpr size_t kPageBytes = 4096;
constexpr size_t kPages = 4;

__attribute__((target("avx2"), always_inline)) inline void streamOnce(std::byte* to,
                                                                      const std::byte* from) {
  const auto* const in = reinterpret_cast<const __m256i*>(from);
  auto* const out = reinterpret_cast<__m256i*>(to);
  const __m256i a = _mm256_loadu_si256(in);
  const __m256i b = _mm256_loadu_si256(in + 1);
  const __m256i c = _mm256_loadu_si256(in + 2);
  const __m256i d = _mm256_loadu_si256(in + 3);
  _mm256_stream_si256(out, a);
  _mm256_stream_si256(out + 1, b);
  _mm256_stream_si256(out + 2, c);
  _mm256_stream_si256(out + 3, d);
}

// Stores past the caches want their alignment; bytes that do not fit are copied as usual.
__attribute__((target("avx2"))) void copyStreaming(std::byte* to, const std::byte* from,
                                                   size_t bytes) {
  const size_t head = std::min(-reinterpret_cast<uintptr_t>(to) % sizeof(__m256i), bytes);
  std::memcpy(to, from, head);
  size_t at = head;
  // Four pages in turns: the processor fetches ahead within a page.
  for (; at + kPages * kPageBytes <= bytes; at += kPages * kPageBytes)
    for (size_t offset = at; offset < at + kPageBytes; offset += kStreamedAtOnce)
      for (size_t page = 0; page < kPages; ++page)
        streamOnce(to + page * kPageBytes + offset, from + page * kPageBytes + offset);
  for (; at + kStreamedAtOnce <= bytes; at += kStreamedAtOnce) streamOnce(to + at, from + at);
  std::memcpy(to + at, from + at, bytes - at);
}

void copyMovsb(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

template <typename Copy>
void copyEach(std::span<const RawPiece> pieces, bool isPut, Copy copy) {
  for (const RawPiece& piece : pieces) {
    if (isPut)
      copy(piece.other, piece.local, piece.bytes);
    else
      copy(piece.local, piece.other, piece.bytes);
  }
}

// As many pieces per call as it takes.
Status kernelCopyPieces(pid_t owner, std::span<const RawPiece> pieces, bool isPut) {
  std::array<iovec, IOV_MAX> local;
  std::array<iovec, IOV_MAX> remote;
  while (!pieces.empty()) {
    const size_t count = std::min<size_t>(pieces.size(), IOV_MAX);
    size_t wanted = 0;
    for (size_t i = 0; i < count; ++i) {
      local[i] = {pieces[i].local, pieces[i].bytes};
      remote[i] = {pieces[i].there, pieces[i].bytes};
      wanted += pieces[i].bytes;
    }
    const ssize_t moved =
        isPut ? ::process_vm_writev(owner, local.data(), count, remote.data(), count, 0)
              : ::process_vm_readv(owner, local.data(), count, remote.data(), count, 0);
    if (moved < 0) {
      if (errno == EPERM)
        return Status(Code::kPermissionDenied,
                      "process_vm_* on the other process is not permitted here: no ceiling for "
                      "private memory");
      return Status::system(errno, "process_vm_*");
    }
    if (static_cast<size_t>(moved) != wanted)
      return Status(Code::kSystem, "process_vm_* moved " + std::to_string(moved) + " of " +
                                       std::to_string(wanted) + " bytes");
    pieces = pieces.subspan(count);
  }
  return Status::ok();
}

}  // namespace

std::string nameOf(CopyWay way, bool isPut) {
  switch (way) {
    case CopyWay::kMemcpy: return "memcpy";
    case CopyWay::kStreaming: return "non-temporal stores";
    case CopyWay::kMovsb: return "rep movsb";
    case CopyWay::kKernel: return isPut ? "process_vm_writev" : "process_vm_readv";
  }
  return "an unknown way";
}

std::vector<CopyWay> copyWays(bool isMapped, bool throughKernel) {
  std::vector<CopyWay> ways;
  if (isMapped) {
    ways = {CopyWay::kMemcpy, CopyWay::kMovsb};
    if (__builtin_cpu_supports("avx2")) ways.push_back(CopyWay::kStreaming);
  }
  if (throughKernel) ways.push_back(CopyWay::kKernel);
  return ways;
}

Result<CopyWay> fastestWay(std::span<const CopyWay> ways,
                           const std::function<Result<double>(CopyWay)>& trial) {
  constexpr int kTurns = 3;
  if (ways.empty()) return Status(Code::kNotSupported, "no way to copy these bytes");
  if (ways.size() == 1) return ways[0];
  std::vector<std::pair<CopyWay, double>> least;
  for (const CopyWay way : ways) {
    const Result<double> warmup = trial(way);
    if (warmup)
      least.emplace_back(way, std::numeric_limits<double>::max());
    else if (warmup.status().code() != Code::kPermissionDenied)
      return warmup.status();
  }
  if (least.empty())
    return Status(Code::kPermissionDenied, "no way to copy these bytes is allowed");
  for (int turn = 0; turn < kTurns; ++turn)
    for (auto& [way, time] : least) {
      PEERLANE_ASSIGN(const double microseconds, trial(way));
      time = std::min(time, microseconds);
    }
  return std::min_element(least.begin(), least.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

Status copyPieces(CopyWay way, pid_t owner, std::span<const RawPiece> pieces, bool isPut) {
  switch (way) {
    [[likely]] case CopyWay::kMemcpy
        : copyEach(pieces, isPut, [](std::byte* to, const std::byte* from, size_t bytes) {
          std::memcpy(to, from, bytes);
        });
    return Status::ok();
    case CopyWay::kMovsb: copyEach(pieces, isPut, copyMovsb); return Status::ok();
    case CopyWay::kStreaming:
      copyEach(pieces, isPut, copyStreaming);
      _mm_sfence();
      return Status::ok();
    case CopyWay::kKernel: return kernelCopyPieces(owner, pieces, isPut);
  }
  return Status(Code::kInternal, "an unknown way to copy");
}

Status spinOver() {
  return Status(Code::kTimeout, "the other process of the benchmark did not answer for 20 s");
}

}  // namespace peerlane::bench
