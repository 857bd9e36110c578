// SPDX-License-Identifier: Apache-2.0
#include "tools/report/output_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

std::string folderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status existsAlready(const std::string& path) {
  return Status(Code::kUnavailable, path + " exists already; --force replaces it");
}

// The mode that open() would have given: these files are made with 0600 until they are complete.
mode_t ordinaryMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

OutputFile::OutputFile(std::string path, Existing existing)
    : path_(std::move(path)), folder_(folderOf(path_)), existing_(existing) {}

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path, Existing existing,
                                                       Naming naming) {
  if (path.empty() || path.back() == '/')
    return Status(Code::kInvalidArgument, "'" + path + "' names no file");
  struct stat found;
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    return Status(Code::kInvalidArgument,
                  path + (S_ISDIR(found.st_mode) ? " is a folder" : " is no file on a disk") +
                      "; a file to be made is expected");
  if (::lstat(path.c_str(), &found) == 0) {
    if (existing == Existing::kRefuse) return existsAlready(path);
  }
  std::unique_ptr<OutputFile> file(new OutputFile(path, existing));
  if (naming == Naming::kUnnamedIfPossible && file->openUnnamed().isOk()) return file;
  PEERLANE_RETURN_IF_ERROR(file->openHidden());
  return file;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!hidden_.empty()) ::unlink(hidden_.c_str());
}

Status OutputFile::openUnnamed() {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  return fd_ >= 0 ? Status::ok() : Status::system(errno, "O_TMPFILE in " + folder_);
}

Status OutputFile::openHidden() {
  std::string name = folder_ + "/.peerlane-XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) return Status::system(errno, "cannot make a file in " + folder_);
  hidden_ = name;
  unfinished_ = RemovedAtSignals(hidden_);
  return Status::ok();
}

Status OutputFile::reserve(uint64_t bytes) {
  if (bytes == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return Status::ok();
  const int error = errno;
  if (error == EOPNOTSUPP || error == ENOSYS || error == EINTR) return Status::ok();
  return Status::system(error, path_ + ": no room for " + std::to_string(bytes) + " bytes");
}

Status OutputFile::append(std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t wrote = ::write(fd_, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0)
      return Status::system(errno, path_ + ": write after " + std::to_string(written_) + " bytes");
    written_ += static_cast<uint64_t>(wrote);
    content = content.subspan(static_cast<size_t>(wrote));
  }
  return Status::ok();
}

Status OutputFile::commit() {
  if (::ftruncate(fd_, static_cast<off_t>(written_)) != 0)
    return Status::system(errno, path_ + ": set its length");
  if (::fchmod(fd_, ordinaryMode()) != 0) return Status::system(errno, path_ + ": set its mode");
  if (::fsync(fd_) != 0) return Status::system(errno, path_ + ": fsync");
  if (hidden_.empty()) {
    // A link refuses to replace anything; to replace, a name to rename from is needed.
    if (existing_ == Existing::kReplace) {
      hidden_ = folder_ + "/.peerlane-" + std::to_string(::getpid()) + "-" + std::to_string(fd_);
      ::unlink(hidden_.c_str());
    }
    PEERLANE_RETURN_IF_ERROR(nameAs(existing_ == Existing::kReplace ? hidden_ : path_));
  }
  if (!hidden_.empty()) {
    const unsigned flags = existing_ == Existing::kRefuse ? RENAME_NOREPLACE : 0;
    if (::syscall(SYS_renameat2, AT_FDCWD, hidden_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0)
      return errno == EEXIST ? existsAlready(path_) : Status::system(errno, "rename to " + path_);
    hidden_.clear();
  }
  // The name is as durable as the content once the folder is on the disk too.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return Status::ok();
}

Status OutputFile::nameAs(const std::string& name) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd_);
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0)
    return Status::ok();
  return errno == EEXIST ? existsAlready(name) : Status::system(errno, "name " + name);
}

std::string safeFileName(const std::string& name) {
  std::string safe = name.substr(name.rfind('/') + 1);  // npos + 1 is 0
  std::erase_if(safe, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  safe.erase(0, safe.find_first_not_of('.'));
  if (safe.size() > 255) safe.resize(255);
  return safe.empty() ? "received" : safe;
}

std::string shownName(const std::string& name) {
  const auto isControl = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (std::none_of(name.begin(), name.end(), isControl)) return name;
  return peerlane::quoted(name, 4096);
}

}  // namespace peerlane
