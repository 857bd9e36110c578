// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/page_pipe.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "peerlane/os/socket.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/file_memory.h"
#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;

const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
constexpr size_t kAll = size_t{1} << 30;

Bytes pattern(size_t bytes, uint64_t seed) {
  Bytes made(bytes);
  fillPattern(made, seed);
  return made;
}

Result<size_t> put(PagePipe& pipe, std::byte* at, size_t bytes) {
  const IoSlice slice{at, bytes};
  return pipe.put({&slice, 1});
}

Result<size_t> take(PageSource& source, std::byte* at, size_t bytes, size_t most = kAll) {
  const IoSlice slice{at, bytes};
  return source.take({&slice, 1}, most);
}

// What is in the pipe.
Bytes rest(PageSource& source) {
  Bytes all;
  for (Bytes piece(10'000);;) {
    const size_t bytes = MUST(take(source, piece.data(), piece.size()));
    if (bytes == 0) return all;
    all.insert(all.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(bytes));
  }
}

// `count` slices of `each` bytes, side by side.
std::vector<IoSlice> cut(Bytes& bytes, size_t each, size_t count) {
  std::vector<IoSlice> slices;
  for (size_t i = 0; i < count; ++i) slices.push_back({bytes.data() + i * each, each});
  return slices;
}

TEST(PagePipe, TwoListsAreOneStreamEach) {
  for (const size_t each : {size_t{3}, size_t{700}, size_t{5000}}) {
    PagePipe pipe = MUST(PagePipe::create());
    Bytes out = pattern(9 * each, each);
    Bytes in(out.size() + 2);
    const auto from = cut(out, each, 9);
    ASSERT_EQ(MUST(pipe.put(from)), out.size());
    // Cut otherwise, and the end of the second list cuts a slice.
    const std::vector<IoSlice> first{{in.data(), 1}, {in.data() + 1, each}};
    ASSERT_EQ(MUST(pipe.source().take(first, kAll)), each + 1);
    const std::vector<IoSlice> second{{in.data() + each + 1, 2}, {in.data() + each + 3, kAll}};
    ASSERT_EQ(MUST(pipe.source().take(second, each)), each);
    EXPECT_EQ(in[2 * each + 1], std::byte{}) << "more than was asked for";
    const size_t left = out.size() - 2 * each - 1;
    // More room than there are bytes.
    ASSERT_EQ(MUST(take(pipe.source(), in.data() + 2 * each + 1, left + 1)), left);
    EXPECT_EQ(firstWrong(std::span(in).first(out.size()), each), out.size());
    EXPECT_EQ(in[out.size()], std::byte{});
    EXPECT_EQ(MUST(take(pipe.source(), in.data(), in.size())), 0u) << "the pipe is empty";
  }
}

TEST(PagePipe, NoRoomTakesNothing) {
  PagePipe pipe = MUST(PagePipe::create());
  Bytes out = pattern(100, 1);
  Bytes in(100);
  ASSERT_EQ(MUST(put(pipe, out.data(), 100)), 100u);
  EXPECT_EQ(MUST(pipe.source().take({}, kAll)), 0u);
  EXPECT_EQ(MUST(take(pipe.source(), in.data(), 100, 0)), 0u);
  EXPECT_EQ(rest(pipe.source()), out);
}

// More slices than one call takes: a prefix of them.
TEST(PagePipe, LongListsArriveInTurns) {
  PagePipe pipe = MUST(PagePipe::create());
  Bytes out = pattern(kMaxIoSlices * 3, 2);
  Bytes in(out.size());
  auto from = cut(out, 3, kMaxIoSlices);
  ASSERT_EQ(MUST(pipe.put(from)), out.size());
  auto to = cut(in, 3, kMaxIoSlices);
  std::span<IoSlice> left(to);
  while (!left.empty()) {
    const size_t bytes = MUST(pipe.source().take(left, kAll));
    ASSERT_NE(bytes, 0u);
    left = left.subspan(takeBytes(left, bytes));
  }
  EXPECT_EQ(in, out);
}

// Whether a byte that changes in the pipe is seen by who takes it.
bool isLent(std::span<const size_t> sizes) {
  PagePipe pipe = MUST(PagePipe::create());
  size_t bytes = 0;
  for (const size_t size : sizes) bytes += size;
  Bytes out(bytes, std::byte{1});
  std::vector<IoSlice> slices;
  for (size_t at = 0; const size_t size : sizes) {
    slices.push_back({out.data() + at, size});
    at += size;
  }
  EXPECT_EQ(MUST(pipe.put(slices)), bytes);
  std::fill(out.begin(), out.end(), std::byte{2});
  Bytes in(bytes);
  EXPECT_EQ(MUST(take(pipe.source(), in.data(), bytes)), bytes);
  EXPECT_EQ(std::count(in.begin(), in.end(), in[0]), static_cast<ptrdiff_t>(bytes));
  return in[0] == std::byte{2};
}

TEST(PagePipe, PagesAreLentAndShortSlicesCopied) {
  const auto same = [](size_t bytes, size_t count) { return std::vector<size_t>(count, bytes); };
  EXPECT_TRUE(isLent(same(3 * kPage, 1)));
  EXPECT_TRUE(isLent(same(kPage, 4)));
  EXPECT_TRUE(isLent(same(1024, 8)));
  EXPECT_FALSE(isLent(same(1023, 8)));
  EXPECT_FALSE(isLent(same(1, 1)));
  EXPECT_FALSE(isLent(same(64, 500)));
  // The mean counts.
  EXPECT_TRUE(isLent(std::vector<size_t>{10, 2038}));
  EXPECT_FALSE(isLent(std::vector<size_t>{10, 2037}));
}

TEST(PagePipe, AFullPipeTakesNothing) {
  for (const size_t each : {size_t{100}, 3 * kPage}) {
    PagePipe pipe = MUST(PagePipe::create());
    Bytes out = pattern(each, 5);
    size_t bytes = 0;
    for (size_t last = 1; last != 0;) {
      last = MUST(put(pipe, out.data() + bytes % each, each - bytes % each));
      bytes += last;
    }
    EXPECT_GE(bytes, 64 * 1024u - 2 * kPage);
    // Again, when it has room again.
    Bytes in(32 * 1024);
    ASSERT_EQ(MUST(take(pipe.source(), in.data(), in.size())), in.size());
    const size_t more = MUST(put(pipe, out.data() + bytes % each, each - bytes % each));
    EXPECT_NE(more, 0u);
    const Bytes left = rest(pipe.source());
    ASSERT_EQ(left.size(), bytes + more - in.size());
    in.insert(in.end(), left.begin(), left.end());
    for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(in[i], out[i % each]) << i;
  }
}

// Memory of the program whose second half, or all of it, is lost.
struct Lossy {
  explicit Lossy(Loss loss) : memory(std::byte{7}) {
    fillPattern({memory.data(), FileMemory::kBytes}, 4);
    memory.lose(loss);
  }
  FileMemory memory;
  std::byte* bad() const { return memory.data() + FileMemory::kBytes / 2; }
};

constexpr Loss kLosses[] = {Loss::kCut, Loss::kUnmapped, Loss::kProtected};

class LostMemory : public testing::TestWithParam<Loss> {
 protected:
  Lossy lost_{GetParam()};
  PagePipe pipe_ = MUST(PagePipe::create());
};

TEST_P(LostMemory, IsNotPut) {
  Bytes before = pattern(5000, 1);
  ASSERT_EQ(MUST(put(pipe_, before.data(), 5000)), 5000u);
  for (const size_t bytes : {size_t{1}, size_t{100}, kPage, 20 * kPage})
    EXPECT_EQ(put(pipe_, lost_.bad() + 3, bytes).status().code(), Code::kRevoked) << bytes;
  // And after that the pipe goes on.
  Bytes after = pattern(6000, 2);
  ASSERT_EQ(MUST(put(pipe_, after.data(), 6000)), 6000u);
  const Bytes came = rest(pipe_.source());  // while `before` stays where it is
  ASSERT_EQ(came.size(), before.size() + after.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), came.begin()));
  EXPECT_TRUE(std::equal(after.begin(), after.end(), came.end() - 6000));
}

