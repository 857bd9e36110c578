// SPDX-License-Identifier: Apache-2.0
//
// PagePipe and PageSource: the two ends of a pipe that carries memory of the program. The kernel
// does every access: memory that was unmapped, protected or cut fails the call, where a plain copy
// would end the process by SIGSEGV or SIGBUS.
//
// Where the kernel can refer to the pages (vmsplice), the pipe holds the pages and no copy of them:
// the bytes are copied once, by who takes them, and are those that the memory has at that time. So
// the memory must stay as it is until they were taken. Other bytes are copied into the pipe: memory
// of a device, short slices, and all where a filter of system calls refuses vmsplice.
//
// Each end needs external synchronization; the two ends do not, and may be in two processes. Forked
// children get neither.
#pragma once

#include <cstddef>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/io_slice.h"

namespace peerlane {

class PageSource {
 public:
  PageSource() = default;
  // The end of a pipe that another process has given. It is opened anew, for who gave it could else
  // have it block by its flags. Errors: kCorrupt (no pipe), kUnavailable (no descriptor is left),
  // kSystem.
  static Result<PageSource> adopt(const Fd& pipe);

  explicit operator bool() const { return static_cast<bool>(fd_); }
  const Fd& fd() const { return fd_; }

  // Moves up to `most` bytes, in order, to a prefix of the slices. Returns how many; 0: the pipe is
  // empty. Errors: kRevoked: one of the slices cannot be written, in part; what was not returned is
  // still in the pipe, but some may have been copied. Requires: each slice has a byte or more.
  Result<size_t> take(std::span<const IoSlice> to, size_t most);
  // Bytes in the pipe now.
  size_t bytes() const;
  // Drops up to `most` bytes; fewer where it becomes empty.
  void drop(size_t most);

 private:
  friend class PagePipe;
  explicit PageSource(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

class PagePipe {
 public:
  PagePipe() = default;
  // Errors: kUnavailable (no descriptor is left), kSystem.
  static Result<PagePipe> create();

  explicit operator bool() const { return static_cast<bool>(in_); }
  // The other end, in this process.
  PageSource& source() { return source_; }

  // Puts in a prefix of the slices. Returns its bytes; 0: the pipe is full. Errors, and
  // nothing was put in: kRevoked: the first slice cannot be read, in part; kSystem. Requires: one
  // to kMaxIoSlices slices, each of a byte or more.
  Result<size_t> put(std::span<const IoSlice> program);

 private:
  PagePipe(Fd in, PageSource source) : in_(std::move(in)), source_(std::move(source)) {}
  Fd in_;
  PageSource source_;
};

}  // namespace peerlane
