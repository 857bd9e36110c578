// SPDX-License-Identifier: Apache-2.0
//
// Copies between two mappings of this process, by one thread: the instructions that can do it.
// Thread-safe: no state.
//
// memcpy leaves what it wrote in the cache of the processor that copied. Large copies do not fit
// there, and then a store first reads the line that it overwrites: a third of the traffic, for
// nothing. Non-temporal stores do not. The C library changes over to them as well, at a size that
// it computes from the cache that the processor reports; in virtual machines that is often the
// cache of the whole socket, so that copies of 2 to 64 MiB run at half the speed (seen: 4.5 GB/s in
// place of 10). On other processors such stores take twice the time of memcpy, and `rep movsb` is
// the fastest; so each process finds out (copy_trials.h), or a tune file says (copy_thresholds.h).
// That the copy goes through four pages at a time is borrowed from glibc's memcpy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::cpu {

enum class CopyInstruction : uint8_t {
  kMemcpy,
  kStreaming,  // non-temporal stores
  kMovsb,      // `rep movsb`
  kProcessVm,  // process_vm_writev to oneself: the kernel copies
};
inline constexpr size_t kCopyInstructions = 4;

// "memcpy", "streaming", "movsb", "process_vm".
const char* copyInstructionName(CopyInstruction instruction);
// kNotSupported with the reason: another processor, or a system that forbids the call.
Status copyInstructionSupported(CopyInstruction instruction);

// Copies like memcpy. Requires: supported; the places do not overlap. Other threads may see the
// bytes only after this one has called orderCopies().
void copyBytes(CopyInstruction instruction, std::byte* to, const std::byte* from, uint64_t bytes);
// From here on the copies of this thread are ordered like plain stores: a release that follows
// publishes them. Non-temporal stores are not, by themselves.
void orderCopies(CopyInstruction instruction);

}  // namespace peerlane::cpu
