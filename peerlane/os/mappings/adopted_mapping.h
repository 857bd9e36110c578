// SPDX-License-Identifier: Apache-2.0
//
// Looks at memory that this library did not map: what backs a pointer of this process, and through
// which descriptor another process could map the same bytes. A snapshot: a thread that unmaps
// meanwhile makes it stale. Set-up path (mappings/mapping_lines.h). Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/shared_fd.h"

namespace peerlane {

enum class MappingKind : uint8_t {
  kPrivateMemory,  // heap, stack, private anonymous mmap: no other process can map it
  kSharedMemory,   // memfd, file below /dev/shm or in another tmpfs, hugetlb, shared anonymous mmap
  kPrivateFile,    // copy-on-write view of a file (program text and data)
  kSharedFile,     // file of a disk file system
};

// "private memory", "shared memory", ...
const char* mappingKindName(MappingKind kind);

struct AdoptedMapping {
  MappingKind kind = MappingKind::kPrivateMemory;
  // kSharedMemory only: a descriptor of the backing file, shared by all of its mappings. Empty when
  // none could be found; then `whyNoFile` has the reason.
  SharedFd file;
  uint64_t fileOffset = 0;  // of the first byte asked for; 0 for private memory
  std::string whyNoFile;
  size_t pageBytes = 0;  // the system's page size, or that of reserved huge pages
  bool hugetlb = false;
  bool writable = false;  // every page of the range
  // Some of it is, or may be, a file's or shared: whoever opens that can cut it.
  bool hasFile = false;
  std::string path;  // as in /proc/self/maps; empty for plain anonymous memory and for
                     // private memory of which the kernel told no more (linesUnlessPlain)
};

// Classifies [p, p + bytes). The range must be mapped and readable completely; it may span several
// mappings of the same kind that lie side by side, for shared ones at continuous offsets of one
// file; private memory and private views of files may mix, and the kind is that of the first
// mapping. Errors: kInvalidArgument naming the first address that is not mapped, not readable or of
// another kind; kNotSupported for device and kernel pages.
Result<AdoptedMapping> findSharedMapping(const void* p, size_t bytes);

// Where memory is mapped, side by side.
struct MappedRange {
  std::byte* base = nullptr;
  size_t bytes = 0;
};
// All of the mappings that hold [p, p + bytes). Nothing where a part of that is not mapped.
Result<std::optional<MappedRange>> mappingsAround(const void* p, size_t bytes);

// One of them, whole.
struct KnownMapping {
  MappedRange range;
  MappingKind kind = MappingKind::kPrivateMemory;
};
// Those that hold bytes of [p, p + bytes), in the order of their addresses.
Result<std::vector<KnownMapping>> mappingsWithin(const void* p, size_t bytes);
// The same where they leave no hole. Errors: kInvalidArgument naming the first address that is not
// mapped.
Result<std::vector<KnownMapping>> mappingsOf(const void* p, size_t bytes);

// Checks that this process may read all of [p, p + bytes), or also write it, so that an access that
// would end the process by a signal becomes an error. Where the check succeeds it costs one system
// call, which brings the pages in as the access itself would. Errors: kInvalidArgument naming the
// first address that fails, and why.
enum class Touch : uint8_t { kRead, kWrite };
Status checkTouchable(const void* p, size_t bytes, Touch touch);

}  // namespace peerlane
