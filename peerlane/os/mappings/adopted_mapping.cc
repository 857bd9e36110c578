// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/adopted_mapping.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "peerlane/os/file.h"
#include "peerlane/os/mappings/mapping_lines.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/os/transfer_status.h"

namespace peerlane {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

bool startsWith(const std::string& text, std::string_view prefix) {
  return std::string_view(text).starts_with(prefix);
}

// By the path alone; the kind of a file in an unknown tmpfs is corrected once its descriptor is
// known.
MappingKind kindOf(const MappingLine& line) {
  bool shared = line.rights[3] == 's';
  if (line.inode == 0) return shared ? MappingKind::kSharedMemory : MappingKind::kPrivateMemory;
  bool memory = startsWith(line.path, "/memfd:") || startsWith(line.path, "/dev/shm/") ||
                startsWith(line.path, "/SYSV") || startsWith(line.path, "/dev/zero") ||
                startsWith(line.path, "/anon_hugepage");
  if (shared) return memory ? MappingKind::kSharedMemory : MappingKind::kSharedFile;
  // A private view of anonymous huge pages is plain private memory.
  if (startsWith(line.path, "/anon_hugepage")) return MappingKind::kPrivateMemory;
  return MappingKind::kPrivateFile;
}

// No other process can map either, so they belong together wherever they lie side by side: an array
// of a program may begin in the data that its file initialises and end in the zeros after it.
bool isPrivate(MappingKind kind) {
  return kind == MappingKind::kPrivateMemory || kind == MappingKind::kPrivateFile;
}

Status refuse(uint64_t address, const std::string& why) {
  return Status(Code::kInvalidArgument, "the memory at " + hex(address) + " " + why);
}

// Checks that `lines` cover [start, end) without a hole and belong together.
Status checkTogether(const std::vector<MappingLine>& lines, uint64_t start, uint64_t end) {
  uint64_t covered = start;
  for (const MappingLine& line : lines) {
    if (line.start > covered) return refuse(covered, "is not mapped");
    if (line.rights[0] != 'r')
      return refuse(line.start, "cannot be read (rights " + std::string(line.rights, 4) + ")");
    if (line.path == "[vvar]" || line.path == "[vdso]" || line.path == "[vsyscall]" ||
        startsWith(line.path, "[vvar")) {
      return Status(Code::kNotSupported,
                    "the memory at " + hex(line.start) + " is a kernel page (" + line.path + ")");
    }
    const MappingLine& first = lines.front();
    MappingKind kind = kindOf(line);
    if (isPrivate(kind) && isPrivate(kindOf(first))) {
      covered = line.end;
      continue;
    }
    if (kind != kindOf(first)) {
      return refuse(line.start, std::string("is ") + mappingKindName(kind) +
                                    " while the range begins in " + mappingKindName(kindOf(first)));
    }
    bool sameFile =
        line.inode == first.inode && line.major == first.major && line.minor == first.minor;
    bool inLine = line.offset - first.offset == line.start - first.start;
    if (!sameFile || !inLine) {
      return refuse(line.start,
                    "is another file, or another place of the file, than " + hex(first.start));
    }
    covered = line.end;
  }
  if (covered < end) return refuse(covered, "is not mapped");
  return Status::ok();
}

// Of a descriptor that may be another thread's. Not through the C library: the thread sanitizer
// takes a look at a descriptor for a use of it.
bool isFileOf(int fd, const MappingLine& line) {
  struct stat file {};
  return ::syscall(SYS_fstat, fd, &file) == 0 && file.st_ino == line.inode &&
         major(file.st_dev) == line.major && minor(file.st_dev) == line.minor;
}

bool canWrite(int fd) {
  int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) == O_RDWR && (flags & O_PATH) == 0;
}

// A duplicate of any descriptor of this process that is the file of `line`; one open for writing
// wins.
Result<Fd> searchOpenFiles(const MappingLine& line) {
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  Fd found;
  if (folder == nullptr && errno == EMFILE)
    return internal::descriptorError(errno, "/proc/self/fd");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {
    char* end = nullptr;
    long number = std::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0') continue;
    int fd = static_cast<int>(number);
    if (!isFileOf(fd, line) || (found && !canWrite(fd))) continue;
    int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) continue;
    auto copy = duplicateFd(fd);
    if (copy.status().code() == Code::kUnavailable) return copy;
    // Another thread may have closed and reused the number in between.
    if (!copy.isOk() || !isFileOf(copy->get(), line)) continue;
    found = std::move(copy).value();
    if (canWrite(found.get())) break;
  }
  return found;
}

