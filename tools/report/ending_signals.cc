// SPDX-License-Identifier: Apache-2.0
#include "tools/report/ending_signals.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "peerlane/session/context/context.h"

namespace peerlane {

// Constant once a handler may see it. Kept for the life of the process: a handler may look at one
// that is forgotten at this moment.
struct RemovedAtSignals::File {
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;

  // Only calls that a handler of a signal may make.
  void remove() const {
    struct stat now;
    if (::lstat(path.c_str(), &now) == 0 && now.st_dev == device && now.st_ino == inode)
      ::unlink(path.c_str());
  }
};

namespace {

using File = RemovedAtSignals::File;

std::array<std::atomic<const File*>, 8> files{};  // release by the owner, acquire by a handler

void removeAndEnd(int signal) {
  Context::removeSocketFiles();
  for (const auto& slot : files)
    if (const File* const file = slot.load(std::memory_order_acquire)) file->remove();
  ::raise(signal);  // its action is the default one again
}

const File* keep(File file) {
  static std::mutex mutex;
  static auto* const all = new std::deque<File>;  // never destroyed: see File
  const std::lock_guard<std::mutex> lock(mutex);
  return &all->emplace_back(std::move(file));
}

}  // namespace

void takeFilesAwayAtSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action;
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = removeAndEnd;
    action.sa_flags = SA_RESETHAND;
    ::sigaction(signal, &action, nullptr);
  }
}

RemovedAtSignals::RemovedAtSignals(const std::string& now, const std::string& later) {
  struct stat found;
  if (::lstat(now.c_str(), &found) != 0) return;
  file_ = keep({.path = later, .device = found.st_dev, .inode = found.st_ino});
  for (auto& slot : files) {
    const File* none = nullptr;
    if (slot.compare_exchange_strong(none, file_, std::memory_order_acq_rel)) return;
  }
}

RemovedAtSignals::RemovedAtSignals(RemovedAtSignals&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)) {}

RemovedAtSignals& RemovedAtSignals::operator=(RemovedAtSignals&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

void RemovedAtSignals::remove() {
  if (file_ != nullptr) file_->remove();
  forget();
}

void RemovedAtSignals::forget() {
  for (auto& slot : files) {
    const File* mine = file_;
    if (mine != nullptr && slot.compare_exchange_strong(mine, nullptr, std::memory_order_acq_rel))
      break;
  }
  file_ = nullptr;
}

}  // namespace peerlane
