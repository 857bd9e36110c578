// SPDX-License-Identifier: Apache-2.0
//
// MemoryProvider: the code for one kind of memory: it says which ranges are its own, what they are,
// how others can reach them, and makes more of it. It may take memory back (invalidation.h). Users
// may write providers of their own (Context::addProvider). The contract, after that of PeerDirect's
// memory clients:
//
//   acquire(range, ticket) -> HeldMemory: describe(), facts(), exportAs() ... -> its end (release)
//                                  |
//           invalidateMemory(ticket), by the provider at any time in between
//
// Threads: any, several at once. The library holds no lock of its own when it calls a provider.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/huge_pages.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"
#include "peerlane/memory/exported_range.h"
#include "peerlane/memory/memory_kind.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/shared_fd.h"

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
  SharedFd backing;       // by descriptor: what another process may map; of host memory, sealed
                          // against shrinking
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
  // Host memory: another program can cut the file behind it. False only for memory of no file, and
  // for files that are sealed against it: then only this program can take it away from itself.
  bool mayBeCut = true;
  std::string
      text;  // for people: "shared memory (/memfd:pool)", "private memory; not shared because ..."
};

// Whole allocations, side by side.
struct MemoryExtent {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

// The facts by which a device is chosen to reach the memory, and may keep a registration of it.
struct MemoryFacts {
  Device device;
  std::optional<int> numaNode{};  // of the memory, or of its device; empty: not known
  uint64_t pageBytes = 4096;      // it is placed in pages of this size
  bool isCoherent = true;         // the CPU's caches see what devices write
  bool isCpuMappable = true;      // loads and stores of the CPU reach it
  MemoryExtent allocation{};      // that holds the range; null: the system does not know it
  // Of that allocation, never used twice in this process, while addresses are. 0: none is known,
  // and nothing made of the range may be kept longer than its registration.
  uint64_t allocationId = 0;
  // The provider may take it back. False: it stays where it is until it is released.
  bool mayBeInvalidated = false;
};

// A range of memory that its provider holds for one registration. Its end is the release: nothing
// reaches the memory by this registration any more. The end may come on any thread, also inside of
// invalidateMemory().
class HeldMemory {
 public:
  virtual ~HeldMemory() = default;
  // How other processes reach it. Called once for each registration.
  virtual Result<MemoryDescription> describe() const = 0;
  virtual Result<MemoryFacts> facts() const = 0;
  // [offset, +bytes) of it in one form. The registry asks for the forms in the importer's order,
  // has checked the range and the rule for memory that may be invalidated (exportRange), and fills
  // in ExportedRange::bytes, address and mayBeInvalidated. Errors: kNotSupported with the reason.
  virtual Result<ExportedRange> exportAs(ExportForm form, const Importer& importer, uint64_t offset,
                                         uint64_t bytes);
};

// Memory made by a provider. Owns it. It is not taken back.
class Allocation : public HeldMemory {
 public:
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
};

struct AllocateOptions {
  Device device;
  HugePages hugePages = HugePages::kAuto;
  std::optional<int> numaNode;
};

// A provider's answer to acquire().
struct MemoryClaim {
  std::unique_ptr<HeldMemory> held{};  // the whole range is the provider's
  // Else: a piece of the range that is the provider's, while the rest is not. 0 bytes: none is.
  MemoryExtent piece{};

  static MemoryClaim notMine() { return {}; }
  static MemoryClaim part(MemoryExtent piece) { return {nullptr, piece}; }
  static MemoryClaim all(std::unique_ptr<HeldMemory> held) { return {std::move(held), {}}; }
};

class MemoryProvider {
 public:
  virtual ~MemoryProvider() = default;
  virtual std::string_view name() const = 0;  // for people; lifetime: the provider's
  // All of [pointer, +bytes) or nothing. An error when the range is the provider's, but cannot be
  // used (not mapped, read-only mixed with writable, freed). From the begin of this call the
  // provider may invalidate `ticket`. The memory stays usable until the HeldMemory ends or
  // invalidateMemory(ticket) has returned OK.
  virtual Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) = 0;
  // All of the allocations that hold the range. Empty when the memory is not of this provider's
  // kind, or the system does not know its allocations.
  virtual Result<std::optional<MemoryExtent>> extentOf(const void* /*pointer*/, size_t /*bytes*/) {
    return std::optional<MemoryExtent>();
  }
  // kNotSupported when the device is not of this provider's kind.
  virtual Result<std::unique_ptr<Allocation>> allocate(size_t bytes,
                                                       const AllocateOptions& options);
};

}  // namespace peerlane