// Opens `path` when it is the regular file of `line`. Devices are not opened: to open one can have
// side effects.
Fd openMatching(const std::string& path, const MappingLine& line) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return Fd();
  for (int mode : {O_RDWR, O_RDONLY}) {
    Fd fd(::open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd && isFileOf(fd.get(), line)) return fd;
  }
  return Fd();
}

// Where reserved huge pages are mapped without a file, only smaps tells their size.
size_t pageBytesFromSmaps(uint64_t start) {
  auto smaps = readWhole("/proc/self/smaps", 1 << 30);
  if (!smaps.isOk()) return 0;
  char head[24];
  std::snprintf(head, sizeof head, "%08" PRIx64 "-", start);
  size_t at = smaps->find(head);
  if (at == std::string::npos) return 0;
  at = smaps->find("KernelPageSize:", at);
  if (at == std::string::npos) return 0;
  return std::strtoull(smaps->c_str() + at + 15, nullptr, 10) * 1024;
}

bool isDevice(const MappingLine& line) {
  struct stat file {};
  return ::stat(line.path.c_str(), &file) == 0 && S_ISCHR(file.st_mode) && line.path != "/dev/zero";
}

// The kernel said only that the pages are this process's own now. The program may have made them so
// by writing to a private view of a file; whoever cuts that file takes them away all the same.
AdoptedMapping plainMemory() {
  AdoptedMapping mapping;
  mapping.hasFile = true;
  mapping.pageBytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  mapping.writable = true;
  return mapping;
}

// The one of another mapping of the file, if there is one: then no descriptor is made, and none is
// searched for.
Status findFile(const MappingLine& line, AdoptedMapping& mapping) {
  mapping.file = SharedFd::known(makedev(line.major, line.minor), line.inode, true);
  if (mapping.file) return Status::ok();
  PEERLANE_ASSIGN(Fd file, searchOpenFiles(line));
  if (!file) {
    char name[80];
    std::snprintf(name, sizeof name, "/proc/self/map_files/%" PRIx64 "-%" PRIx64, line.start,
                  line.end);
    file = openMatching(name, line);
  }
  if (!file && !startsWith(line.path, "/memfd:")) file = openMatching(line.path, line);
  if (!file)
    mapping.whyNoFile =
        "no open descriptor of this process is " + line.path +
        ", and /proc/self/map_files may not be opened (needs CAP_CHECKPOINT_RESTORE)";
  mapping.file = SharedFd::ofFile(std::move(file));
  return Status::ok();
}

}  // namespace

const char* mappingKindName(MappingKind kind) {
  switch (kind) {
    case MappingKind::kPrivateMemory: return "private memory";
    case MappingKind::kSharedMemory: return "shared memory";
    case MappingKind::kPrivateFile: return "a private file mapping";
    case MappingKind::kSharedFile: return "a shared file mapping";
  }
  return "unknown memory";
}

Result<std::optional<MappedRange>> mappingsAround(const void* p, size_t bytes) {
  const auto start = reinterpret_cast<uint64_t>(p);
  PEERLANE_ASSIGN(const std::vector<MappingLine> lines, mappingLines(start, start + bytes));
  if (lines.empty() || lines.front().start > start || lines.back().end < start + bytes)
    return std::optional<MappedRange>();
  for (size_t i = 1; i < lines.size(); ++i)
    if (lines[i].start != lines[i - 1].end) return std::optional<MappedRange>();
  return std::optional(MappedRange{reinterpret_cast<std::byte*>(lines.front().start),
                                   lines.back().end - lines.front().start});
}

Result<std::vector<KnownMapping>> mappingsWithin(const void* p, size_t bytes) {
  const auto start = reinterpret_cast<uint64_t>(p);
  PEERLANE_ASSIGN(const std::vector<MappingLine> lines, mappingLines(start, start + bytes));
  std::vector<KnownMapping> found;
  for (const MappingLine& line : lines)
    found.push_back(
        {{reinterpret_cast<std::byte*>(line.start), line.end - line.start}, kindOf(line)});
  return found;
}

