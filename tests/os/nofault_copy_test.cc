// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/nofault_copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

// Some pages of the program's.
class Pages {
 public:
  explicit Pages(size_t count, int file = -1) : bytes_(count * kPage) {
    base_ = static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                           file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                                           file, 0));
    for (size_t i = 0; i < bytes_; ++i) base_[i] = static_cast<std::byte>(i * 7 + i / 4096);
  }
  ~Pages() { ::munmap(base_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* at(size_t offset) const { return base_ + offset; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* base_;
};

IoSlice slice(std::byte* at, size_t bytes) {
  return {at, bytes};
}

TEST(NofaultCopy, TwoListsAreOneStreamEach) {
  ASSERT_OK(prepareNofault());
  const Pages program(3);
  std::vector<std::byte> room(2 * kPage);
  const std::vector<IoSlice> from{slice(program.at(5), 100), slice(program.at(kPage + 1), kPage)};
  const std::vector<IoSlice> to{slice(room.data(), 1), slice(room.data() + 10, kPage + 500)};
  ASSERT_EQ(nofaultRead(to, from), kPage + 100);
  EXPECT_EQ(room[0], *program.at(5));
  EXPECT_TRUE(std::equal(room.begin() + 10, room.begin() + 109, program.at(6)));
  EXPECT_EQ(std::memcmp(room.data() + 109, program.at(kPage + 1), kPage), 0);
  // The shorter list ends it.
  EXPECT_EQ(nofaultRead({to.data(), 1}, from), 1u);
  ASSERT_EQ(nofaultWrite({from.data(), 1}, {to.data() + 1, 1}), 100u);
  EXPECT_EQ(std::memcmp(program.at(5), room.data() + 10, 100), 0);
  std::vector<std::byte> flat(kPage);
  ASSERT_EQ(nofaultRead(flat, from, 40), kPage);
  EXPECT_EQ(std::memcmp(flat.data(), program.at(45), 60), 0);
  EXPECT_EQ(std::memcmp(flat.data() + 60, program.at(kPage + 1), kPage - 60), 0);
}

TEST(NofaultCopy, EndsWhereTheMemoryDoes) {
  const Pages program(4);
  std::vector<std::byte> room(4 * kPage, std::byte{9});
  ASSERT_EQ(::mprotect(program.at(2 * kPage), kPage, PROT_NONE), 0);
  const IoSlice all = slice(program.at(100), 4 * kPage - 100);
  const IoSlice to = slice(room.data(), room.size());
  EXPECT_EQ(nofaultRead({&to, 1}, {&all, 1}), 2 * kPage - 100);
  EXPECT_EQ(std::memcmp(room.data(), program.at(100), 2 * kPage - 100), 0);
  EXPECT_EQ(room[2 * kPage - 100], std::byte{9});
  EXPECT_EQ(nofaultWrite({&all, 1}, {&to, 1}), 2 * kPage - 100);
  EXPECT_FALSE(isReadable(program.at(0), program.bytes()));
  EXPECT_TRUE(isReadable(program.at(0), 2 * kPage));
  // What may only be read is not written.
  ASSERT_EQ(::mprotect(program.at(2 * kPage), kPage, PROT_READ), 0);
  EXPECT_EQ(nofaultRead({&to, 1}, {&all, 1}), 4 * kPage - 100);
  EXPECT_EQ(nofaultWrite({&all, 1}, {&to, 1}), 2 * kPage - 100);
  ASSERT_EQ(::munmap(program.at(kPage), 3 * kPage), 0);
  EXPECT_EQ(nofaultRead({&to, 1}, {&all, 1}), kPage - 100);
  const IoSlice none = slice(program.at(kPage), 10);
  EXPECT_EQ(nofaultRead({&to, 1}, {&none, 1}), 0u);
}

TEST(NofaultCopy, EndsWhereTheFileWasCut) {
  const int file = ::memfd_create("cut", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(4 * kPage)), 0);
  const Pages program(4, file);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(kPage)), 0);
  std::vector<std::byte> room(4 * kPage);
  const IoSlice all = slice(program.at(0), 4 * kPage);
  const IoSlice to = slice(room.data(), room.size());
  EXPECT_EQ(nofaultRead({&to, 1}, {&all, 1}), kPage);
  EXPECT_EQ(nofaultWrite({&all, 1}, {&to, 1}), kPage);
  ::close(file);
}

// From now on this process may not lend its pages to a pipe, as under some filters.
bool refuseLending() {
  static sock_filter refuse[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_vmsplice, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(refuse), refuse};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What a child finds: 0, or the number of the step that was wrong.
int copyWithoutLending() {
  if (!refuseLending() || !prepareNofault().isOk()) return 1;
  const Pages program(40);
  std::vector<std::byte> room(40 * kPage);
  const size_t bytes = 40 * kPage - 3;  // more than a pipe holds at once
  const IoSlice all = slice(program.at(3), bytes);
  const IoSlice to = slice(room.data(), room.size());
  if (nofaultRead({&to, 1}, {&all, 1}) != bytes) return 2;
  if (std::memcmp(room.data(), program.at(3), bytes) != 0) return 3;
  room.assign(room.size(), std::byte{4});
  if (nofaultWrite({&all, 1}, {&to, 1}) != bytes) return 4;
  if (std::memcmp(room.data(), program.at(3), bytes) != 0) return 5;
  // What found no place does not stay in the pipe.
  if (::mprotect(program.at(20 * kPage), kPage, PROT_NONE) != 0) return 6;
  const auto endsThere = [](size_t copied) {
    return copied <= 20 * kPage - 3 && copied > 19 * kPage - 3 - kPage;
  };
  if (!endsThere(nofaultWrite({&all, 1}, {&to, 1}))) return 7;
  if (!endsThere(nofaultRead({&to, 1}, {&all, 1}))) return 8;
  room.assign(room.size(), std::byte{5});
  const IoSlice first = slice(program.at(0), kPage);
  if (nofaultWrite({&first, 1}, {&to, 1}) != kPage) return 9;
  return std::memcmp(room.data(), program.at(0), kPage) == 0 ? 0 : 10;
}

TEST(NofaultCopy, CopiesIntoThePipeWherePagesCannotBeLent) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(copyWithoutLending());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace peerlane
