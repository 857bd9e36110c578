// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/context_sockets.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace peerlane::p2p {
namespace {

// The names of a context's sockets hold the context's own.
std::vector<std::string> socketsOf(const Context& context, const std::string& directory) {
  std::vector<std::string> paths;
  if (directory.empty()) return paths;
  DIR* const open = ::opendir(directory.c_str());
  if (open == nullptr) return paths;
  const std::string id = context.id().substr(0, 8);
  while (const dirent* const entry = ::readdir(open)) {
    const std::string_view name(entry->d_name);
    if (name.starts_with("peerlane") && name.find(id) != std::string_view::npos)
      paths.push_back(directory + "/" + entry->d_name);
  }
  (void)::closedir(open);
  return paths;
}

}  // namespace

void ContextSockets::add(const Context& context, const std::string& directory) {
  std::vector<std::string> paths = socketsOf(context, directory);
  if (paths.empty()) return;
  // A forked child inherits the registration, so the flag is right there, too.
  static std::atomic_flag isRegistered;
  if (!isRegistered.test_and_set()) (void)std::atexit(atExit_);
  const MutexLock lock(mutex_);
  std::move(paths.begin(), paths.end(), std::back_inserter(paths_));
}

void ContextSockets::remove() {
  const MutexLock lock(mutex_);
  for (const std::string& path : paths_) (void)::unlink(path.c_str());
}

}  // namespace peerlane::p2p
