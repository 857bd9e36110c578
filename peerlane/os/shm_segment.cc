// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/shm_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/file.h"
#include "peerlane/os/transfer_status.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace peerlane {
namespace {

constexpr int kMaxNumaNodes = 1024;

size_t roundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::string firstWord(const std::string& path) {
  auto text = readWhole(path, 4096);
  if (!text.isOk()) return {};
  return text->substr(0, text->find_first_of(" \n"));
}

// The chosen entry of a kernel list such as "always [madvise] never"; empty when unknown.
std::string chosenEntry(const std::string& path) {
  auto text = readWhole(path, 4096);
  if (!text.isOk()) return {};
  size_t open = text->find('[');
  size_t close = text->find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return text->substr(open + 1, close - open - 1);
}

Status noHugePages(size_t bytes) {
  auto meminfo = readWhole("/proc/meminfo", 1 << 16);
  std::string counts;
  if (meminfo.isOk()) {
    for (const char* key : {"HugePages_Total:", "HugePages_Free:", "Hugepagesize:"}) {
      size_t at = meminfo->find(key);
      if (at == std::string::npos) continue;
      counts += (counts.empty() ? "" : ", ") + meminfo->substr(at, meminfo->find('\n', at) - at);
    }
  }
  return Status(
      Code::kUnavailable,
      "no reserved huge pages for " + std::to_string(bytes) + " bytes (" + counts +
          "); reserve some through /proc/sys/vm/nr_hugepages, or do not insist on "
          "them (PEERLANE_HUGEPAGES=auto; for one allocation MemoryOptions::hugePages kOff)");
}

// What the system says where it has none, or no such pages at all.
bool isLackOfHugePages(const SegmentOptions& options, int error) {
  return options.hugePages == HugePages::kOn &&
         (error == ENOMEM || error == ENOSPC || error == EINVAL || error == ENOSYS);
}

Result<Fd> makeMemfd(size_t bytes, const SegmentOptions& options) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (options.hugePages == HugePages::kOn) flags |= MFD_HUGETLB;
  // Some systems make no file that could be run (vm.memfd_noexec); older ones do not know the flag.
  Fd fd(::memfd_create(options.name.c_str(), flags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create(options.name.c_str(), flags));
  if (!fd) {
    if (isLackOfHugePages(options, errno)) return noHugePages(bytes);
    return internal::descriptorError(errno, "memfd_create of \"" + options.name + "\"");
  }
  return fd;
}

Status checkNode(int node) {
  auto online = readWhole("/sys/devices/system/node/online", 4096);
  std::string list = online.isOk() ? online->substr(0, online->find('\n')) : std::string("0");
  bool exists =
      node == 0 ||
      (node > 0 && node < kMaxNumaNodes &&
       ::access(("/sys/devices/system/node/node" + std::to_string(node)).c_str(), F_OK) == 0);
  if (exists) return Status::ok();
  return Status(Code::kInvalidArgument,
                "NUMA node " + std::to_string(node) + " does not exist; online are " + list);
}

// Puts the pages of a fresh shared mapping on `node` as far as they go. Returns errno or 0.
int preferNode(void* address, size_t bytes, int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNumaNodes / kBits> mask{};
  mask[node / kBits] = 1UL << (node % kBits);
  // The kernel takes the number of bits plus one.
  long rc = ::syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask.data(), kMaxNumaNodes + 1, 0);
  return rc == 0 ? 0 : errno;
}

Status checkCreate(size_t bytes, const SegmentOptions& options) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 4) {
    return Status(Code::kInvalidArgument, "a shared segment of " + std::to_string(bytes) +
                                              " bytes; accepted are 1 to 2^62");
  }
  if (options.name.size() > 200 || options.name.find('/') != std::string::npos) {
    return Status(Code::kInvalidArgument, "segment name \"" + options.name +
                                              "\"; accepted are up to 200 bytes without '/'");
  }
  return options.numaNode ? checkNode(*options.numaNode) : Status::ok();
}

