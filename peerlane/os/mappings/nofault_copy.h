// SPDX-License-Identifier: Apache-2.0
//
// Copies between memory of this library and memory of its program, where the kernel does the
// access: the program may unmap or protect its memory, or any program cut the file behind it, at
// any time, also during the copy. The copy then ends there, where a plain one would end the process
// by SIGSEGV or SIGBUS. The word is the kernel's (copy_from_kernel_nofault).
//
// The bytes go through a pipe of this process's own (page_pipe.h), from the pages to their place
// without a copy in between: 0.7 us up to a page, then half to a third of the speed of memcpy() in
// the cache, and close to it in memory (seen on one machine, where process_vm_readv on this very
// process took 1.25 us and 1.5 times as long).
//
// Thread: any. Not in a child that a raw clone() has made.
#pragma once

#include <cstddef>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/os/io_slice.h"

namespace peerlane {

// Makes the first pipe. Errors: kUnavailable (no descriptor is left for it), kSystem.
Status prepareNofault();

// Copies from `program`, in order, to `to`: both lists are one byte stream each, cut differently.
// Returns the bytes copied: fewer than the shorter list has where a byte of `program` cannot be
// read. All before that one have been, but for a page's worth.
// Requires: prepareNofault() was OK; at most kMaxIoSlices on each side; `to` is writable as long as
// the call lasts.
size_t nofaultRead(std::span<const IoSlice> to, std::span<const IoSlice> program);
// The same from byte `skip` of `program` on, to one piece. Any number of slices.
size_t nofaultRead(std::span<std::byte> to, std::span<const IoSlice> program, size_t skip);
// The same from `from` to `program`: ends where that cannot be written. Bytes that are not counted
// may have been written.
size_t nofaultWrite(std::span<const IoSlice> program, std::span<const IoSlice> from);

// Whether bytes all over [base, +bytes) can be read: one of each page, of at most 1024 pages. To
// explain a failure, never to allow a plain access.
bool isReadable(const std::byte* base, size_t bytes);

}  // namespace peerlane
