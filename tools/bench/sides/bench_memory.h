// SPDX-License-Identifier: Apache-2.0
//
// The memory of a benchmark, seen past the library: the file of mapped memory, a raw mapping of it
// in the other process, and private memory. With these the raw limit is measured over the very same
// pages. External synchronization required.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

// Private anonymous memory, page aligned; huge pages where the system gives them.
class PrivateMemory {
 public:
  static Result<std::unique_ptr<PrivateMemory>> create(size_t bytes);
  ~PrivateMemory();
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  explicit PrivateMemory(std::byte* data) : data_(data) {}
  std::byte* data_;
};

struct BackingFile {
  Descriptor file;
  uint64_t offset = 0;  // of the address that was asked for
};
// The shared-memory file mapped at `address` of this process, found through /proc/self.
Result<BackingFile> findBackingFile(const void* address);

// A shared mapping of `file` from `offset` on, all pages present.
class RawMapping {
 public:
  static Result<std::unique_ptr<RawMapping>> create(int file, uint64_t offset, size_t bytes);
  ~RawMapping();
  RawMapping(const RawMapping&) = delete;
  RawMapping& operator=(const RawMapping&) = delete;
  std::byte* data() const { return data_; }

 private:
  RawMapping(void* base, size_t length, std::byte* data)
      : base_(base), length_(length), data_(data) {}
  void* base_;
  size_t length_;
  std::byte* data_;
};

// An anonymous file of `bytes` zeros, to be shared with the other process.
Result<Descriptor> makeSharedFile(const char* name, size_t bytes);

}  // namespace peerlane::bench
