// SPDX-License-Identifier: Apache-2.0
//
// The log: levels, lazy arguments, the user's sink, many threads, forked children, and the end of
// the process.
#include "peerlane/core/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace peerlane {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override { setLogLevel(LogLevel::kWarn); }
  void TearDown() override {
    setLogSink({});
    setLogLevel(LogLevel::kWarn);
  }
};

TEST_F(Log, LevelDecidesAndArgumentsAreLazy) {
  std::vector<std::string> lines;
  setLogSink([&](LogLevel level, std::string_view where, std::string_view text) {
    lines.push_back(std::string(logLevelName(level)) + '|' +
                    std::string(where.substr(0, where.find(':'))) + '|' + std::string(text));
  });
  int evaluated = 0;
  auto count = [&] { return ++evaluated; };
  PEERLANE_LOG_DEBUG("not shown {}", count());
  PEERLANE_LOG_INFO("not shown {}", count());
  EXPECT_EQ(evaluated, 0);
  PEERLANE_LOG_WARN("shown {}", count());
  PEERLANE_LOG_ERROR("no arguments");
  setLogLevel(LogLevel::kTrace);
  PEERLANE_LOG_TRACE("{} and {}", count(), "text");
  EXPECT_EQ(lines,
            (std::vector<std::string>{"warn|log_test.cc|shown 1", "error|log_test.cc|no arguments",
                                      "trace|log_test.cc|2 and text"}));
}

TEST_F(Log, PlaceIsFileAndLine) {
  std::string place;
  setLogSink([&](LogLevel, std::string_view where, std::string_view) { place = where; });
  PEERLANE_LOG_WARN("x");
  EXPECT_EQ(place, "log_test.cc:" + std::to_string(__LINE__ - 1));
  logLine(LogLevel::kWarn, "other.cc:3", "x");
  EXPECT_EQ(place, "other.cc:3");
}

TEST_F(Log, MacroIsOneStatement) {
  bool other = false;
  if (logEnabled(LogLevel::kTrace))
    PEERLANE_LOG_TRACE("x");
  else
    other = true;
  EXPECT_TRUE(other);
}

TEST_F(Log, StandardErrorGetsOneLinePerEvent) {
  ::testing::internal::CaptureStderr();
  PEERLANE_LOG_WARN("first\nforged {}", 5);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("peerlane[" + std::to_string(::getpid()) + "] warn log_test.cc:"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(": first\\nforged 5\n"), std::string::npos) << text;
}

TEST_F(Log, ThrowingSinkIsHarmlessAndEmptySinkRestores) {
  setLogSink(
      [](LogLevel, std::string_view, std::string_view) { throw std::runtime_error("sink"); });
  PEERLANE_LOG_WARN("dropped");
  setLogSink({});
  ::testing::internal::CaptureStderr();
  PEERLANE_LOG_WARN("back");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("back"), std::string::npos);
}

TEST_F(Log, SinkMayLogAndMayReplaceItself) {
  std::vector<std::string> lines;
  setLogSink([&](LogLevel, std::string_view, std::string_view text) {
    lines.emplace_back(text);
    if (text != "outer") return;
    PEERLANE_LOG_WARN("inner");
    setLogSink([&](LogLevel, std::string_view, std::string_view later) {
      lines.push_back("new " + std::string(later));
    });
  });
  PEERLANE_LOG_WARN("outer");
  PEERLANE_LOG_WARN("after");
  EXPECT_EQ(lines, (std::vector<std::string>{"outer", "inner", "new after"}));
}

TEST_F(Log, ManyThreadsLoseNoLineAndTearNone) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kLines; ++i) PEERLANE_LOG_WARN("thread {} line {} end", t, i);
      });
    }
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  std::size_t from = 0;
  for (std::size_t end; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    const std::string line = text.substr(from, end - from);
    EXPECT_EQ(line.find("peerlane[") == std::string::npos, false) << line;
    EXPECT_TRUE(line.ends_with(" end")) << line;
    ++lines;
  }
  EXPECT_EQ(lines, static_cast<std::size_t>(kThreads * kLines));
}

TEST_F(Log, SinkIsReplacedWhileOthersLog) {
  std::atomic<int> seen{0};
  std::atomic<bool> stop{false};
  LogSink counting = [&](LogLevel, std::string_view, std::string_view) { ++seen; };
  setLogSink(counting);
  std::jthread logger([&] {
    while (!stop.load(std::memory_order_relaxed)) PEERLANE_LOG_WARN("x");
  });
  for (int i = 0; i < 1000; ++i) setLogSink(counting);
  while (seen.load() < 100) std::this_thread::yield();
  stop.store(true, std::memory_order_relaxed);
  logger.join();
  EXPECT_GE(seen.load(), 100);
}

// A child forked while another thread holds the log's lock must still be able to log.
TEST_F(Log, ForkedChildLogs) {
  ::testing::internal::CaptureStderr();
  std::atomic<bool> stop{false};
  std::jthread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) PEERLANE_LOG_WARN("parent");
  });
  int failed = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);  // a deadlock ends as a failure
      PEERLANE_LOG_WARN("child {}", i);
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    failed += status != 0;
  }
  stop.store(true, std::memory_order_relaxed);
  busy.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(failed, 0);
  for (int i = 0; i < 50; ++i)
    EXPECT_NE(text.find(": child " + std::to_string(i) + "\n"), std::string::npos) << i;
}

struct LogsWhenDestroyed {
  ~LogsWhenDestroyed() { PEERLANE_LOG_WARN("from a static destructor"); }
};

// The object is made before the log's first use, so it is destroyed after anything the log might
// have registered.
TEST(LogDeathTest, StaticDestructorsMayLog) {
  EXPECT_EXIT(
      {
        static LogsWhenDestroyed last;
        PEERLANE_LOG_WARN("first use");
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "from a static destructor");
}

}  // namespace
}  // namespace peerlane
