// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/host_identity.h"

#include <sys/stat.h>

#include "peerlane/os/file.h"

namespace peerlane {

Result<std::string> bootId() {
  PEERLANE_ASSIGN(std::string text, readWhole("/proc/sys/kernel/random/boot_id", 4096));
  std::string id = text.substr(0, text.find('\n'));
  if (id.size() != 36) {
    return Status(Code::kSystem, "/proc/sys/kernel/random/boot_id has " +
                                     std::to_string(id.size()) + " characters instead of 36");
  }
  return id;
}

namespace {

uint64_t inodeOf(const std::string& process, const std::string& name) {
  struct stat file {};
  return ::stat(("/proc/" + process + "/ns/" + name).c_str(), &file) == 0 ? file.st_ino : 0;
}

}  // namespace

uint64_t namespaceInode(const std::string& name) {
  return inodeOf("self", name);
}

uint64_t namespaceInodeOf(pid_t pid, const std::string& name) {
  return inodeOf(std::to_string(pid), name);
}

}  // namespace peerlane
