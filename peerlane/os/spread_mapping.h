// SPDX-License-Identifier: Apache-2.0
//
// Where large mappings of files lie. The distance between source and destination decides up to a
// third of the speed of a large memcpy on some processors (seen: AMD EPYC): a multiple of 256 MiB
// is the worst, other multiples of 64 MiB are the best, all else lies between. The kernel puts
// mappings side by side, so that regions of equal and round sizes meet the worst often. Transfers
// copy between memory of this process and memory of a peer: so the two get places that differ by an
// odd multiple of 64 MiB. On other processors this costs nothing. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerlane {

enum class MemoryOf : uint8_t { kThisProcess, kPeer };

// As mmap(nullptr, bytes, protection, MAP_SHARED, fd, fileOffset), MAP_FAILED and errno included;
// unmap it with munmap. Mappings below 4 MiB are left to the kernel, as are those of files with
// pages (`pageBytes`) above 64 MiB.
void* mapSpread(MemoryOf owner, size_t bytes, int protection, int fd, uint64_t fileOffset,
                size_t pageBytes);

}  // namespace peerlane
