// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/file_content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace peerlane {
namespace {

Result<std::vector<std::byte>> contentOf(int descriptor, const std::string& path) {
  struct stat found;
  if (::fstat(descriptor, &found) != 0) return Status::system(errno, "cannot read " + path);
  if (!S_ISREG(found.st_mode) || found.st_size > static_cast<off_t>(kLargestContent))
    return Status(Code::kUnavailable,
                  path + " is " + (S_ISREG(found.st_mode) ? "too large" : "no file on a disk") +
                      "; a file of at most 256 MiB is expected");
  std::vector<std::byte> content(static_cast<size_t>(found.st_size));
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(descriptor, content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(errno, "cannot read " + path);
    if (got == 0) break;  // it became shorter meanwhile
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

}  // namespace

Result<std::vector<std::byte>> contentOfFile(const std::string& path) {
  // A pipe of that name shall not make this wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return Status::system(errno, "cannot read " + path);
  auto content = contentOf(descriptor, path);
  ::close(descriptor);
  return content;
}

}  // namespace peerlane
