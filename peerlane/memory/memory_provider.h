// SPDX-License-Identifier: Apache-2.0
//
// MemoryProvider: the code for one kind of memory: it says what a pointer refers to and whether
// another process can map that memory, and makes more of it. MemoryProviders: the providers of one
// context, asked in order. Set-up path. Thread-safe after the last add().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/os/shm_segment.h"

namespace peerlane {

struct ExportedPool;

// One of several physical allocations that a range of GPU memory is made of.
struct CudaChunk {
  uint64_t bytes = 0;
  uint64_t identity = 0;
};

struct MemoryDescription {
  Device device;
  MemoryKind kind{};
  // The context whose memory it is, where the one that registers it only has it on loan. Zeros: the
  // same one.
  std::array<uint8_t, 16> owner{};
  Fd backing;  // by descriptor: what another process may map; of host memory, sealed against
               // shrinking
  uint64_t fdOffset = 0;  // of the first byte described, in the descriptor or in the allocation
  // GPU memory: the bytes of the allocation, which an importer must map as a whole.
  uint64_t backingBytes = 0;
  uint64_t identity = 0;  // of that allocation in its process; never used twice there
  // By legacy or fabric handle, and of a pool (cuda_pools.h); in chunks: the sizes (chunk_runs.h).
  std::vector<std::byte> handle;
  // The allocation outlives the regions in it: an importer may keep it mapped for the next region.
  bool isKept = false;
  std::vector<CudaChunk>
      chunks{};  // where there are several, side by side; the first is `identity`
  std::shared_ptr<const ExportedPool> pool{};  // of a pool: what it was taken from
  // GPU memory that is not exported: why no other process can map it. The owner's answer to an
  // import carries it.
  std::string whyNot{};
  bool writable = true;
  std::string
      text;  // for people: "shared memory (/memfd:pool)", "private memory; not shared because ..."
};

// Memory made by a provider. Owns it.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // The answer that classify() would give for all of it, without asking the system.
  virtual Result<MemoryDescription> describe() const = 0;
};

struct AllocateOptions {
  Device device;
  HugePages hugePages = HugePages::kAuto;
  std::optional<int> numaNode;
};

// Whole allocations, side by side.
struct MemoryExtent {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

class MemoryProvider {
 public:
  virtual ~MemoryProvider() = default;
  virtual std::string_view name() const = 0;
  // Empty when the memory is not of this provider's kind; an error when it is, but cannot be used
  // (not mapped, read-only mixed with writable, freed).
  virtual Result<std::optional<MemoryDescription>> classify(const void* pointer, size_t bytes) = 0;
  // All of the allocations that hold the range. Empty when the memory is not of this provider's
  // kind, or the system does not know its allocations.
  virtual Result<std::optional<MemoryExtent>> extentOf(const void* /*pointer*/, size_t /*bytes*/) {
    return std::optional<MemoryExtent>();
  }
  // kNotSupported when the device is not of this provider's kind.
  virtual Result<std::unique_ptr<Allocation>> allocate(size_t bytes,
                                                       const AllocateOptions& options) = 0;
};

class MemoryProviders {
 public:
  void add(std::unique_ptr<MemoryProvider> provider) { providers_.push_back(std::move(provider)); }
  // Asks the providers in the order they were added. kInvalidArgument when none owns the range.
  Result<MemoryDescription> classify(const void* pointer, size_t bytes);
  // The extent that the first provider with an answer returns.
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes);
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes, const AllocateOptions& options);

 private:
  std::vector<std::unique_ptr<MemoryProvider>> providers_;
};

}  // namespace peerlane
