// SPDX-License-Identifier: Apache-2.0
#include "tools/file/ticket_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace peerlane {
namespace {

Status writeLine(int descriptor, const std::string& ticket, const std::string& path) {
  const std::string line = ticket + "\n";
  errno = 0;
  const ssize_t wrote = ::write(descriptor, line.data(), line.size());
  const int error = wrote < 0 ? errno : wrote < static_cast<ssize_t>(line.size()) ? ENOSPC : 0;
  const int closed = ::close(descriptor) == 0 ? 0 : errno;
  if (error == 0 && closed == 0) return Status::ok();
  return Status::system(error != 0 ? error : closed, "cannot write the ticket file " + path);
}

// Complete under another name, then renamed. `written`: the file, for its end.
Status makeFile(const std::string& path, const std::string& ticket, RemovedAtSignals& written) {
  std::string hidden = path + ".XXXXXX";
  const int descriptor = ::mkostemp(hidden.data(), O_CLOEXEC);  // with the rights 0600
  if (descriptor < 0) return Status::system(errno, "cannot make the ticket file " + path);
  RemovedAtSignals unfinished(hidden);
  Status status = writeLine(descriptor, ticket, path);
  // Known by its final name before it has it.
  if (status.isOk()) written = RemovedAtSignals(hidden, path);
  if (status.isOk() && ::rename(hidden.c_str(), path.c_str()) != 0)
    status = Status::system(errno, "cannot make the ticket file " + path);
  if (status.isOk()) return status;
  ::unlink(hidden.c_str());
  written = RemovedAtSignals();
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
  std::unique_ptr<TicketFile> file(new TicketFile());
  PEERLANE_RETURN_IF_ERROR(makeFile(path, ticket, file->written_));
  return file;
}

TicketFile::~TicketFile() {
  written_.remove();
}

}  // namespace peerlane