// A file in memory counts as a file: above this limit ftruncate() would end the program by SIGXFSZ.
Status checkFileSizeLimit(uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      bytes <= limit.rlim_cur)
    return Status::ok();
  return Status(Code::kUnavailable, "a shared segment of " + std::to_string(bytes) +
                                        " bytes; this process may make " + "files of at most " +
                                        std::to_string(limit.rlim_cur) +
                                        " bytes, also in memory; raise `ulimit -f`");
}

}  // namespace

Result<std::unique_ptr<SharedSegment>> SharedSegment::create(size_t bytes,
                                                             const SegmentOptions& options) {
  PEERLANE_RETURN_IF_ERROR(checkCreate(bytes, options));
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  PEERLANE_ASSIGN(Fd made, makeMemfd(bytes, options));
  segment->fd_ = SharedFd::ofFile(std::move(made));  // with those who register parts of it
  int fd = segment->fd_.get();
  PEERLANE_ASSIGN(segment->pageBytes_, sharedMemoryPageBytes(fd));
  size_t fileBytes = roundUp(bytes, segment->pageBytes_);
  PEERLANE_RETURN_IF_ERROR(checkFileSizeLimit(fileBytes));
  if (::ftruncate(fd, static_cast<off_t>(fileBytes)) < 0) {
    if (isLackOfHugePages(options, errno)) return noHugePages(bytes);
    return Status::system(errno, "ftruncate of a shared segment to " + std::to_string(fileBytes));
  }
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
    return Status::system(errno, "sealing a shared segment");
  }
  Status mapped = segment->map(MemoryOf::kThisProcess, bytes, 0, true);
  if (!mapped.isOk()) {
    bool huge = options.hugePages == HugePages::kOn && mapped.code() == Code::kOutOfMemory;
    return huge ? noHugePages(bytes) : mapped;
  }
  PEERLANE_RETURN_IF_ERROR(segment->place(options));
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::import(SharedFd fd, size_t bytes,
                                                             uint64_t offset, bool writable) {
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  segment->fd_ = std::move(fd);
  PEERLANE_ASSIGN(segment->pageBytes_, sharedMemoryPageBytes(segment->fd_.get()));
  int seals = ::fcntl(segment->fd_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kPermissionDenied,
                  "the imported memory is not sealed against shrinking (F_SEAL_SHRINK): its owner "
                  "could cut it off under us");
  }
  // The size is read after the seal was seen: from then on it can only grow.
  struct stat file {};
  if (::fstat(segment->fd_.get(), &file) < 0) return Status::system(errno, "fstat of a segment");
  auto size = static_cast<uint64_t>(file.st_size);
  if (bytes == 0 || offset > size || bytes > size - offset) {
    return Status(Code::kInvalidArgument,
                  "the range [" + std::to_string(offset) + ", +" + std::to_string(bytes) +
                      ") is not within the imported memory of " + std::to_string(size) + " bytes");
  }
  PEERLANE_RETURN_IF_ERROR(segment->map(MemoryOf::kPeer, bytes, offset, writable));
  return segment;
}

Status SharedSegment::map(MemoryOf owner, size_t bytes, uint64_t offset, bool writable) {
  size_t before = offset % pageBytes_;
  size_t mappingBytes = roundUp(before + bytes, pageBytes_);
  int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* address =
      mapSpread(owner, mappingBytes, protection, fd_.get(), offset - before, pageBytes_);
  if (address == MAP_FAILED) {
    Status plain = Status::system(
        errno, "mapping " + std::to_string(mappingBytes) + " bytes of shared memory");
    std::string text(plain.message());
    if (plain.systemError() == ENOMEM) return Status(Code::kOutOfMemory, text);
    if (plain.systemError() == EACCES || plain.systemError() == EPERM) {
      return Status(Code::kPermissionDenied, text + (writable ? " (for writing)" : ""));
    }
    return plain;
  }
  mapping_ = address;
  mappingBytes_ = mappingBytes;
  data_ = static_cast<std::byte*>(address) + before;
  bytes_ = bytes;
  offset_ = offset;
  writable_ = writable;
  return Status::ok();
}

