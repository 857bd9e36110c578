// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/mapping_lines.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "peerlane/core/counted_list.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/transfer_status.h"

namespace peerlane {
namespace {

// The kernel's ABI (include/uapi/linux/fs.h of Linux 6.11), which older headers do not have.
struct ProcmapQuery {
  uint64_t size;
  uint64_t queryFlags;
  uint64_t queryAddress;
  uint64_t start;
  uint64_t end;
  uint64_t flags;
  uint64_t pageBytes;
  uint64_t offset;
  uint64_t inode;
  uint32_t major;
  uint32_t minor;
  uint32_t nameBytes;  // in: room; out: with the zero behind it
  uint32_t buildIdBytes;
  uint64_t nameAddress;
  uint64_t buildIdAddress;
};
static_assert(sizeof(ProcmapQuery) == 104);
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr uint64_t kReadable = 1, kWritable = 2, kExecutable = 4, kShared = 8;
constexpr uint64_t kCoveringOrNext = 0x10;

Result<Fd> openOwn(const char* path) {
  Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return internal::descriptorError(errno, std::string("open ") + path);
  return fd;
}

// The mapping that has `address`, or the next one. False: errno says why, ENOENT that there is
// none.
bool query(int maps, uint64_t address, MappingLine& line) {
  std::array<char, PATH_MAX> name;
  ProcmapQuery asked{};
  asked.size = sizeof(asked);
  asked.queryFlags = kCoveringOrNext;
  asked.queryAddress = address;
  asked.nameAddress = reinterpret_cast<uint64_t>(name.data());
  asked.nameBytes = name.size();
  if (::ioctl(maps, kProcmapQuery, &asked) != 0) return false;
  Steps::add(1);
  line.start = asked.start;
  line.end = asked.end;
  const auto right = [&](uint64_t bit, char has, char lacks) {
    return (asked.flags & bit) != 0 ? has : lacks;
  };
  const char rights[] = {right(kReadable, 'r', '-'), right(kWritable, 'w', '-'),
                         right(kExecutable, 'x', '-'), right(kShared, 's', 'p'), '\0'};
  std::copy(std::begin(rights), std::end(rights), line.rights);
  line.offset = asked.offset;
  line.major = asked.major;
  line.minor = asked.minor;
  line.inode = asked.inode;
  line.path.assign(name.data(), asked.nameBytes == 0 ? 0 : asked.nameBytes - 1);
  line.pageBytes = asked.pageBytes;
  return true;
}

// Nothing: this kernel, or a filter of system calls, does not answer.
std::optional<std::vector<MappingLine>> queried(int maps, uint64_t start, uint64_t end) {
  std::vector<MappingLine> lines;
  for (uint64_t at = start; at < end;) {
    MappingLine line;
    if (!query(maps, at, line)) {
      if (errno == ENOENT) break;
      return {};
    }
    if (line.start >= end) break;
    at = line.end;
    lines.push_back(std::move(line));
  }
  return lines;
}

bool parseLine(const std::string& text, MappingLine& line) {
  int pathAt = 0;
  const int fields = std::sscanf(
      text.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &line.start,
      &line.end, line.rights, &line.offset, &line.major, &line.minor, &line.inode, &pathAt);
  if (fields < 7) return false;
  line.path = text.substr(static_cast<size_t>(pathAt));
  return true;
}

// All lines of a text from the first mapping on, of which those that overlap [start, end) are
// taken. Reads on from where it is; false: what follows lies behind the range.
class LineTaker {
 public:
  LineTaker(uint64_t start, uint64_t end) : start_(start), end_(end) {}

  bool take(std::string_view text) {
    Steps::add(1);
    uint64_t from = 0, to = 0;
    const char* const last = text.data() + text.size();
    const auto first = std::from_chars(text.data(), last, from, 16);
    if (first.ptr == last || *first.ptr != '-') return true;
    std::from_chars(first.ptr + 1, last, to, 16);
    if (from >= end_) return false;
    MappingLine line;
    if (to > start_ && parseLine(std::string(text), line)) lines_.push_back(std::move(line));
    return true;
  }
  std::vector<MappingLine> lines() && { return std::move(lines_); }

