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

}  // namespace peerlane