TEST_P(LostMemory, EndsAListThatIsPut) {
  for (const size_t each : {size_t{200}, 2 * kPage}) {
    Bytes good = pattern(2 * each, 3);
    std::vector<IoSlice> slices = cut(good, each, 2);
    slices.push_back({lost_.bad(), each});
    slices.push_back({good.data(), each});
    std::span<IoSlice> left(slices);
    size_t bytes = 0;
    for (;;) {
      const Result<size_t> in = pipe_.put(left);
      if (!in) {
        EXPECT_EQ(in.status().code(), Code::kRevoked);
        break;
      }
      ASSERT_NE(*in, 0u);
      bytes += *in;
      left = left.subspan(takeBytes(left, *in));
    }
    EXPECT_EQ(bytes, 2 * each) << "the good ones come first";
    EXPECT_EQ(left.size(), 2u);
    EXPECT_EQ(rest(pipe_.source()), good);
  }
}

TEST_P(LostMemory, IsNotFilled) {
  Bytes out = pattern(5 * kPage + 77, 6);
  for (const size_t each : {size_t{100}, out.size()}) {
    for (size_t at = 0; at < out.size();)
      at += MUST(put(pipe_, out.data() + at, std::min(each, out.size() - at)));
    for (const size_t bytes : {size_t{1}, size_t{100}, 3 * kPage, 20 * kPage})
      EXPECT_EQ(take(pipe_.source(), lost_.bad() + 3, bytes).status().code(), Code::kRevoked);
    EXPECT_EQ(rest(pipe_.source()), out) << "nothing is lost";
  }
}