Result<std::vector<KnownMapping>> mappingsOf(const void* p, size_t bytes) {
  PEERLANE_ASSIGN(auto found, mappingsWithin(p, bytes));
  auto covered = reinterpret_cast<uint64_t>(p);
  const uint64_t end = covered + bytes;
  for (const KnownMapping& mapping : found) {
    const auto start = reinterpret_cast<uint64_t>(mapping.range.base);
    if (start > covered) break;
    covered = start + mapping.range.bytes;
  }
  if (covered < end) return refuse(covered, "is not mapped");
  return found;
}

Status checkTouchable(const void* p, size_t bytes, Touch touch) {
  const auto start = reinterpret_cast<uint64_t>(p);
  const uint64_t end = start + bytes;
  if (end < start) return refuse(start, "with " + std::to_string(bytes) + " bytes wraps around");
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t firstPage = start / kPage * kPage;
  const int advice = touch == Touch::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (::madvise(reinterpret_cast<void*>(firstPage), end - firstPage, advice) == 0)
    return Status::ok();
  const bool isCut = errno == EFAULT;
  // The memory or the right is missing; or it is memory of a driver, or the kernel does not know
  // this call.
  PEERLANE_ASSIGN(const std::vector<MappingLine> lines, mappingLines(start, end));
  uint64_t covered = start;
  for (const MappingLine& line : lines) {
    if (line.start > covered) return refuse(covered, "is not mapped");
    if (line.rights[0] != 'r' || (touch == Touch::kWrite && line.rights[1] != 'w'))
      return refuse(std::max(line.start, start),
                    std::string("cannot be ") + (touch == Touch::kWrite ? "written" : "read") +
                        " (rights " + std::string(line.rights, 4) + ")");
    covered = line.end;
  }
  if (covered < end) return refuse(covered, "is not mapped");
  if (isCut) return refuse(start, "lies behind the end of its file, in part");
  return Status::ok();
}

Result<AdoptedMapping> findSharedMapping(const void* p, size_t bytes) {
  auto start = reinterpret_cast<uint64_t>(p);
  if (bytes == 0 || start + bytes < start) {
    return Status(Code::kInvalidArgument, "the range at " + hex(start) + " of " +
                                              std::to_string(bytes) +
                                              " bytes is empty or wraps around");
  }
  PEERLANE_ASSIGN(const auto known, linesUnlessPlain(start, start + bytes));
  if (!known) return plainMemory();
  const std::vector<MappingLine>& lines = *known;
  if (lines.empty()) return refuse(start, "is not mapped");
  PEERLANE_RETURN_IF_ERROR(checkTogether(lines, start, start + bytes));
  const MappingLine& first = lines.front();
  AdoptedMapping mapping;
  mapping.kind = kindOf(first);
  mapping.path = first.path;
  mapping.pageBytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  mapping.writable = true;
  for (const MappingLine& line : lines) {
    mapping.writable = mapping.writable && line.rights[1] == 'w';
    mapping.hasFile = mapping.hasFile || kindOf(line) != MappingKind::kPrivateMemory;
  }
  for (const MappingLine& line : lines)
    if (line.inode != 0 && isDevice(line))
      return Status(Code::kNotSupported, "the memory at " + hex(std::max(start, line.start)) +
                                             " belongs to the device " + line.path);
  if (mapping.kind == MappingKind::kPrivateMemory) {
    mapping.hugetlb = startsWith(first.path, "/anon_hugepage");
    if (mapping.hugetlb)
      mapping.pageBytes = first.pageBytes != 0 ? first.pageBytes : pageBytesFromSmaps(first.start);
    return mapping;
  }
  mapping.fileOffset = first.offset + (start - first.start);
  if (mapping.kind == MappingKind::kPrivateFile) return mapping;
  PEERLANE_RETURN_IF_ERROR(findFile(first, mapping));
  if (!mapping.file) return mapping;
  auto pageBytes = sharedMemoryPageBytes(mapping.file.get());
  if (!pageBytes.isOk()) {
    mapping.kind = MappingKind::kSharedFile;
    mapping.file.reset();
    return mapping;
  }
  mapping.kind = MappingKind::kSharedMemory;
  mapping.hugetlb = *pageBytes != mapping.pageBytes;
  mapping.pageBytes = *pageBytes;
  return mapping;
}

}  // namespace peerlane
