// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/socket_files.h"

#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace peerlane {

// Stays for the life of the process, and is used again, so that a handler may walk over all.
struct SocketFile::Entry {
  static constexpr size_t kPathBytes = sizeof(sockaddr_un::sun_path);

  std::atomic<bool> isTaken{true};
  // Odd: path and process stand. Release by the owner; a reader acquires it, and looks again after
  // it has copied the path.
  std::atomic<uint32_t> turn{0};
  std::atomic<pid_t> process{0};
  std::array<std::atomic<char>, kPathBytes + 1> path{};
  Entry* next = nullptr;  // constant once the entry is in the list
};

namespace {

using Entry = SocketFile::Entry;

std::atomic<Entry*> entries{nullptr};  // release by who adds one, acquire by all

Entry& takeEntry() {
  for (Entry* entry = entries.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next)
    if (!entry->isTaken.exchange(true, std::memory_order_acquire)) return *entry;
  auto* const fresh = new Entry;
  fresh->next = entries.load(std::memory_order_relaxed);
  while (!entries.compare_exchange_weak(fresh->next, fresh, std::memory_order_acq_rel)) {
  }
  return *fresh;
}

// Only calls that a handler of a signal may make.
void removeFileOf(const Entry& entry) {
  const uint32_t turn = entry.turn.load(std::memory_order_acquire);
  if (turn % 2 == 0 || entry.process.load(std::memory_order_relaxed) != ::getpid()) return;
  std::array<char, Entry::kPathBytes + 1> path;
  for (size_t i = 0; i < path.size(); ++i)
    path[i] = entry.path[i].load(std::memory_order_acquire);  // so `turn` is read after them
  if (entry.turn.load(std::memory_order_relaxed) == turn) (void)::unlink(path.data());
}

void removeAtExit() {
  static std::atomic_flag isRegistered;  // a forked child inherits the registration
  if (!isRegistered.test_and_set()) (void)std::atexit(removeSocketFiles);
}

}  // namespace

SocketFile::SocketFile(const SocketAddress& address) {
  if (address.family() != SocketAddress::Family::kUnixPath) return;
  removeAtExit();
  const std::string path = address.unixName();
  entry_ = &takeEntry();
  for (size_t i = 0; i < path.size() && i < Entry::kPathBytes; ++i)
    entry_->path[i].store(path[i], std::memory_order_release);
  for (size_t i = path.size(); i < entry_->path.size(); ++i)
    entry_->path[i].store('\0', std::memory_order_release);
  entry_->process.store(::getpid(), std::memory_order_relaxed);
  entry_->turn.fetch_add(1, std::memory_order_release);
}

SocketFile::~SocketFile() {
  if (entry_ == nullptr) return;
  removeFileOf(*entry_);
  entry_->turn.fetch_add(1, std::memory_order_acq_rel);
  entry_->isTaken.store(false, std::memory_order_release);
}

void removeSocketFiles() {
  const int error = errno;
  for (const Entry* entry = entries.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next)
    removeFileOf(*entry);
  errno = error;
}

}  // namespace peerlane
