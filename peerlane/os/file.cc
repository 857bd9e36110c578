// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "peerlane/os/fd.h"

namespace peerlane {
namespace {

Status fileStatus(int error, const std::string& what) {
  Status plain = Status::system(error, what);
  std::string text(plain.message());
  if (error == ENOENT || error == ENOTDIR) return Status(Code::kUnavailable, text);
  if (error == EACCES || error == EPERM || error == EROFS) {
    return Status(Code::kPermissionDenied, text);
  }
  return plain;
}

std::string folderOf(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash + 1);
}

Status writeAndSync(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    ssize_t wrote = ::write(fd, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return fileStatus(errno, "write " + path);
    content.remove_prefix(static_cast<size_t>(wrote));
  }
  if (::fsync(fd) < 0) return fileStatus(errno, "fsync " + path);
  return Status::ok();
}

}  // namespace

Result<std::string> readWhole(const std::string& path, size_t maxBytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fileStatus(errno, "open " + path);
  struct stat file {};
  if (::fstat(fd.get(), &file) < 0) return fileStatus(errno, "fstat " + path);
  std::string content;
  size_t used = 0;
  // One byte more than reported tells the end apart from a file that grew or reports no size.
  size_t room = std::min(maxBytes, static_cast<size_t>(file.st_size)) + 1;
  while (true) {
    if (content.size() < room) content.resize(room);
    ssize_t got = ::read(fd.get(), content.data() + used, content.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fileStatus(errno, "read " + path);
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (used > maxBytes) {
      return Status(Code::kInvalidArgument,
                    "the file " + path + " has more than " + std::to_string(maxBytes) + " bytes");
    }
    if (used == content.size()) room = std::min(maxBytes + 1, std::max<size_t>(2 * used, 4096));
  }
  content.resize(used);
  return content;
}

Status writeAtomic(const std::string& path, std::string_view content, unsigned mode) {
  std::string folder = folderOf(path);
  std::string temporary = path + ".XXXXXX";
  Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return fileStatus(errno, "make a temporary file for " + path);
  Status status = writeAndSync(fd.get(), content, temporary);
  if (status.isOk() && ::fchmod(fd.get(), mode) < 0)
    status = fileStatus(errno, "chmod " + temporary);
  if (status.isOk() && ::rename(temporary.c_str(), path.c_str()) < 0) {
    status = fileStatus(errno, "rename " + temporary + " to " + path);
  }
  if (!status.isOk()) {
    ::unlink(temporary.c_str());
    return status;
  }
  // The name itself is durable only with its folder; file systems that cannot sync one have no need
  // to.
  Fd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) (void)::fsync(directory.get());
  return Status::ok();
}

}  // namespace peerlane