 private:
  const uint64_t start_;
  const uint64_t end_;
  std::vector<MappingLine> lines_;
};

Result<std::vector<MappingLine>> readLines(int maps, uint64_t start, uint64_t end) {
  LineTaker taker(start, end);
  std::string text;
  std::array<char, 16384> piece;
  for (;;) {
    const ssize_t got = ::read(maps, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(errno, "read /proc/self/maps");
    if (got == 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
    size_t at = 0;
    for (size_t next; (next = text.find('\n', at)) != std::string::npos; at = next + 1)
      if (!taker.take(std::string_view(text).substr(at, next - at)))
        return std::move(taker).lines();
    text.erase(0, at);
  }
  return std::move(taker).lines();
}

// --- Pages ---

constexpr uint64_t kPageBytes = 4096;
// To look at more takes longer than to read the mappings of most processes.
constexpr uint64_t kMostPages = 16384;
constexpr uint64_t kMostBroughtIn = 64;
// Of an entry of /proc/self/pagemap.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFileOrShared = uint64_t{1} << 61;
constexpr uint64_t kExclusive = uint64_t{1} << 56;

// Calls look(entry) for each page until it is false; then, and after an error, it is false itself.
template <typename Look>
bool eachPage(int pagemap, uint64_t start, uint64_t end, const Look& look) {
  std::array<uint64_t, 512> entries;
  for (uint64_t at = start / kPageBytes; at < end / kPageBytes;) {
    const size_t wanted = std::min<uint64_t>(entries.size(), end / kPageBytes - at);
    const ssize_t got = ::pread(pagemap, entries.data(), wanted * sizeof(uint64_t),
                                static_cast<off_t>(at * sizeof(uint64_t)));
    if (got != static_cast<ssize_t>(wanted * sizeof(uint64_t))) return false;
    for (size_t i = 0; i < wanted; ++i)
      if (!look(entries[i])) return false;
    at += wanted;
  }
  return true;
}

bool areBrought(uint64_t start, uint64_t end, int advice) {
  return ::madvise(reinterpret_cast<void*>(start), end - start, advice) == 0;
}

// A call that changes nothing. Of reserved huge pages the kernel refuses a part.
bool isOfOrdinaryPages(uint64_t start, uint64_t end) {
  constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
  const uint64_t page = start % kHugeBytes == 0 ? start + kPageBytes : start;
  if (page >= end) return false;
  void* const at = reinterpret_cast<void*>(page);
  return ::mremap(at, kPageBytes, kPageBytes, 0) == at;
}

// That a page is private is known once it is there: then the kernel says whether it is of a file,
// or shared. It is brought in by reading, because a store would make a page of a private view of a
// file a page of its own. The call that brings it in for writing tells the rights.
bool isPlainMemory(uint64_t start, uint64_t end) {
  start = start / kPageBytes * kPageBytes;
  end = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes) || start >= end ||
      end - start > kMostPages * kPageBytes)
    return false;
  Steps::add((end - start) / kPageBytes);
  const auto pagemap = openOwn("/proc/self/pagemap");
  if (!pagemap.isOk()) return false;
  uint64_t absent = 0, notOwn = 0;
  const auto mayBe = [&](uint64_t entry) {
    absent += (entry & kPresent) == 0;
    notOwn += (entry & kExclusive) == 0;
    return (entry & (kOfFileOrShared | kSwapped)) == 0 && notOwn <= kMostBroughtIn;
  };
  if (!eachPage(pagemap->get(), start, end, mayBe)) return false;
  if (!areBrought(start, end, MADV_POPULATE_READ)) return false;
  const auto is = [](uint64_t entry) {
    return (entry & kPresent) != 0 && (entry & kOfFileOrShared) == 0;
  };
  if (absent != 0 && !eachPage(pagemap->get(), start, end, is)) return false;
  return areBrought(start, end, MADV_POPULATE_WRITE) && isOfOrdinaryPages(start, end);
}

}  // namespace

Result<std::vector<MappingLine>> mappingLines(uint64_t start, uint64_t end) {
  PEERLANE_ASSIGN(const Fd maps, openOwn("/proc/self/maps"));
  if (auto lines = queried(maps.get(), start, end)) return std::move(*lines);
  return readLines(maps.get(), start, end);
}

Result<std::optional<std::vector<MappingLine>>> linesUnlessPlain(uint64_t start, uint64_t end) {
  using Lines = std::optional<std::vector<MappingLine>>;
  PEERLANE_ASSIGN(const Fd maps, openOwn("/proc/self/maps"));
  if (Lines lines = queried(maps.get(), start, end)) return lines;
  if (isPlainMemory(start, end)) return Lines();
  PEERLANE_ASSIGN(std::vector<MappingLine> read, readLines(maps.get(), start, end));
  return Lines(std::move(read));
}

}  // namespace peerlane
