// SPDX-License-Identifier: Apache-2.0
//
// The mappings of this process, as its kernel tells them: those around a few addresses, without
// reading all of them where the kernel answers for one address (Linux 6.11). Nothing is kept
// between two calls. A snapshot: a thread that unmaps meanwhile makes it stale. Thread: any.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14, as the next
#define MADV_POPULATE_WRITE 23
#endif

namespace peerlane {

// As a line of /proc/self/maps.
struct MappingLine {
  uint64_t start = 0;
  uint64_t end = 0;
  char rights[5] = "";  // "rw-p"
  uint64_t offset = 0;
  unsigned major = 0;
  unsigned minor = 0;
  uint64_t inode = 0;
  std::string path;        // empty for plain anonymous memory
  uint64_t pageBytes = 0;  // 0: not told
};

// Those that hold bytes of [start, end), in the order of their addresses. Each mapping that is
// looked at counts as a step (Steps). Errors: kUnavailable where the process has no descriptor
// left.
Result<std::vector<MappingLine>> mappingLines(uint64_t start, uint64_t end);

// The same, but nothing where all of [start, end) is known to be private memory, not of a file, of
// ordinary pages, which this process may read and write. Where the kernel does not answer for one
// address, the pages tell that, at a cost that does not grow with the number of mappings. Pages
// that are not there yet, or are shared with a forked process, are brought in then as the first
// store would, at most 64 of them; where there are more, all mappings are read.
Result<std::optional<std::vector<MappingLine>>> linesUnlessPlain(uint64_t start, uint64_t end);

}  // namespace peerlane
