// SPDX-License-Identifier: Apache-2.0
//
// What a call of the C API answers with when there is no memory, also for the answer: this binary
// replaces operator new.
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "peerlane/core/log.h"
#include "peerlane/p2p/result_code.h"
#include "tests/p2p/p2p_pair.h"

namespace {

// How many allocations of this thread succeed; less than 0: all.
thread_local int allowed = -1;

void* allocate(std::size_t bytes) {
  if (allowed == 0) return nullptr;
  if (allowed > 0) --allowed;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocateOrThrow(std::size_t bytes) {
  if (void* const memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocateOrThrow(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocateOrThrow(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace peerlane::p2p {
namespace {

// No memory for the calling thread while it lives, but for `first` allocations.
class Scarcity {
 public:
  explicit Scarcity(int first = 0) { allowed = first; }
  ~Scarcity() { allowed = -1; }
  Scarcity(const Scarcity&) = delete;
  Scarcity& operator=(const Scarcity&) = delete;
};

// What was thrown before there was no memory any more.
template <typename Thrown>
HcclResult answerTo(const Thrown& thrown) {
  const Scarcity scarcity;
  return answer([&]() -> Answer { throw thrown; });
}

TEST(P2pResultCode, WhatIsThrownIsAnsweredWithoutMemory) {
  EXPECT_EQ(answerTo(std::bad_alloc()), HCCL_E_MEMORY);
  EXPECT_STREQ(lastSentence(), "OutOfMemory: there was not enough for this call");
  EXPECT_EQ(answerTo(std::runtime_error("a sentence that is too long for a short string")),
            HCCL_E_INTERNAL);
  EXPECT_STREQ(lastSentence(), "Internal: a sentence that is too long for a short string");
  EXPECT_EQ(answerTo(7), HCCL_E_INTERNAL);
  EXPECT_STREQ(lastSentence(), "Internal: something was thrown that is no std::exception");
}

TEST(P2pResultCode, AStatusIsReportedWithoutMemory) {
  const Answer refused = notFound("a sentence that is too long for a short string");
  {
    const Scarcity scarcity;
    EXPECT_EQ(report(refused), HCCL_E_NOT_FOUND);
  }
  EXPECT_STREQ(lastSentence(), "InvalidArgument: a sentence that is too long for a short string");
  EXPECT_EQ(report(refused), HCCL_E_NOT_FOUND);
  EXPECT_NE(std::string(lastSentence()).find("(p2p_result_code_test.cc:"), std::string::npos);
  EXPECT_EQ(report(Status::ok()), HCCL_SUCCESS);
  EXPECT_STREQ(lastSentence(), "");
}

TEST(P2pResultCode, AFailureOfCudaIsNotOneOfTheSystem) {
  EXPECT_EQ(report(Status::system(ENOENT, "open")), HCCL_E_SYSCALL);
  EXPECT_EQ(report(Status(Code::kSystem, "cuCtxCreate: unknown error (999)")), HCCL_E_RUNTIME);
  EXPECT_EQ(report(Status(Code::kSystem, "launch").withContext("put")), HCCL_E_RUNTIME);
  EXPECT_EQ(report(nullPointer("comm")), HCCL_E_PTR);
}

TEST(P2pResultCode, LongSentencesAreCutBetweenCharacters) {
  const std::string_view mark = "\u2026";
  // The cut falls on each byte of a character of three.
  for (size_t before = 0; before < 3; ++before) {
    std::string text(before, 'x');
    while (text.size() < 2 * kSentenceBytes) text += "\u20ac";
    (void)report(Code::kInternal, text);
    const std::string_view kept = lastSentence();
    EXPECT_LT(kept.size(), kSentenceBytes);
    EXPECT_GT(kept.size(), kSentenceBytes - 8);
    ASSERT_TRUE(kept.ends_with(mark));
    EXPECT_TRUE(kept.substr(0, kept.size() - mark.size()).ends_with("\u20ac"));
  }
  const std::string whole(kSentenceBytes - 1 - std::strlen("Internal: "), 'y');
  (void)report(Code::kInternal, whole);
  EXPECT_EQ(lastSentence(), "Internal: " + whole);
  (void)report(Code::kInternal, whole + "y");
  EXPECT_TRUE(std::string_view(lastSentence()).ends_with(mark));
}

// Through the calls: wherever memory ends, that is what is said.
TEST(P2pResultCode, CallsWithoutMemorySaySo) {
  P2pSegmentInfo info{};
  uint8_t byte = 0;
  const auto refuse = [&] {
    return P2PRegisterHostMem(&byte, 1, &info, static_cast<P2pSegmentPermissions>(9));
  };
  EXPECT_EQ(refuse(), HCCL_E_PARA);
  int failures = 0;
  for (int first = 0;; ++first) {
    HcclResult result = HCCL_SUCCESS;
    {
      const Scarcity scarcity(first);
      result = refuse();
    }
    if (result != HCCL_E_MEMORY) {
      EXPECT_EQ(result, HCCL_E_PARA) << P2PGetLastError();
      EXPECT_NE(std::string(P2PGetLastError()).find("permissions is 9"), std::string::npos);
      break;
    }
    ++failures;
    EXPECT_STREQ(P2PGetLastError(), "OutOfMemory: there was not enough for this call");
  }
  EXPECT_GT(failures, 0);
}

int lines = 0;

TEST(P2pResultCode, TheLogGoesWhereItWentWhenThereIsNoMemoryToChangeThat) {
  P2PSetLogCallback([](P2pLogSeverity, int, const char*, int, const char*) { ++lines; });
  EXPECT_STREQ(P2PGetLastError(), "");
  {
    const Scarcity scarcity;
    P2PSetLogCallback([](P2pLogSeverity, int, const char*, int, const char*) { lines += 100; });
  }
  EXPECT_STREQ(P2PGetLastError(), "OutOfMemory: there was not enough for this call");
  logLine(LogLevel::kError, "here.cc:1", "a line");
  EXPECT_EQ(lines, 1);
  P2PSetLogCallback(nullptr);
}

TEST(P2pResultCode, TheHeartbeatThrowsNothing) {
  std::function<int()> heartbeat;
  p2p_test::Side watched;
  watched.options = P2PCommInitOptions(true, &heartbeat);
  const p2p_test::Pair pair(watched, {});
  ASSERT_TRUE(heartbeat);
  int seconds = -7;
  {
    const Scarcity scarcity;
    EXPECT_NO_THROW(seconds = heartbeat());
  }
  EXPECT_EQ(seconds, 0) << "it is not lost";
}

}  // namespace
}  // namespace peerlane::p2p
