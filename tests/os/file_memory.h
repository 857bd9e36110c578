// SPDX-License-Identifier: Apache-2.0
//
// FileMemory: memory of a program that it may lose while it is registered. Any thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace peerlane {

enum class Loss : uint8_t { kCut, kUnmapped, kProtected };

// A file without a name, mapped where nobody else's mmap() comes: what is mapped next by another
// thread must not lie where this was.
class FileMemory {
 public:
  static constexpr size_t kBytes = 2 << 20;

  // kSealable: what a context can share, which seals it against being cut.
  enum class Kind : uint8_t { kFile, kSealable };

  explicit FileMemory(std::byte fill, Kind kind = Kind::kFile) : kind_(kind) {
    // The thread sanitizer lets a program map from 0x7e8000000000 on; the kernel's own choices
    // begin more than 256 GiB above this.
    static std::atomic<uintptr_t> next{0x7e8800000000};
    if (kind == Kind::kFile) {
      std::string path = testing::TempDir() + "peerlane_gone_XXXXXX";
      file_ = ::mkstemp(path.data());
      ::unlink(path.c_str());
    } else {
      file_ = ::memfd_create("gone", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    EXPECT_EQ(::ftruncate(file_, kBytes), 0);
    void* const wanted = reinterpret_cast<void*>(next.fetch_add(2 * kBytes));
    base_ = static_cast<std::byte*>(
        ::mmap(wanted, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file_, 0));
    EXPECT_EQ(base_, wanted);
    std::memset(base_, static_cast<int>(fill), kBytes);
  }
  ~FileMemory() {
    if (!isUnmapped_.load()) ::munmap(base_, kBytes);
    ::close(file_);
  }
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  std::byte* data() const { return base_; }
  // Whether every byte that the file still has is `value`.
  bool isAll(std::byte value) const {
    std::vector<std::byte> left(kBytes);
    const ssize_t bytes = ::pread(file_, left.data(), kBytes, 0);
    return bytes > 0 && std::all_of(left.begin(), left.begin() + bytes,
                                    [value](std::byte each) { return each == value; });
  }
  // The file ends after `bytes` bytes.
  void cutTo(size_t bytes) { EXPECT_EQ(::ftruncate(file_, static_cast<off_t>(bytes)), 0); }
  // All of it, or its second half where the file is cut. A sealed one refuses to be cut.
  void lose(Loss loss) {
    switch (loss) {
      case Loss::kCut:
        if (kind_ == Kind::kFile)
          cutTo(kBytes / 2);
        else
          EXPECT_EQ(::ftruncate(file_, kBytes / 2), -1);
        break;
      case Loss::kProtected: EXPECT_EQ(::mprotect(base_, kBytes, PROT_NONE), 0); break;
      case Loss::kUnmapped:
        EXPECT_EQ(::munmap(base_, kBytes), 0);
        isUnmapped_.store(true);
        break;
    }
    isLost_.store(true);
  }

  bool isLost() const { return isLost_.load(); }
  // Calls `move` again and again, loses the memory meanwhile from another thread, and calls `move`
  // once more afterwards.
  template <typename Move>
  void loseWhile(Loss loss, const Move& move) {
    std::atomic<bool> moves{false};
    std::thread program([&] {
      while (!moves.load()) std::this_thread::yield();
      lose(loss);
    });
    for (bool isLast = false; !isLast;) {
      isLast = isLost();
      moves.store(true);
      move();
    }
    program.join();
  }

 private:
  const Kind kind_;
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::atomic<bool> isUnmapped_{false}, isLost_{false};
};

}  // namespace peerlane