// Whatever one call says of a list that goes bad, the good slices can be filled one by one, with
// nothing lost in between.
TEST_P(LostMemory, EndsAListThatIsFilled) {
  Bytes out = pattern(4 * kPage, 8);
  ASSERT_EQ(MUST(put(pipe_, out.data(), out.size())), out.size());
  Bytes in(150);
  const std::vector<IoSlice> slices{{in.data(), 100}, {in.data() + 100, 50}, {lost_.bad(), kPage}};
  size_t bytes = 0;
  const Result<size_t> some = pipe_.source().take(slices, kAll);
  if (some) {
    EXPECT_LE(*some, 150u);
    bytes = *some;
  } else {
    EXPECT_EQ(some.status().code(), Code::kRevoked);
  }
  if (bytes < 100) bytes += MUST(take(pipe_.source(), in.data() + bytes, 100 - bytes));
  if (bytes < 150) bytes += MUST(take(pipe_.source(), in.data() + bytes, 150 - bytes));
  ASSERT_EQ(bytes, 150u);
  EXPECT_EQ(take(pipe_.source(), lost_.bad(), kPage).status().code(), Code::kRevoked);
  const Bytes left = rest(pipe_.source());
  in.insert(in.end(), left.begin(), left.end());
  EXPECT_EQ(in, out);
}

INSTANTIATE_TEST_SUITE_P(PagePipe, LostMemory, testing::ValuesIn(kLosses));

// What may only be read is sent and not filled.
TEST(PagePipe, MemoryThatMayOnlyBeRead) {
  const FileMemory memory(std::byte{3});
  ASSERT_EQ(::mprotect(memory.data(), 4 * kPage, PROT_READ), 0);
  PagePipe pipe = MUST(PagePipe::create());
  ASSERT_EQ(MUST(put(pipe, memory.data(), 2 * kPage)), 2 * kPage);
  EXPECT_EQ(take(pipe.source(), memory.data(), 100).status().code(), Code::kRevoked);
  EXPECT_EQ(rest(pipe.source()), Bytes(2 * kPage, std::byte{3}));
}

