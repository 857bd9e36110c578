// SPDX-License-Identifier: Apache-2.0
#include "tools/file/ticket_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace peerlane {
namespace {

constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Everything that the handler of a signal may look at: set before it is installed.
std::string writtenPath;
struct stat written;

// Only calls that a handler of a signal may make.
void removeWritten() {
  struct stat now;
  if (::lstat(writtenPath.c_str(), &now) == 0 && now.st_dev == written.st_dev &&
      now.st_ino == written.st_ino)
    ::unlink(writtenPath.c_str());
}

void removeAndEnd(int signal) {
  removeWritten();
  ::raise(signal);  // its action is the default one again
}

void onEndingSignals(void (*handler)(int)) {
  for (const int signal : kEndingSignals) {
    struct sigaction before;
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // as under nohup
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESETHAND;
    ::sigaction(signal, &action, nullptr);
  }
}

Status writeLine(int descriptor, const std::string& ticket, const std::string& path) {
  const std::string line = ticket + "\n";
  errno = 0;
  const ssize_t wrote = ::write(descriptor, line.data(), line.size());
  const int error = wrote < 0 ? errno : wrote < static_cast<ssize_t>(line.size()) ? ENOSPC : 0;
  const int closed = ::close(descriptor) == 0 ? 0 : errno;
  if (error == 0 && closed == 0) return Status::ok();
  return Status::system(error != 0 ? error : closed, "cannot write the ticket file " + path);
}

// Complete under another name, then renamed.
Status makeFile(const std::string& path, const std::string& ticket) {
  std::string hidden = path + ".XXXXXX";
  const int descriptor = ::mkostemp(hidden.data(), O_CLOEXEC);  // with the rights 0600
  if (descriptor < 0) return Status::system(errno, "cannot make the ticket file " + path);
  Status status = writeLine(descriptor, ticket, path);
  if (status.isOk() && ::lstat(hidden.c_str(), &written) != 0)
    status = Status::system(errno, "cannot make the ticket file " + path);
  // From here on a file of this user has the name.
  if (status.isOk()) onEndingSignals(removeAndEnd);
  if (status.isOk() && ::rename(hidden.c_str(), path.c_str()) != 0)
    status = Status::system(errno, "cannot make the ticket file " + path);
  if (!status.isOk()) ::unlink(hidden.c_str());
  return status;
}

}  // namespace

Result<std::unique_ptr<TicketFile>> TicketFile::create(const std::string& path,
                                                       const std::string& ticket) {
  struct stat found;
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor < 0) return Status::system(errno, "cannot write the ticket file " + path);
    PEERLANE_RETURN_IF_ERROR(writeLine(descriptor, ticket, path));
    return std::unique_ptr<TicketFile>(nullptr);
  }
  writtenPath = path;
  PEERLANE_RETURN_IF_ERROR(makeFile(path, ticket));
  return std::unique_ptr<TicketFile>(new TicketFile());
}

TicketFile::~TicketFile() {
  onEndingSignals(SIG_DFL);
  removeWritten();
}

}  // namespace peerlane
