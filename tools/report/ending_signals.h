// SPDX-License-Identifier: Apache-2.0
//
// What a command takes away when a signal of a shell (SIGINT, SIGTERM, SIGHUP) ends it: files of
// its own that would stay. Its end is the signal's all the same: the shell sees it, and peers
// notice a process that has gone. A signal that was ignored when the command began, as under nohup,
// stays so. Any thread.
#pragma once

#include <string>

namespace peerlane {

// Once, before other threads: from now on the sockets of contexts (PEERLANE_SOCKET_DIR) and the
// files below go with the process.
void takeFilesAwayAtSignals();

// A file, to be removed at such a signal while this object lives, unless another file has taken the
// name since. At most 8 at a time; more are not removed.
class RemovedAtSignals {
 public:
  RemovedAtSignals() = default;  // none
  explicit RemovedAtSignals(const std::string& path) : RemovedAtSignals(path, path) {}
  // The file is at `now`, and will have the name `later`.
  RemovedAtSignals(const std::string& now, const std::string& later);
  ~RemovedAtSignals() { forget(); }
  RemovedAtSignals(RemovedAtSignals&& other) noexcept;
  RemovedAtSignals& operator=(RemovedAtSignals&& other) noexcept;

  // Removes the file now, by the same rule, and forgets it.
  void remove();
  void forget();
  struct File;

 private:
  const File* file_ = nullptr;
};

}  // namespace peerlane