TEST(PagePipe, DropTakesUpToSoMuch) {
  PagePipe pipe = MUST(PagePipe::create());
  Bytes out = pattern(50'000, 1);
  ASSERT_EQ(MUST(put(pipe, out.data(), out.size())), out.size());
  pipe.source().drop(0);
  pipe.source().drop(40'001);
  const Bytes left = rest(pipe.source());
  ASSERT_EQ(left.size(), 9'999u);
  EXPECT_EQ(std::memcmp(left.data(), out.data() + 40'001, left.size()), 0);
  ASSERT_EQ(MUST(put(pipe, out.data(), out.size())), out.size());
  pipe.source().drop(kAll);
  EXPECT_TRUE(rest(pipe.source()).empty());
}

// --- An end that another process has given ---

struct GivenPipe {
  GivenPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    out = Fd(ends[0]);
    in = Fd(ends[1]);
  }
  Fd out;
  Fd in;
};

TEST(PageSource, AdoptsAPipe) {
  GivenPipe given;
  PageSource source = MUST(PageSource::adopt(given.out));
  ASSERT_TRUE(source);
  given.out.reset();
  ASSERT_EQ(::write(given.in.get(), "abc", 3), 3);
  Bytes in(10);
  EXPECT_EQ(MUST(take(source, in.data(), 10)), 3u);
  EXPECT_EQ(in[2], std::byte{'c'});
}

TEST(PageSource, RefusesWhatIsNoPipe) {
  const auto sockets = MUST(socketPair());
  const Fd event = MUST(makeEventFd());
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Fd memory(::memfd_create("no_pipe", MFD_CLOEXEC));
  const Fd folder(::open("/proc/self", O_RDONLY | O_CLOEXEC));
  const Fd none;
  for (const Fd* const bad : {&sockets.first, &event, &null, &memory, &folder, &none})
    EXPECT_EQ(PageSource::adopt(*bad).status().code(), Code::kCorrupt) << bad->get();
}

// The giver's descriptor may be of the same open file as the one it gave, and so are its flags. A
// failure of this test may be that it does not end.
TEST(PageSource, TheGiverCannotMakeItBlock) {
  for (const bool isBefore : {true, false}) {
    GivenPipe given;
    const Fd came = MUST(given.out.dup());
    const auto makeBlocking = [&] {
      ASSERT_EQ(::fcntl(given.out.get(), F_SETFL, 0), 0);
      ASSERT_EQ(::fcntl(given.in.get(), F_SETFL, 0), 0);
    };
    if (isBefore) makeBlocking();
    PageSource source = MUST(PageSource::adopt(came));
    if (!isBefore) makeBlocking();
    ASSERT_NE(::fcntl(source.fd().get(), F_GETFL) & O_NONBLOCK, 0);
    Bytes in(10);
    EXPECT_EQ(MUST(take(source, in.data(), 10)), 0u);
    source.drop(10);
  }
}

TEST(PageSource, TheEndOfThePipeIsAnEmptyOne) {
  GivenPipe given;
  PageSource source = MUST(PageSource::adopt(given.out));
  ASSERT_EQ(::write(given.in.get(), "abc", 3), 3);
  given.in.reset();
  Bytes in(10);
  EXPECT_EQ(MUST(take(source, in.data(), 10)), 3u);
  EXPECT_EQ(MUST(take(source, in.data(), 10)), 0u);
  source.drop(10);
}

// --- Descriptors ---

TEST(PagePipe, SaysThatNoDescriptorIsLeft) {
  const GivenPipe given;
  for (const size_t free : {size_t{0}, size_t{1}}) {
    const FewDescriptors few(free);
    EXPECT_EQ(PagePipe::create().status().code(), Code::kUnavailable);
  }
  const FewDescriptors few(0);
  EXPECT_EQ(PageSource::adopt(given.out).status().code(), Code::kUnavailable);
}

// An administrator's process may have a peer of another user.
TEST(PagePipe, AnotherUserOpensTheEndThatItIsGiven) {
  if (::geteuid() != 0) GTEST_SKIP() << "not an administrator";
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kOther = 65534;
    Result<PagePipe> pipe = PagePipe::create();
    if (!pipe || ::setgroups(0, nullptr) != 0 || ::setgid(kOther) != 0 || ::setuid(kOther) != 0)
      ::_exit(1);
    const int end = pipe->source().fd().get();
    if (!PageSource::adopt(pipe->source().fd())) ::_exit(2);
    // It reads, and does not write.
    const std::string path = "/proc/self/fd/" + std::to_string(end);
    ::_exit(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC) < 0 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Else a child would keep memory, and keep the other end from seeing its end.
TEST(PagePipe, ForkedChildrenGetNoEnd) {
  PagePipe pipe = MUST(PagePipe::create());
  const PageSource adopted = MUST(PageSource::adopt(pipe.source().fd()));
  struct stat wanted {};
  ASSERT_EQ(::fstat(adopted.fd().get(), &wanted), 0);
  const auto ends = [&] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      struct stat facts {};
      count += ::fstat(fd, &facts) == 0 && facts.st_ino == wanted.st_ino &&
               facts.st_dev == wanted.st_dev;
    }
    return count;
  };
  ASSERT_EQ(ends(), 3);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ends());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "so many ends are the child's";
}

// --- A filter of system calls that refuses to lend ---

TEST(PagePipe, CopiesWherePagesCannotBeLent) {
  // The filter is this thread's.
  std::thread([] {
    refuseCalls(SYS_vmsplice, EPERM);
    EXPECT_FALSE(isLent(std::vector<size_t>{3 * kPage}));
    PagePipe pipe = MUST(PagePipe::create());
    const Lossy lost(Loss::kProtected);
    EXPECT_EQ(put(pipe, lost.bad(), 2 * kPage).status().code(), Code::kRevoked);
    Bytes out = pattern(3 * kPage, 2);
    const std::vector<IoSlice> slices{{out.data(), 2 * kPage}, {lost.bad(), kPage}};
    const size_t bytes = MUST(pipe.put(slices));
    ASSERT_GT(bytes, 0u);
    ASSERT_LE(bytes, 2 * kPage);
    const Bytes came = rest(pipe.source());
    ASSERT_EQ(came.size(), bytes);
    EXPECT_EQ(std::memcmp(came.data(), out.data(), bytes), 0);
    for (size_t full = 0; full < (4u << 20); full += out.size())
      if (MUST(put(pipe, out.data(), out.size())) == 0) return;
    ADD_FAILURE() << "never full";
  }).join();
}

}  // namespace
}  // namespace peerlane