// Placement must come before the first touch of the pages.
Status SharedSegment::place(const SegmentOptions& options) {
  const auto regret = [this](const std::string& sentence) {
    PEERLANE_LOG_DEBUG("a shared segment of {} bytes: {}", bytes_, sentence);
  };
  // Asks the kernel only when it can matter: no page that it calls huge is smaller than 1 MiB.
  const auto bigEnough = [this] {
    if (bytes_ < size_t{1} << 20) return false;
    const std::string huge = firstWord("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    return !huge.empty() && huge.size() < 12 && bytes_ >= std::stoull(huge);
  };
  if (options.hugePages == HugePages::kAuto && bigEnough()) {
    std::string granted = chosenEntry("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if (::madvise(mapping_, mappingBytes_, MADV_HUGEPAGE) != 0) {
      regret("huge pages: " + std::string(Status::system(errno, "madvise").message()));
    } else if (granted == "never" || granted == "deny") {
      regret("huge pages: /sys/kernel/mm/transparent_hugepage/shmem_enabled says " + granted);
    }
  } else if (options.hugePages == HugePages::kOff) {
    // The kernel refuses this where it has no huge pages at all, which is the state that was asked
    // for.
    (void)::madvise(mapping_, mappingBytes_, MADV_NOHUGEPAGE);
  }
  if (options.numaNode) {
    int error = preferNode(mapping_, mappingBytes_, *options.numaNode);
    if (error != 0) {
      regret("NUMA node " + std::to_string(*options.numaNode) + ": " +
             std::string(Status::system(error, "mbind").message()));
    }
  }
  if (!options.populate) return Status::ok();
  if (::madvise(mapping_, mappingBytes_, MADV_POPULATE_WRITE) != 0) {
    int error = errno;
    if (error == ENOMEM || error == EFAULT) {
      return Status(Code::kOutOfMemory, "no memory for the " + std::to_string(mappingBytes_) +
                                            " bytes of a shared segment");
    }
    regret("populate: " + std::string(Status::system(error, "madvise").message()));
  }
  return Status::ok();
}

SharedSegment::~SharedSegment() {
  if (mapping_ != nullptr) ::munmap(mapping_, mappingBytes_);
}

Result<size_t> sharedMemoryPageBytes(int fd) {
  struct statfs system {};
  if (::fstatfs(fd, &system) < 0) {
    return Status::system(errno, "fstatfs of descriptor " + std::to_string(fd));
  }
  struct stat file {};
  if (::fstat(fd, &file) < 0) return Status::system(errno, "fstat of a shared segment");
  // f_type is signed and sign-extended on some builds: compare the 32 bits.
  auto type = static_cast<uint32_t>(system.f_type);
  bool isMemory = type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC;
  if (!isMemory || !S_ISREG(file.st_mode)) {
    return Status(Code::kInvalidArgument,
                  "descriptor " + std::to_string(fd) +
                      " is not shared memory; accepted are memfd, tmpfs and hugetlb files");
  }
  if (type == HUGETLBFS_MAGIC) return static_cast<size_t>(system.f_bsize);
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

Status sealAgainstWriters(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0) return Status::ok();
  if (errno == EINVAL) return Status(Code::kNotSupported, "F_SEAL_FUTURE_WRITE needs Linux 5.1");
  const Status plain = Status::system(errno, "sealing memory against writers");
  return Status(Code::kPermissionDenied, std::string(plain.message()));
}

bool isSealedAgainstWriters(int fd) {
  const int seals = fd < 0 ? -1 : ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) != 0;
}

Status trySeal(int fd) {
  auto pageBytes = sharedMemoryPageBytes(fd);
  if (!pageBytes.isOk()) return pageBytes.status();
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return Status::ok();
  if (seals < 0 || (seals & F_SEAL_SEAL) != 0) {
    return Status(Code::kPermissionDenied,
                  "the shared memory takes no seals; accepted are memfds made with "
                  "MFD_ALLOW_SEALING");
  }
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) return Status::ok();
  Status plain = Status::system(errno, "sealing adopted memory against shrinking");
  return Status(Code::kPermissionDenied, std::string(plain.message()));
}

}  // namespace peerlane
