// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/shared_fd.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "peerlane/core/mutex.h"

namespace peerlane {
namespace {

using Key = std::tuple<uint64_t, uint64_t, bool>;  // device, inode, may be written

// Numbers of memory files can come again after 2^32 of them. Of two files at one moment these facts
// are not all the same.
bool isSameFile(int a, int b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino && one.st_size == other.st_size &&
         one.st_ctim.tv_sec == other.st_ctim.tv_sec && one.st_ctim.tv_nsec == other.st_ctim.tv_nsec;
}

// What is closed leaves the table when others come in, and not by its last copy: that may be
// destroyed in a forked child, where another thread's lock is held for ever.
class OpenFiles {
 public:
  static OpenFiles& ofProcess() {
    static auto& files = *new OpenFiles;  // objects of the program may outlive it otherwise
    return files;
  }

  std::shared_ptr<const Fd> find(const Key& key) const {
    const MutexLock lock(mutex_);
    const auto found = files_.find(key);
    return found == files_.end() ? nullptr : found->second.lock();
  }
  void add(const Key& key, const std::shared_ptr<const Fd>& fd) {
    const MutexLock lock(mutex_);
    if (files_.size() >= nextSweep_) {
      std::erase_if(files_, [](const auto& known) { return known.second.expired(); });
      nextSweep_ = std::max(kLeastSweep, 2 * files_.size());
    }
    files_[key] = fd;
  }

 private:
  static constexpr size_t kLeastSweep = 64;
  mutable Mutex mutex_;
  std::map<Key, std::weak_ptr<const Fd>> files_ PEERLANE_GUARDED_BY(mutex_);
  size_t nextSweep_ PEERLANE_GUARDED_BY(mutex_) = kLeastSweep;
};

}  // namespace

SharedFd SharedFd::ofFile(Fd fd) {
  struct stat file {};
  const int flags = fd ? ::fcntl(fd.get(), F_GETFL) : -1;
  if (flags < 0 || ::fstat(fd.get(), &file) != 0) return SharedFd(std::move(fd));
  const Key key(file.st_dev, file.st_ino, (flags & O_ACCMODE) == O_RDWR);
  if (auto known = OpenFiles::ofProcess().find(key); known && isSameFile(known->get(), fd.get()))
    return SharedFd(std::move(known));
  auto shared = std::make_shared<const Fd>(std::move(fd));
  OpenFiles::ofProcess().add(key, shared);
  return SharedFd(std::move(shared));
}

SharedFd SharedFd::known(uint64_t device, uint64_t inode, bool writable) {
  return SharedFd(OpenFiles::ofProcess().find(Key(device, inode, writable)));
}

}  // namespace peerlane
