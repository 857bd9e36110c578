// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace peerlane::bench {
namespace {

constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
constexpr uint64_t kPageBytes = 4096;

struct MapsLine {
  uint64_t first = 0;
  uint64_t fileOffset = 0;
  unsigned major = 0;
  unsigned minor = 0;
  uint64_t inode = 0;
};

bool findMapsLine(uint64_t address, MapsLine& found) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t last = 0;
    char rights[8] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64,
                    &found.first, &last, rights, &found.fileOffset, &found.major, &found.minor,
                    &found.inode) == 7 &&
        address >= found.first && address < last && rights[3] == 's')
      return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<PrivateMemory>> PrivateMemory::create(size_t bytes) {
  // Aligned as a huge page, so that the system may use them.
  void* memory = std::aligned_alloc(kHugeBytes, (bytes + kHugeBytes - 1) / kHugeBytes * kHugeBytes);
  if (memory == nullptr)
    return Status(Code::kOutOfMemory, std::to_string(bytes) + " bytes for the benchmark");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<PrivateMemory>(new PrivateMemory(static_cast<std::byte*>(memory)));
}

PrivateMemory::~PrivateMemory() {
  std::free(data_);
}

Result<BackingFile> findBackingFile(const void* address) {
  const auto wanted = reinterpret_cast<uint64_t>(address);
  MapsLine line;
  if (!findMapsLine(wanted, line) || line.inode == 0)
    return Status(Code::kNotSupported, "no shared file is mapped at the region's address");
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return Status::system(errno, "/proc/self/fd");
  BackingFile result;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    struct stat file {};
    if (entry->d_name[0] == '.' || ::fstat(fd, &file) < 0) continue;
    if (file.st_ino != line.inode || gnu_dev_major(file.st_dev) != line.major ||
        gnu_dev_minor(file.st_dev) != line.minor)
      continue;
    result.file = Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    result.offset = line.fileOffset + (wanted - line.first);
    break;
  }
  ::closedir(folder);
  if (!result.file)
    return Status(Code::kNotSupported, "the file of the region is not open in this process");
  return result;
}

Result<std::unique_ptr<RawMapping>> RawMapping::create(int file, uint64_t offset, size_t bytes) {
  const uint64_t fileStart = offset / kPageBytes * kPageBytes;
  const size_t span = (offset - fileStart + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  // The place decides up to a third of the speed (peerlane/os/spread_mapping.h): the raw copy gets
  // a good one, too.
  constexpr uint64_t kApart = uint64_t{256} << 20;
  constexpr uint64_t kStep = uint64_t{64} << 20;
  const size_t reserve = span + kApart;
  void* base =
      ::mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Status::system(errno, "reserving addresses");
  const uint64_t start = reinterpret_cast<uint64_t>(base);
  const uint64_t place = kStep + fileStart % kStep;
  const uint64_t at = start + (place - start) % kApart;
  void* mapped = ::mmap(reinterpret_cast<void*>(at), span, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, static_cast<off_t>(fileStart));
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(base, reserve);
    return Status::system(error, "mapping memory of the other process");
  }
  ::madvise(mapped, span, MADV_HUGEPAGE);
  return std::unique_ptr<RawMapping>(
      new RawMapping(base, reserve, static_cast<std::byte*>(mapped) + (offset - fileStart)));
}

RawMapping::~RawMapping() {
  ::munmap(base_, length_);
}

Result<Descriptor> makeSharedFile(const char* name, size_t bytes) {
  Descriptor file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return Status::system(errno, "memfd_create");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) < 0)
    return Status::system(errno, "sizing a shared file");
  return file;
}

}  // namespace peerlane::bench
