// SPDX-License-Identifier: Apache-2.0
//
// SharedSegment: one mapping of memory that other processes can map, too: a sealed memfd made here,
// or an imported descriptor that was checked. Not an allocator and not a region. Immutable after
// creation (the users order accesses to the bytes), so any thread may use it. Requires: no thread
// touches the bytes when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "peerlane/core/huge_pages.h"
#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/shared_fd.h"
#include "peerlane/os/spread_mapping.h"

namespace peerlane {

struct SegmentOptions {
  HugePages hugePages = HugePages::kAuto;
  // Where pages should come from; the node must exist, but a full node or a refused policy is no
  // error.
  std::optional<int> numaNode = std::nullopt;
  // Touch every page now: later accesses do not fault, and lack of memory is an error here.
  bool populate = false;
  // Shown as /memfd:<name> in /proc/<pid>/maps; at most 200 bytes, no '/'.
  std::string name = "peerlane";
};

class SharedSegment {
 public:
  // Zeroed, readable and writable memory whose descriptor can neither shrink nor grow. Errors:
  // kInvalidArgument (zero or too many bytes, unknown node, bad name), kUnavailable (no huge pages
  // reserved), kOutOfMemory.
  static Result<std::unique_ptr<SharedSegment>> create(size_t bytes, const SegmentOptions& options);

  // Maps [offset, offset + bytes) of a descriptor that came from another process. Accepted is
  // memory (memfd, tmpfs, hugetlb) sealed against shrinking, because a peer that shortens it would
  // kill us by SIGBUS. Takes `fd` in any case. Errors: kPermissionDenied (not sealed, or read-only
  // and `writable`), kInvalidArgument (other file type, out of range).
  static Result<std::unique_ptr<SharedSegment>> import(SharedFd fd, size_t bytes, uint64_t offset,
                                                       bool writable);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // The first byte asked for. Lifetime: this object.
  std::byte* data() const { return data_; }
  // The size that was asked for; the last page may hold more.
  size_t bytes() const { return bytes_; }
  // Where data() lies in the file.
  uint64_t offset() const { return offset_; }
  // The memory's descriptor, to be passed on. Lifetime: this object.
  int fd() const { return fd_.get(); }
  const SharedFd& descriptor() const { return fd_; }
  bool writable() const { return writable_; }
  // The file's page size; hugetlb shows its own (2 MiB or 1 GiB).
  size_t pageBytes() const { return pageBytes_; }

 private:
  SharedSegment() = default;
  Status map(MemoryOf owner, size_t bytes, uint64_t offset, bool writable);
  Status place(const SegmentOptions& options);

  SharedFd fd_;
  void* mapping_ = nullptr;  // page aligned, of mappingBytes_
  size_t mappingBytes_ = 0;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t offset_ = 0;
  size_t pageBytes_ = 0;
  bool writable_ = false;
};

// Seals the memory of `fd` against shrinking, from now on and for every process. OK when it is
// sealed already. Errors: kPermissionDenied when the file refuses seals (made without
// MFD_ALLOW_SEALING, a file below /dev/shm, a read-only descriptor), kInvalidArgument when it is no
// shared memory at all.
Status trySeal(int fd);

// Seals the memory of `fd` so that no process can map it for writing from now on; existing mappings
// stay as they are. Errors: kNotSupported (before Linux 5.1), kPermissionDenied (it takes no
// seals).
Status sealAgainstWriters(int fd);
bool isSealedAgainstWriters(int fd);

// The page size of the shared memory (memfd, tmpfs, hugetlb) of `fd`. Errors: kInvalidArgument
// naming the kind of file that it is instead.
Result<size_t> sharedMemoryPageBytes(int fd);

}  // namespace peerlane
