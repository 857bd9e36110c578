// SPDX-License-Identifier: Apache-2.0
//
// Copies between two mappings of this process, by one thread: the instructions that can do it, and
// from which size on each is the fastest. Thread-safe: no state.
//
// memcpy leaves what it wrote in the cache of the processor that copied. Large copies do not fit
// there, and then a store first reads the line that it overwrites: a third of the traffic, for
// nothing. Non-temporal stores do not. The C library changes over to them as well, at a size that
// it computes from the cache that the processor reports; in virtual machines that is often the
// cache of the whole socket, so that copies of 2 to 64 MiB run at half the speed (seen: 4.5 GB/s in
// place of 10). That its copy goes through four pages at a time is borrowed from glibc's memcpy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/core/tune_file.h"

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

// Plain value.
class CopyChoice {
 public:
  // The built-in figures.
  CopyChoice();
  // Takes copy_memcpy, copy_streaming, copy_movsb and copy_process_vm: each is used from so many
  // bytes on, up to the next larger threshold; 0: never (memcpy: from 0 on). A file that names none
  // leaves the built-in figures, one that names any replaces them all. Errors: kNotSupported naming
  // the instruction.
  static Result<CopyChoice> from(const TuneFile& file);

  // `bytes`: of one transfer, in however many pieces of `pieceBytes` on average.
  CopyInstruction choose(uint64_t bytes, uint64_t pieceBytes) const;
  // Below it choose() answers kMemcpy.
  uint64_t least() const;
  std::string toString() const;

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  std::array<uint64_t, kCopyInstructions> from_;
  std::string source_ = "built in";
};

}  // namespace peerlane::cpu
